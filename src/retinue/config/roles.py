"""Roles: the six built-in ones, changed and extended by settings and agent files.

Without the user's trust, a project can define roles and narrow the built-in ones, but not widen
them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path

import msgspec

from retinue.config.agent_files import AgentFile, parse_agent_file
from retinue.config.agent_folders import (
    PROJECT_FOLDERS,
    AgentFolder,
    project_folders,
    read_folder,
    user_folders,
)
from retinue.config.agent_tools import KnownNames, NotAnAgent
from retinue.config.environment import Environment
from retinue.config.mcp_servers import configured_servers
from retinue.config.role_narrowing import narrow_role
from retinue.config.settings import (
    PROJECT_FILE,
    RUN_BUDGET,
    ProfileSettings,
    RoleSettings,
    Settings,
    SettingsLayers,
)
from retinue.config.tool_translation import (
    BUILTIN_TOOLS,
    OTHER_DELEGATION,
    SPAWN,
    Dialect,
    mcp_pattern,
)
from retinue.config.trust import NOT_TRUSTED, TrustDecision, TrustRequest, TrustStore
from retinue.domain.grant import Mode
from retinue.domain.role import BOOTSTRAP_FILES, Role
from retinue.domain.scope import scope
from retinue.domain.tool_aliases import tools_meant
from retinue.domain.tool_names import MCP_PREFIX, select_names, server_slug
from retinue.domain.web_hosts import canonical_hosts
from retinue.errors import ConfigError, ContractError

LEAD_ROLE = Role(
    name="lead",
    description="The root of a run: does the user's task.",
    instructions=(
        "You are a coding agent at work in the user's project. Do the task with the tools, look"
        " before you change, check what you claim."
    ),
    budget=RUN_BUDGET,
)

USER_SETTINGS = "settings"
WIDENED_ROLE = "role"


class RoleCatalogue(msgspec.Struct, frozen=True):
    """All roles and profiles, and a line for each entry that is not usable."""

    roles: dict[str, Role]
    problems: tuple[str, ...] = ()
    requests: tuple[TrustRequest, ...] = ()
    """Built-in roles that the project wants to widen, trusted or not."""


@cache
def builtin_roles() -> Mapping[str, Role]:
    found: dict[str, Role] = {}
    for item in files(__package__).joinpath("roles").iterdir():
        if item.name.endswith(".toml"):
            name = item.name.removesuffix(".toml")
            spec = msgspec.convert(tomllib.loads(item.read_text("utf-8")), RoleSettings)
            profile = _as_profile(spec)
            blank = Role(name=name, description="", instructions="")
            found[name] = _build_role(name, profile, blank, source="built in", profile=False)
    return dict(sorted(found.items()))


def load_roles(
    layers: SettingsLayers,
    project: Path,
    environment: Environment,
    *,
    tools: Iterable[str] = (),
    servers: Iterable[str] | None = None,
    trust: bool | None = None,
) -> RoleCatalogue:
    """Load the built-in roles, those of the settings, and the agent files of all folders.

    If two have the same name, the user's wins over the project's, a setting over a file, and an
    earlier folder over a later one; the other is reported in `problems`. `tools` are the names of
    tools that do not come with retinue, `servers` the names of MCP servers, by default of all that
    are configured. `trust` says whether the project may widen built-in roles, by default what the
    user has approved.
    """
    if servers is None:
        servers = [server.name for server in configured_servers(layers, project).servers]
    of_servers = (f"{MCP_PREFIX}{server_slug(name)}__*" for name in servers)
    names = KnownNames(
        tools=frozenset({*BUILTIN_TOOLS, *tools, *of_servers}),
        models={
            **{name.casefold(): name for name in layers.user.pools},
            **{name.casefold(): model for name, model in layers.user.models.items()},
        },
        roles=tuple(builtin_roles()),
    )
    decision = TrustStore(environment.trust_dir).decision(project)
    builtin = {name: _with_budget(role, layers) for name, role in builtin_roles().items()}
    blank = _with_budget(Role(name="", description="", instructions=""), layers)
    builder = _CatalogueBuilder(names, decision, trust, builtin, blank)
    user_agent_folders = user_folders(environment)
    builder.add_settings(layers.user, USER_SETTINGS)
    builder.add_folders(user_agent_folders)
    builder.add_settings(layers.project, PROJECT_FILE)
    # In the home directory the project's folders are the user's.
    seen = {os.path.realpath(folder.path) for folder in user_agent_folders}
    builder.add_folders(f for f in project_folders(project) if os.path.realpath(f.path) not in seen)
    for key in ("models", "endpoints", "pools", "servers", "prices", "report_path", "sampling"):
        if getattr(layers.project, key) != getattr(Settings(), key):
            builder.problems.append(f"{PROJECT_FILE}: {key} counts in the user's own settings only")
    roles = {**builtin, **{name: builder.roles[name] for name in sorted(builder.roles)}}
    return RoleCatalogue(
        {n: _with_defaults(_without_unknown_spawns(r, roles), layers) for n, r in roles.items()},
        tuple(builder.problems),
        tuple(builder.requests),
    )


def _with_budget(role: Role, layers: SettingsLayers) -> Role:
    """`role` with the limits of `[sub_agents]`. A project can only lower limits."""
    budget = layers.user.sub_agents.budget.applied_to(role.budget)
    lower = {
        name: value
        for name, value in layers.project.sub_agents.budget.given().items()
        if (current := getattr(budget, name)) is None or value < current
    }
    if lower:
        budget = msgspec.structs.replace(budget, **lower)
    return role if budget == role.budget else msgspec.structs.replace(role, budget=budget)


def _with_defaults(role: Role, layers: SettingsLayers) -> Role:
    """`role` with what `[sub_agents]` says about things that the role leaves open."""
    user, project = layers.user.sub_agents, layers.project.sub_agents
    prompt = user.system_prompt or project.system_prompt
    files = project.bootstrap_files if user.bootstrap_files is None else user.bootstrap_files
    is_default = role.bootstrap_files == BOOTSTRAP_FILES
    inherits_mode = user.inherit_mode and project.inherit_mode
    return msgspec.structs.replace(
        role,
        instructions="\n\n".join(filter(None, (prompt, role.instructions))),
        bootstrap_files=files if is_default and files is not None else role.bootstrap_files,
        mode=role.mode or (None if inherits_mode else Mode.NORMAL),
        # Only the user's: a project must not send the user's files elsewhere.
        model=role.model or user.model,
    )


class _CatalogueBuilder:
    """Collects roles. The first role with a name wins, so callers add by precedence."""

    def __init__(
        self,
        names: KnownNames,
        decision: TrustDecision,
        trust: bool | None,
        builtin: Mapping[str, Role],
        blank: Role,
    ) -> None:
        """`builtin` and `blank` have what a role of that name, or a new one, does not set."""
        self.roles: dict[str, Role] = {}
        self.problems: list[str] = []
        self.requests: list[TrustRequest] = []
        self._names = names
        self._decision = decision
        self._trust = trust
        self._builtin = builtin
        self._blank = blank

    def add_settings(self, settings: Settings, source: str) -> None:
        for name, spec in settings.roles.items():
            self._add_setting(name, _as_profile(spec), source, profile=False)
        for name, profile in settings.profiles.items():
            self._add_setting(name, profile, source, profile=True)

    def add_folders(self, folders: Iterable[AgentFolder]) -> None:
        for folder in folders:
            for file in read_folder(folder):
                if file.problem:
                    self.problems.append(f"{file.display_path}: {file.problem}")
                    continue
                try:
                    agent = parse_agent_file(
                        file.text, file=file.name, dialect=folder.dialect, names=self._names
                    )
                except NotAnAgent as error:
                    if reason := str(error):
                        self.problems.append(f"{file.display_path}: left out: {reason}")
                else:
                    self._add_file(agent, file.display_path)

    def _add_setting(self, name: str, spec: ProfileSettings, source: str, *, profile: bool) -> None:
        if self._is_taken(name, source):
            return
        base = self._builtin.get(name)
        what = "profile" if profile else "role"
        if base is None and not profile and not spec.system_prompt:
            raise ConfigError(f"{source}: role {name!r}: a new role needs `instructions`.")
        problems: tuple[str, ...] = ()
        if spec.sampling.extra_body and source == PROJECT_FILE:
            problems = ("sampling.extra_body counts in the user's own settings only",)
            own = msgspec.structs.replace(spec.sampling, extra_body={})
            spec = msgspec.structs.replace(spec, sampling=own)
        known = {*self._names.tools, SPAWN, *OTHER_DELEGATION}
        _, unmatched = select_names(sorted(spec.tools or ()), known)
        if unknown := [n for n in unmatched if mcp_pattern(n, self._names.tools) is None]:
            problems += (
                f"unknown tools: {', '.join(unknown)}; there are:"
                f" {', '.join(sorted(self._names.tools))}",
            )
        if spec.tools is not None:
            named = tuple(tools_meant(tool, known) or (tool,) for tool in spec.tools)
            ours = tuple(dict.fromkeys(chain.from_iterable(named)))
            spec = msgspec.structs.replace(spec, tools=ours)
        wanted = spec.model or spec.pool
        model = self._names.models.get(wanted.casefold(), wanted) if wanted else None
        try:
            role = _build_role(
                name,
                msgspec.structs.replace(spec, model=model),
                base or self._blank,
                source=source,
                profile=profile or base is None,
                problems=problems,
            )
            self._add(role, base)
        except ContractError as error:
            raise ConfigError(f"{source}: {what} {name!r}: {error}") from error

    def _add_file(self, agent: AgentFile, source: str) -> None:
        name = agent.name
        base = self._builtin.get(name)
        if base is not None and agent.dialect is not Dialect.RETINUE:
            # Another program's agent must not replace our role of the same name.
            name, base = f"{agent.dialect}:{name}", None
        if self._is_taken(name, source):
            return
        try:
            role = _build_role(
                name,
                agent.spec,
                base or self._blank,
                source=source,
                profile=base is None,
                problems=agent.problems,
            )
            self._add(role, base)
        except ContractError as error:
            self.problems.append(f"{source}: left out: {error}")

    def _add(self, role: Role, base: Role | None) -> None:
        if base is not None and is_project_role(role):
            narrowed, taken = narrow_role(role, base, self._names.tools)
            if not taken or not self._is_trusted(role, taken):
                role = narrowed
            if taken and role is narrowed:
                problem = f"may not {'; '.join(taken)}: {NOT_TRUSTED}"
                role = msgspec.structs.replace(role, problems=(*role.problems, problem))
        self.roles[role.name] = role

    def _is_trusted(self, role: Role, taken: Sequence[str]) -> bool:
        rights = (role.name, role.tools, role.write_scope, role.spawns, role.workspace, role.budget)
        content = msgspec.json.encode(rights)
        effect = f"may {'; '.join(taken)}"
        request = TrustRequest(WIDENED_ROLE, role.name, role.source, effect, content)
        self.requests.append(request)
        return request.digest in self._decision.trusted if self._trust is None else self._trust

    def _is_taken(self, name: str, source: str) -> bool:
        if name not in self.roles:
            return False
        first = self.roles[name].source
        self.problems.append(f"{source}: left out: {first} defines {name!r} already")
        return True


def _without_unknown_spawns(role: Role, roles: Collection[str]) -> Role:
    """Remove unknown roles from `spawns`."""
    unknown = [name for name in role.spawns if name not in roles]
    if not unknown:
        return role
    problem = f"unknown roles in spawns: {', '.join(unknown)}; there are: {', '.join(roles)}"
    spawns = tuple(name for name in role.spawns if name in roles)
    return msgspec.structs.replace(role, spawns=spawns, problems=(*role.problems, problem))


def is_project_role(role: Role) -> bool:
    """Whether the project defines the role, rather than the user."""
    places = (PROJECT_FILE, *(f"{place}/" for place, _ in PROJECT_FOLDERS))
    return role.source.startswith(places)


def _as_profile(spec: RoleSettings) -> ProfileSettings:
    fields = msgspec.structs.asdict(spec)
    return ProfileSettings(system_prompt=fields.pop("instructions"), **fields)


def _build_role(
    name: str,
    spec: ProfileSettings,
    base: Role,
    *,
    source: str,
    profile: bool,
    problems: Collection[str] = (),
) -> Role:
    """Build a role from `spec`. Fields that it does not set come from `base`."""
    what = "profile" if profile else "role"
    files = spec.bootstrap_files
    return Role(
        name=name,
        description=spec.description or base.description or f"The {what} {name}.",
        instructions=spec.system_prompt or base.instructions,
        profile=profile,
        tools=base.tools if spec.tools is None else spec.tools,
        mode=spec.mode or base.mode,
        budget=spec.budget.applied_to(base.budget),
        write_scope=base.write_scope if spec.write is None else scope(*spec.write),
        workspace=spec.workspace or base.workspace,
        spawns=base.spawns if spec.spawns is None else spec.spawns,
        skills=base.skills if spec.skills is None else spec.skills,
        web_hosts=base.web_hosts if spec.web_hosts is None else canonical_hosts(spec.web_hosts),
        model=spec.model or base.model,
        sampling=spec.sampling.over(base.sampling),
        bootstrap_files=BOOTSTRAP_FILES if files is None else files,
        prompt_file=spec.system_prompt_file,
        source=source,
        problems=tuple(problems),
    )
