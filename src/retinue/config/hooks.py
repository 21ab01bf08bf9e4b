"""Reads hooks: from retinue's settings, and from Claude Code's `settings.json` as it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from retinue.config.environment import Environment
from retinue.config.server_code import files_digest
from retinue.config.settings import PROJECT_FILE, HookGroupSettings, SettingsLayers
from retinue.config.trust import TrustRequest
from retinue.domain.hook import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, HookEvent, HookSpec

HOOK = "hook"
CLAUDE_FILES = (".claude/settings.json", ".claude/settings.local.json")
_MAX_BYTES = 1024 * 1024


class ConfiguredHooks(msgspec.Struct, frozen=True):
    """Hooks in the order in which they run, and a line for each entry that cannot be used."""

    hooks: tuple[HookSpec, ...] = ()
    problems: tuple[str, ...] = ()


def configured_hooks(
    layers: SettingsLayers, project: Path, environment: Environment
) -> ConfiguredHooks:
    """All hooks of the user and the project. Hooks of the project need the user's trust."""
    user, problems = environment.user_settings_file, list[str]()
    hooks = list(_from_settings(layers.user.hooks, environment.display_path(user)))
    own = environment.home / ".claude/settings.json"
    hooks += _from_claude(own, environment.display_path(own), problems)
    theirs = list(_from_settings(layers.project.hooks, PROJECT_FILE))
    for name in CLAUDE_FILES:
        if project / name != own:
            theirs += _from_claude(project / name, name, problems)
    for hook in theirs:
        code = hook_code(hook, project)
        hooks.append(msgspec.structs.replace(hook, of_project=True, code=code))
    # Several files may name the same hook.
    unique = {(hook.event, hook.matcher, hook.command): hook for hook in reversed(hooks)}
    return ConfiguredHooks(tuple(reversed(unique.values())), tuple(problems))


def hook_request(hook: HookSpec) -> TrustRequest:
    """The question to the user about a project's hook: its command, and the files that it names."""
    name = f"{hook.event}({hook.matcher})" if hook.matcher else hook.event.value
    effect = (
        f"runs {hook.command} in the sandbox, without network, and may add to prompts, change calls"
        " and deny them"
    )
    identity = (hook.event, hook.matcher, hook.command, hook.timeout_s, hook.code)
    return TrustRequest(HOOK, name, hook.source, effect, msgspec.json.encode(identity))


def hook_code(hook: HookSpec, project: Path) -> str:
    """A hash of the files of the project that a hook's command names, and of their folders."""
    text = re.sub(r"\$(?:CLAUDE_PROJECT_DIR\b|\{CLAUDE_PROJECT_DIR\})", str(project), hook.command)
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return files_digest(words, str(project))


def hook_problem(event: str, group: HookGroupSettings) -> str | None:
    """The problem of an entry of retinue's settings, or None."""
    if event not in set(HookEvent):
        return f"there is no event {event!r}; there are: {', '.join(HookEvent)}"
    try:
        re.compile("" if group.matcher == "*" else group.matcher)
    except re.error as error:
        return f"the matcher {group.matcher!r} is no regular expression: {error}"
    for hook in group.hooks:
        if hook.type != "command":
            return f"a hook of type {hook.type!r} is not supported; write a command"
        if not hook.command.strip():
            return "the command is empty"
        if hook.timeout is not None and not 0 < hook.timeout < MAX_TIMEOUT_S:
            return _timeout_problem(hook.timeout)
    return None


def _timeout_problem(timeout: float) -> str:
    if timeout <= 0:
        return f"timeout must be more than 0, not {timeout:g}"
    return (
        f"timeout counts seconds, and {timeout:g} looks like milliseconds; write"
        f" {timeout / 1_000:g}"
    )


def _from_settings(
    groups: Mapping[str, tuple[HookGroupSettings, ...]], source: str
) -> Iterator[HookSpec]:
    for event, entries in groups.items():
        for group in entries:
            for hook in group.hooks:
                yield HookSpec(
                    event=HookEvent(event),
                    matcher=group.matcher,
                    command=hook.command,
                    timeout_s=hook.timeout or DEFAULT_TIMEOUT_S,
                    source=source,
                )


def _from_claude(path: Path, source: str, problems: list[str]) -> Iterator[HookSpec]:
    """Hooks of a file that another program owns: what is wrong in it is reported, never fatal."""
    try:
        if not path.is_file():
            return
        with path.open("rb") as file:
            data = msgspec.json.decode(file.read(_MAX_BYTES))
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        problems.append(f"without the hooks of {source}: it cannot be read ({error})")
        return
    found = data.get("hooks") if isinstance(data, dict) else None
    if not isinstance(found, dict) or data.get("disableAllHooks") is True:
        return
    for event, entries in found.items():
        for entry in entries if isinstance(entries, list) else [entries]:
            try:
                group, timeouts = _claude_group(entry)
            except msgspec.ValidationError as error:
                problems.append(f"without a {event} hook ({source}): {error}")
                continue
            if problem := hook_problem(event, group):
                problems.append(f"without a {event} hook ({source}): {problem}")
                continue
            problems += [f"{event} hook ({source}): {_timeout_problem(t)}" for t in timeouts]
            yield from _from_settings({event: (group,)}, source)


def _claude_group(entry: Any) -> tuple[HookGroupSettings, list[float]]:
    """An entry, and its timeouts that were written in milliseconds. Unknown fields are ignored."""
    group = msgspec.convert(entry, _ClaudeGroup)
    wrong = [h.timeout for h in group.hooks if h.timeout and h.timeout >= MAX_TIMEOUT_S]
    hooks = [
        {
            "type": hook.type,
            "command": hook.command,
            "timeout": hook.timeout / 1_000
            if hook.timeout in wrong and hook.timeout
            else hook.timeout,
        }
        for hook in group.hooks
    ]
    return msgspec.convert({"matcher": group.matcher, "hooks": hooks}, HookGroupSettings), wrong


class _ClaudeHook(msgspec.Struct):
    type: str = "command"
    command: str = ""
    timeout: float | None = None


class _ClaudeGroup(msgspec.Struct):
    hooks: list[_ClaudeHook]
    matcher: str = ""
