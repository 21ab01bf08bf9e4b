"""Agent files: parse a file of retinue or of another coding agent as a profile.

A file uses the field names of the program that it was written for. Fields with a meaning here are
applied, and never grant more than they say. All other fields are reported and change nothing.
"""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec

from retinue.config.agent_tools import KnownNames, NotAnAgent, ToolResolver, clean_name
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
from retinue.config.tool_translation import Dialect
from retinue.domain.budget import Budget
from retinue.domain.grant import Mode
from retinue.domain.paths import is_project_file
from retinue.domain.sampling import Sampling
from retinue.errors import ContractError

MAX_DESCRIPTION = 1_000
MAX_PROBLEM = 240

LIMIT_KEYS = {normalize_key(field): field for field in BudgetSettings.__struct_fields__}
TURN_KEYS = ("maxturns", "steps", "maxsteps")
SAMPLING_KEYS = {
    "temperature": "temperature", "topp": "top_p", "seed": "seed", "effort": "effort",
    "reasoningeffort": "effort", "modelreasoningeffort": "effort",
}  # fmt: skip
PROMPT_KEYS = ("developerinstructions", "instructions", "systemprompt", "prompt")
SUPPORTED_KEYS = frozenset({
    "name", "description", "tools", "allowedtools", "disallowedtools", "permission",
    "permissionmode", "sandboxmode", "readonly", "mode", "model", "pool", "kind", "hidden",
    "disable", "disabled", "skills", "timeoutmins", *SAMPLING_KEYS, *TURN_KEYS, *PROMPT_KEYS,
})  # fmt: skip
RETINUE_KEYS = frozenset({
    "bootstrapfiles", "systempromptfile", "write", "spawns", "webhosts", "budget", *LIMIT_KEYS,
})  # fmt: skip
# Keys for display, and keys whose only useful value is the default here.
COSMETIC_KEYS = frozenset({
    "argumenthint", "author", "background", "category", "color", "displayname", "emoji",
    "icon", "infer", "license", "nicknamecandidates", "tags", "target", "title",
    "userinvocable", "userinvokable", "version", "vibe",
})  # fmt: skip
# Keys without a meaning here. They are known because they end a description of several lines.
IGNORED_KEYS = frozenset({
    "agents", "disablemodelinvocation", "handoffs", "hooks", "isolation", "mcpservers",
    "memory", "variant",
})  # fmt: skip
KNOWN_KEYS = SUPPORTED_KEYS | RETINUE_KEYS | COSMETIC_KEYS | IGNORED_KEYS
NON_AGENT_STEMS = ("readme", "agents", "claude", "gemini", "index")


class AgentFile(msgspec.Struct, frozen=True, kw_only=True):
    """An agent file that was parsed. `problems` are the fields that were not applied."""

    name: str
    dialect: Dialect
    spec: ProfileSettings
    problems: tuple[str, ...] = ()


def parse_agent_file(text: str, *, file: str, dialect: Dialect, names: KnownNames) -> AgentFile:
    """Parse the agent in a file named `file`. Raises nothing but NotAnAgent."""
    name = file.rpartition("/")[2].rpartition(".")[0] or file
    stem = name.removesuffix(".agent")
    if dialect is Dialect.CODEX:
        matter = _parse_toml(text)
    else:
        matter = parse_front_matter(text, known=KNOWN_KEYS, prose=("description", *PROMPT_KEYS))
        if stem.casefold() in NON_AGENT_STEMS and not matter.found:
            raise NotAnAgent
    return _AgentParser(matter, stem, dialect, names).agent()


def one_line(text: str, limit: int) -> str:
    """`text` as one printable line of at most `limit` characters."""
    # Descriptions that other programs generate contain a literal \n.
    words = text.replace("\\n", " ").split()
    line = "".join(letter for letter in " ".join(words) if letter.isprintable())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _parse_toml(text: str) -> FrontMatter:
    try:
        data = tomllib.loads(text.lstrip("\ufeff").replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise NotAnAgent(f"not valid TOML ({one_line(str(error), MAX_PROBLEM)})") from error
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
    """Parser of one file. `_fields` and `_keys` are indexed by normalized keys."""

    def __init__(self, matter: FrontMatter, stem: str, dialect: Dialect, names: KnownNames) -> None:
        # A `Tools:` that begins a sentence of the description must not replace `tools`.
        keys = sorted(matter.fields, key=lambda key: key[:1].islower())
        self._fields = {normalize_key(key): matter.fields[key] for key in keys}
        self._keys = {normalize_key(key): key for key in keys}
        self._matter = matter
        self._stem = stem
        self._dialect = dialect
        self._names = names
        self._problems = list(matter.problems)

    def agent(self) -> AgentFile:
        self._check_is_agent()
        name = clean_name(as_text(self._fields.get("name")) or "") or clean_name(self._stem)
        if not name:
            raise NotAnAgent("it has no name of letters and digits; set `name`")
        resolved = ToolResolver(self._fields, self._dialect, self._names).resolve()
        self._problems += resolved.problems
        description = one_line(as_prose(self._fields.get("description")), MAX_DESCRIPTION)
        instructions = self._instructions() or description
        if not instructions:
            raise NotAnAgent("it has neither a prompt nor a description")
        spec = ProfileSettings(
            description=description or one_line(_first_line(instructions), MAX_DESCRIPTION),
            system_prompt=instructions,
            system_prompt_file=self._prompt_file(),
            bootstrap_files=self._paths("bootstrapfiles"),
            tools=None if resolved.tools is None else tuple(sorted(resolved.tools)),
            model=self._model(),
            mode=self._mode(),
            write=self._write(),
            spawns=resolved.spawns,
            web_hosts=self._paths("webhosts"),
            skills=tuple(as_list(self._fields["skills"])) if "skills" in self._fields else None,
            budget=self._budget(),
            sampling=self._sampling(),
        )
        self._report_unused_keys()
        problems = tuple(one_line(problem, MAX_PROBLEM) for problem in self._problems)
        return AgentFile(name=name, dialect=self._dialect, spec=spec, problems=problems)

    def _check_is_agent(self) -> None:
        if not self._matter.found and self._dialect is not Dialect.RETINUE:
            raise NotAnAgent("it has no fields, such as name and description")
        if any(as_bool(self._fields.get(key)) for key in ("hidden", "disable", "disabled")):
            raise NotAnAgent
        if (as_text(self._fields.get("kind")) or "local").casefold() == "remote":
            raise NotAnAgent("it is a remote agent, and remote agents cannot be spawned")

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

    def _model(self) -> str | None:
        value = self._fields.get("model", self._fields.get("pool"))
        wanted = [name for name in as_list(value) if as_text(name)]
        for name in wanted:
            if name.casefold() in ("inherit", "default", "auto"):
                return None
            if found := self._route(name):
                return found
        if wanted:
            self._problem(
                f"model {wanted[0]!r} is not in your [models]; the parent's model is used"
            )
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
            self._problem(f"permissionMode {permission} is ignored: a file grants no rights")
        if sandbox not in (None, "workspace-write"):
            self._problem(f"sandbox_mode {sandbox} is ignored: a file grants no rights")
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

    def _paths(self, key: str) -> tuple[str, ...] | None:
        if self._dialect is not Dialect.RETINUE or key not in self._fields:
            return None
        kept = []
        for path in as_list(self._fields[key]):
            if is_project_file(path):
                kept.append(path)
            else:
                self._problem(f"{path}: left out, because it is outside the project")
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

    def _sampling(self) -> Sampling:
        chosen: dict[str, Any] = {}
        for key, field in SAMPLING_KEYS.items():
            if key not in self._fields:
                continue
            value = self._fields[key]
            amount: Any = as_prose(value).strip().lower() if field == "effort" else as_number(value)
            if isinstance(amount, float) and field == "seed":
                amount = int(amount)
            try:
                if amount is None:
                    raise ContractError(f"{as_prose(value)[:40]!r} is no number")
                Sampling(**{field: amount}).check()
            except ContractError as error:
                self._problem(f"{self._keys[key]} is not used: {error}")
            else:
                chosen[field] = amount
        return Sampling(**chosen)

    def _report_unused_keys(self) -> None:
        used = SUPPORTED_KEYS | RETINUE_KEYS if self._dialect is Dialect.RETINUE else SUPPORTED_KEYS
        rest = [key for name, key in self._keys.items() if name not in used | COSMETIC_KEYS]
        if rest:
            self._problem(f"not used here: {', '.join(rest)}")

    def _problem(self, text: str) -> None:
        self._problems.append(text)


def _first_line(text: str) -> str:
    line = next((line for line in text.split("\n") if line.strip(" #*\t")), "")
    return line.strip(" #*\t")
