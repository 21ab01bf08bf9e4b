"""Agent files: one file of ours or of another tool, as a profile.

A file says what its author wished for in the words of the tool it was written for. What has a
meaning here is taken over, never as more than it said; the rest is reported and changes nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from retinue.config.frontmatter import (
    FrontMatter,
    Value,
    as_bool,
    as_list,
    as_number,
    as_prose,
    as_text,
    normalize_key,
    parse_front_matter,
)
from retinue.config.model_routes import PROVIDERS
from retinue.config.settings import BudgetSettings, ProfileSettings
from retinue.config.tool_translation import (
    BUILTIN_TOOLS,
    EVERYTHING,
    PERMISSION_NAMES,
    SPAWN,
    Dialect,
    our_names,
    remove_denied,
    split_pattern,
    translate_allowed,
    translate_denied,
)
from retinue.domain.budget import Budget
from retinue.domain.grant import Mode
from retinue.domain.paths import inside
from retinue.errors import ContractError

MAX_NAME = 64
MAX_DESCRIPTION = 1_000
MAX_PROBLEM = 240

LIMIT_KEYS = {normalize_key(field): field for field in BudgetSettings.__struct_fields__}
TURN_KEYS = ("maxturns", "steps", "maxsteps")
PROMPT_KEYS = ("developerinstructions", "instructions", "systemprompt", "prompt")
SUPPORTED_KEYS = frozenset({
    "name", "description", "tools", "allowedtools", "disallowedtools", "permission",
    "permissionmode", "sandboxmode", "readonly", "mode", "model", "pool", "kind", "hidden",
    "disable", "disabled", "timeoutmins", *TURN_KEYS, *PROMPT_KEYS,
})  # fmt: skip
RETINUE_KEYS = frozenset({
    "bootstrapfiles", "systempromptfile", "write", "spawns", "budget", *LIMIT_KEYS,
})  # fmt: skip
# What is for people to look at, or says what goes without saying here.
COSMETIC_KEYS = frozenset({
    "argumenthint", "author", "background", "category", "color", "displayname", "emoji",
    "icon", "infer", "license", "nicknamecandidates", "tags", "target", "title",
    "userinvocable", "userinvokable", "version", "vibe",
})  # fmt: skip
# Keys that mean nothing here, and yet end a description that runs on over several lines.
IGNORED_KEYS = frozenset({
    "agents", "disablemodelinvocation", "effort", "handoffs", "hooks", "isolation",
    "mcpservers", "memory", "modelreasoningeffort", "reasoningeffort", "skills",
    "temperature", "topp", "variant",
})  # fmt: skip
KNOWN_KEYS = SUPPORTED_KEYS | RETINUE_KEYS | COSMETIC_KEYS | IGNORED_KEYS
NON_AGENT_STEMS = ("readme", "agents", "claude", "gemini", "index")

_INVALID = re.compile(r"[^A-Za-z0-9_.:-]+")


class KnownNames(msgspec.Struct, frozen=True, kw_only=True):
    """What names in a file can stand for.

    `tools` has `mcp__SERVER__*` for each MCP server there is.
    `models` are the user's short names for models, in lower case. `roles` are the roles that an
    agent with a right to delegate may employ.
    """

    tools: Collection[str] = BUILTIN_TOOLS
    models: Mapping[str, str] = {}
    roles: tuple[str, ...] = ()


class AgentFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    dialect: Dialect
    spec: ProfileSettings
    problems: tuple[str, ...] = ()


class UnusableFile(msgspec.Struct, frozen=True):
    """No agent can be made of the file, and why. Without a reason, none was meant."""

    why: str = ""


class _NotAnAgent(Exception):
    """Caught in this module; the message becomes `UnusableFile.why`."""


def parse_agent_file(
    text: str, *, file: str, dialect: Dialect, names: KnownNames
) -> AgentFile | UnusableFile:
    """The agent in a file called `file`. Never raises, whatever the text."""
    stem = _stem(file)
    try:
        if dialect is Dialect.CODEX:
            matter = _parse_toml(text)
        else:
            matter = parse_front_matter(text, known=KNOWN_KEYS, prose=("description", *PROMPT_KEYS))
            if stem.casefold() in NON_AGENT_STEMS and not matter.found:
                return UnusableFile()
        return _AgentParser(matter, stem, dialect, names).agent()
    except _NotAnAgent as reason:
        return UnusableFile(str(reason))


def clean_name(name: str) -> str:
    return _INVALID.sub("-", name).strip("-.:")[:MAX_NAME]


def one_line(text: str, limit: int) -> str:
    """`text` for a line of a list: no breaks, nothing that a terminal would obey."""
    # Descriptions made by another tool have \n written out in them.
    words = text.replace("\\n", " ").split()
    line = "".join(letter for letter in " ".join(words) if letter.isprintable())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _stem(file: str) -> str:
    name = file.rpartition("/")[2].rpartition(".")[0] or file
    return name.removesuffix(".agent")


def _parse_toml(text: str) -> FrontMatter:
    try:
        data = tomllib.loads(text.lstrip("\ufeff").replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise _NotAnAgent(f"not valid TOML ({one_line(str(error), MAX_PROBLEM)})") from error
    return FrontMatter({key: _value(value) for key, value in data.items()}, "", found=bool(data))


def _value(value: Any) -> Value:
    match value:
        case bool():
            return "true" if value else "false"
        case list():
            return [str(item) for item in value if not isinstance(item, list | dict)]
        case dict():
            return {k: str(v) for k, v in value.items() if not isinstance(v, list | dict)}
        case _:
            return str(value)


class _AgentParser:
    """One file while it is read: its fields by their plain names, and the problems so far."""

    def __init__(self, matter: FrontMatter, stem: str, dialect: Dialect, names: KnownNames) -> None:
        # A `Tools:` that was a sentence of the description must not replace the real one.
        keys = sorted(matter.fields, key=lambda key: key[:1].islower())
        self._fields = {normalize_key(key): matter.fields[key] for key in keys}
        self._keys = {normalize_key(key): key for key in keys}
        self._matter = matter
        self._stem = stem
        self._dialect = dialect
        self._names = names
        self._problems = list(matter.problems)

    def agent(self) -> AgentFile:
        self._check_that_it_is_one()
        name = clean_name(as_text(self._fields.get("name")) or "") or clean_name(self._stem)
        if not name:
            raise _NotAnAgent("it has no name of letters and digits; set `name`")
        tools, spawns = self._tools()
        description = one_line(as_prose(self._fields.get("description")), MAX_DESCRIPTION)
        instructions = self._instructions() or description
        if not instructions:
            raise _NotAnAgent("it has neither a prompt nor a description")
        spec = ProfileSettings(
            description=description or one_line(_first_line(instructions), MAX_DESCRIPTION),
            system_prompt=instructions,
            system_prompt_file=self._prompt_file(),
            bootstrap_files=self._bootstrap_files(),
            tools=None if tools is None else tuple(sorted(tools)),
            model=self._model(),
            mode=self._mode(),
            write=self._write(),
            spawns=spawns,
            budget=self._budget(),
        )
        self._report_the_rest()
        problems = tuple(one_line(problem, MAX_PROBLEM) for problem in self._problems)
        return AgentFile(name=name, dialect=self._dialect, spec=spec, problems=problems)

    def _check_that_it_is_one(self) -> None:
        if not self._matter.found and self._dialect is not Dialect.RETINUE:
            raise _NotAnAgent("it has no fields, such as name and description")
        if any(as_bool(self._fields.get(key)) for key in ("hidden", "disable", "disabled")):
            raise _NotAnAgent("")
        if (as_text(self._fields.get("kind")) or "local").casefold() == "remote":
            raise _NotAnAgent("it stands for a remote agent, and those cannot be employed")

    def _instructions(self) -> str:
        if self._matter.body:
            return self._matter.body
        for key in PROMPT_KEYS:
            if text := as_prose(self._fields.get(key)).strip():
                if text.startswith(("{file:", "@")):
                    self._problem(f"{self._keys[key]}: the file {text} is not read")
                    continue
                return text
        return ""

    def _tools(self) -> tuple[frozenset[str] | None, tuple[str, ...] | None]:
        """The tools and the roles it may employ; None: as many as the parent, as few as any."""
        tools, delegates, spawns = self._allowed()
        gone = self._forbidden() | self._not_permitted()
        delegates = delegates or self._permitted_to_delegate()
        if gone - {SPAWN}:
            tools = remove_denied(self._names.tools if tools is None else tools, gone)
            if not tools:
                raise _NotAnAgent("none of its tools is left")
        if not delegates or SPAWN in gone:
            return tools, self._spawns()
        employed = spawns or self._names.roles
        return tools, self._spawns() or tuple(clean_name(name) for name in employed)

    def _allowed(self) -> tuple[frozenset[str] | None, bool, tuple[str, ...] | None]:
        value = self._fields.get("tools", self._fields.get("allowedtools"))
        if isinstance(value, dict):
            return self._switched(value)
        if value is None or (isinstance(value, str) and as_text(value) is None):
            return None, False, None
        names = self._listed(value)
        if not names:
            return frozenset(), False, None
        found = translate_allowed(names, self._dialect, known=self._names.tools)
        if found.tools is not None and not found.tools and not found.delegates:
            raise _NotAnAgent(f"none of its tools is known here: {', '.join(names)}")
        self._problems += found.problems
        # An agent that only delegates has no tool of its own, which is fine.
        return found.tools, found.delegates, found.spawns

    def _listed(self, value: Value) -> list[str]:
        names = as_list(value)
        if isinstance(value, str) and len(names) == 1 and "(" not in value:
            words = value.split()
            whole = names[0].casefold() in EVERYTHING or self._ours(names[0])
            if len(words) > 1 and not whole:
                return words  # Read Grep Glob
        return names

    def _switched(
        self, switches: dict[str, Value]
    ) -> tuple[frozenset[str] | None, bool, tuple[str, ...] | None]:
        """`tools` as a mapping: what is off is off; what is on matters if nothing else is off."""
        off = [key for key, value in switches.items() if _is_off(value)]
        on = [key for key in switches if key not in off and key != "*"]
        found = translate_allowed(on, self._dialect, known=self._names.tools)
        self._problems += found.problems
        if not off or "*" in off:
            if not found.tools and not found.delegates:
                raise _NotAnAgent(
                    f"none of its tools is known here: {', '.join(on) or 'all are off'}"
                )
            return found.tools, found.delegates, found.spawns
        gone = translate_denied(off, self._dialect, known=self._names.tools)
        if not gone - {SPAWN}:
            return None, found.delegates, found.spawns
        left = remove_denied(self._names.tools, gone)
        if not left:
            raise _NotAnAgent("all of its tools are off")
        return left, found.delegates, found.spawns

    def _forbidden(self) -> frozenset[str]:
        names = as_list(self._fields.get("disallowedtools"))
        for name in names:
            word, pattern = split_pattern(name)
            if pattern is not None and self._ours(word):
                self._problem(f"{name} is forbidden: without {word} as a whole")
        return translate_denied(names, self._dialect, known=self._names.tools)

    def _not_permitted(self) -> frozenset[str]:
        """What opencode's `permission` takes away. Nobody can be asked, so `ask` is a no."""
        value = self._fields.get("permission")
        if not isinstance(value, dict):
            word = (as_text(value) or "allow").casefold()
            if word != "allow":
                raise _NotAnAgent(f"permission {word}: none of its tools is left")
            return frozenset()
        permitted: set[str] = set()
        gone: set[str] = set()
        for key, rule in value.items():
            if key == "*":
                continue
            ours = set(our_names(key, self._dialect, self._names.tools, PERMISSION_NAMES))
            verdict = _decision(rule)
            if verdict == "allow":
                permitted |= ours
                if not ours:
                    self._problem(f"unknown tool in permission: {key}")
                continue
            gone |= ours
            if ours and verdict == "ask":
                self._problem(f"{key}: ask: left out, for a child has nobody to ask")
            elif ours and verdict == "by pattern":
                self._problem(f"{key}: left out, for its patterns would not be kept to")
        if "*" in value and _decision(value["*"]) != "allow":
            gone |= {*self._names.tools, SPAWN} - permitted
        return frozenset(gone)

    def _permitted_to_delegate(self) -> bool:
        value = self._fields.get("permission")
        return isinstance(value, dict) and _decision(value.get("task", "")) == "allow"

    def _spawns(self) -> tuple[str, ...] | None:
        if self._dialect is not Dialect.RETINUE or "spawns" not in self._fields:
            return None
        return tuple(clean_name(name) for name in as_list(self._fields["spawns"]))

    def _model(self) -> str | None:
        value = self._fields.get("model", self._fields.get("pool"))
        wanted = [name for name in as_list(value) if as_text(name)]
        for name in wanted:
            if name.casefold() in ("inherit", "default", "auto"):
                return None
            if found := self._route(name):
                return found
        if wanted:
            self._problem(f"model {wanted[0]!r} is not in your [models]: it gets the parent's")
        return None

    def _route(self, name: str) -> str | None:
        if self._dialect is Dialect.RETINUE and name.partition(":")[0] in PROVIDERS:
            return name
        bare = name.partition("(")[0].strip()
        for spelling in (name, bare, bare.rpartition("/")[2]):
            if found := self._names.models.get(spelling.casefold()):
                return found
        return None

    def _mode(self) -> Mode | None:
        if as_bool(self._fields.get("readonly")):
            return Mode.PLAN
        permission = as_text(self._fields.get("permissionmode"))
        sandbox = as_text(self._fields.get("sandboxmode"))
        if permission == "plan" or sandbox == "read-only":
            return Mode.PLAN
        if permission not in (None, "default"):
            self._problem(f"permissionMode {permission}: a file gives no rights")
        if sandbox not in (None, "workspace-write"):
            self._problem(f"sandbox_mode {sandbox}: a file gives no rights")
        mode = as_text(self._fields.get("mode"))
        if self._dialect is not Dialect.RETINUE or mode in (None, "primary", "subagent", "all"):
            return None
        try:
            return Mode(mode or "")
        except ValueError:
            self._problem(f"unknown mode {mode!r}; there are: {', '.join(Mode)}")
            return None

    def _write(self) -> tuple[str, ...] | None:
        if self._dialect is not Dialect.RETINUE or "write" not in self._fields:
            return None
        value = self._fields["write"]
        allowed = as_bool(value)
        if allowed is not None:
            return None if allowed else ()
        return tuple(as_list(value))

    def _prompt_file(self) -> str | None:
        found = self._paths("systempromptfile")
        return found[0] if found else None

    def _bootstrap_files(self) -> tuple[str, ...] | None:
        return self._paths("bootstrapfiles")

    def _paths(self, key: str) -> tuple[str, ...] | None:
        if self._dialect is not Dialect.RETINUE or key not in self._fields:
            return None
        kept = []
        for path in as_list(self._fields[key]):
            if path.startswith("/") or inside(path, "/") in (None, "."):
                self._problem(f"{path}: left out, for it is not inside the project")
            else:
                kept.append(path)
        return tuple(kept)

    def _budget(self) -> BudgetSettings:
        limits = dict(self._fields)
        if isinstance(budget := limits.pop("budget", None), dict):
            limits |= {normalize_key(key): value for key, value in budget.items()}
        wanted = dict.fromkeys(TURN_KEYS, "max_turns") | {"timeoutmins": "timeout_s"}
        if self._dialect is Dialect.RETINUE:
            wanted |= LIMIT_KEYS
        chosen: dict[str, float] = {}
        for key, field in wanted.items():
            if key in limits:
                self._limit(key, field, limits[key], chosen)
        return BudgetSettings(**chosen)  # type: ignore[arg-type]

    def _limit(self, key: str, field: str, value: Value, chosen: dict[str, float]) -> None:
        shown = self._keys.get(key, field)
        amount = as_number(value)
        if amount is None:
            self._problem(f"{shown} is not used: {as_prose(value)[:40]!r} is no number")
            return
        if key == "timeoutmins":
            amount *= 60
        if amount.is_integer() and field not in ("timeout_s", "max_cost_usd"):
            amount = int(amount)
        try:
            Budget(**{field: amount})  # type: ignore[arg-type]
        except ContractError as error:
            self._problem(f"{shown} is not used: {error}")
        else:
            chosen[field] = amount

    def _ours(self, word: str) -> tuple[str, ...]:
        return our_names(word, self._dialect, self._names.tools)

    def _report_the_rest(self) -> None:
        used = SUPPORTED_KEYS | RETINUE_KEYS if self._dialect is Dialect.RETINUE else SUPPORTED_KEYS
        rest = [key for name, key in self._keys.items() if name not in used | COSMETIC_KEYS]
        if rest:
            self._problem(f"not used here: {', '.join(rest)}")

    def _problem(self, text: str) -> None:
        self._problems.append(text)


def _is_off(value: Value) -> bool:
    word = (as_text(value) or "").casefold()
    return as_bool(value) is False or word in ("deny", "ask")


def _decision(rule: Value) -> str:
    """allow, deny or ask; "by pattern" where it depends on what is to be done."""
    if isinstance(rule, dict):
        verdicts = {_decision(value) for value in rule.values() if isinstance(value, str)}
        return verdicts.pop() if len(verdicts) == 1 else "by pattern"
    word = (as_text(rule) or "").casefold()
    if word in ("allow", "ask"):
        return word
    return "allow" if as_bool(rule) else "deny"


def _first_line(text: str) -> str:
    line = next((line for line in text.split("\n") if line.strip(" #*\t")), "")
    return line.strip(" #*\t")
