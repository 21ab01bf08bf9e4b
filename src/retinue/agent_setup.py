"""Sets up what agents get in a project: sandbox, tools, roles, and files that they cannot write.

A runtime and its hosts share this module, so that the same settings have the same effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from retinue.config.agent_folders import read_text
from retinue.config.environment import Environment
from retinue.config.settings import MergedSettings
from retinue.config.web_search import search_settings
from retinue.domain.approval import Rules, parse_rule
from retinue.domain.permissions import OPTIONAL_TOOLS, Effects
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.role import Role, find_role
from retinue.domain.skill import Skill
from retinue.domain.tool_aliases import TOOL_ALIASES
from retinue.domain.tool_names import is_mcp_tool
from retinue.domain.web_hosts import canonical_hosts
from retinue.ports.sandbox import ProcessSandbox
from retinue.ports.tool import Tool
from retinue.project import own_files
from retinue.tools.builtin import builtin_tools
from retinue.tools.delegation import delegation_tools
from retinue.tools.skills import SkillTool


async def find_sandbox_here(
    environment: Environment, *, unconfined: bool, readable: Sequence[str] = ()
) -> ProcessSandbox | None:
    """The strongest sandbox that works here, or None; no confinement only if the user says so.

    Its commands can also read the folders `readable`.
    """
    if unconfined:
        from retinue.sandbox.unconfined import Unconfined

        return Unconfined(environment.for_commands())
    from retinue.sandbox.selection import select_sandbox

    cache = str(environment.cache_dir)
    selected = await select_sandbox(environment.for_commands(), readable=readable, cache=cache)
    return selected.sandbox


def select_roles(configured: Mapping[str, Role], names: Iterable[str] | None) -> Mapping[str, Role]:
    """The roles with these names; all if there are no names."""
    return configured if names is None else {n: find_role(configured, n) for n in names}


def user_rules(settings: MergedSettings) -> Rules:
    return Rules(
        allow=tuple(map(parse_rule, settings.allow)), deny=tuple(map(parse_rule, settings.deny))
    )


def rule_notes(rules: Rules, effects: Effects) -> list[str]:
    """A line for each rule that denies nothing, because no tool has its name."""
    known = {*effects, *TOOL_ALIASES, *OPTIONAL_TOOLS}
    return [
        f"the rule {str(rule)!r} denies nothing: no tool is called {rule.tool!r}"
        for rule in rules.deny
        if not is_mcp_tool(rule.tool) and not any(map(rule.covers_tool, known))
    ]


def protected_files(
    root: Path, environment: Environment, rules: Rules, *, writable_install: bool
) -> ProtectedPaths:
    """The files that agents cannot write, or not read, whatever their contracts say."""
    return msgspec.structs.replace(
        own_files(root, environment, writable_install=writable_install),
        project=str(root),
        rules=rules.denied_paths,
        unreadable=rules.unreadable_paths,
    )


def skill_tools(skills: Mapping[str, Skill]) -> tuple[Tool, ...]:
    """Without skills there is no tool: it would cost tokens."""
    return (SkillTool(skills, read=read_text),) if skills else ()


async def retinue_tools(
    settings: MergedSettings,
    roles: Mapping[str, Role],
    environment: Environment,
    *,
    skills: Mapping[str, Skill],
    test: str,
    web_hosts: tuple[str, ...],
    shell: bool,
    check_sandbox: Callable[[], Awaitable[ProcessSandbox | None]],
    ask: bool,
) -> tuple[Tool, ...]:
    """Retinue's own tools. One that cannot work here is left out: it would cost tokens.

    `test` is the project's test command, or "".
    """
    tests = bool(test) and await check_sandbox() is not None
    return (
        *builtin_tools(shell=shell, tests=tests, ask=ask),
        *web_tools(settings, web_hosts, environment),
        *skill_tools(skills),
        *(delegation_tools(roles) if settings.delegation else ()),
    )


def web_tools(
    settings: MergedSettings, hosts: tuple[str, ...], environment: Environment
) -> tuple[Tool, ...]:
    """The web tools that the user has configured; without any, nothing is imported."""
    search = search_settings(settings.web_search, environment)
    if not hosts and search is None:
        return ()
    from retinue.tools.web.fetcher import WebClient
    from retinue.tools.web.search import search_provider
    from retinue.tools.web.tools import web_tools as make_tools

    return make_tools(
        WebClient(
            private_hosts=canonical_hosts(settings.web_private_hosts),
            proxy_for=environment.proxy_for,
        ),
        fetch=bool(hosts),
        provider=None if search is None else search_provider(search),
    )
