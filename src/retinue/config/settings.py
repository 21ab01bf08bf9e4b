"""Settings: the keys of a settings file, their defaults, and how two files are combined.

The order is: the user's file, the project's file, environment variables, command line flags. A
project's file can narrow what the user allows and never widen it: a cloned repository must not be
able to give itself rights.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from retinue.domain.budget import Budget, Limits
from retinue.domain.contract import REPORT_PATH_PATTERN, OnConflict, WorkspaceKind
from retinue.domain.grant import Mode
from retinue.domain.mcp_server import Transport
from retinue.domain.price import Price
from retinue.domain.result import OnChildFailure
from retinue.domain.sampling import NO_SAMPLING, Sampling
from retinue.domain.web_hosts import canonical_hosts, intersect_hosts

PROJECT_FILE = "retinue.toml"

RUN_BUDGET = Budget(
    max_tool_calls=100,
    max_turns=200,
    max_tokens=None,
    timeout_s=3_600,
    max_retries=0,
)


class BudgetSettings(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits in a settings file. An unknown key is an error."""


class _AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    description: str = ""
    tools: tuple[str, ...] | None = None
    model: str | None = None
    write: tuple[str, ...] | None = None
    workspace: WorkspaceKind | None = None
    spawns: tuple[str, ...] | None = None
    web_hosts: tuple[str, ...] | None = None
    skills: tuple[str, ...] | None = None
    budget: BudgetSettings = BudgetSettings()
    sampling: Sampling = NO_SAMPLING


class RoleSettings(_AgentSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    instructions: str = ""


class ProfileSettings(_AgentSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sub-agent that the user defines. A field that is not set has the default of any child.

    The prompt consists of `bootstrap_files`, then `system_prompt_file` (both are files of the
    project), then `system_prompt`. `pool` is another name for `model`.
    """

    system_prompt: str = ""
    system_prompt_file: str | None = None
    bootstrap_files: tuple[str, ...] | None = None
    pool: str | None = None
    mode: Mode | None = None


class SubAgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults for all children. A role or profile overrides them.

    `system_prompt` comes before the instructions of a role. Without `inherit_mode`, a child whose
    role sets no mode works in `normal` mode at most.
    """

    budget: BudgetSettings = BudgetSettings()
    system_prompt: str = ""
    bootstrap_files: tuple[str, ...] | None = None
    inherit_mode: bool = True
    model: str | None = None


class PoolStrategy(StrEnum):
    """Which model a pool asks first: by free capacity, or the first with any in list order."""

    WEIGHTED = "weighted"
    ORDER = "order"


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models that can replace each other. `weights` has one entry for each of `endpoints`."""

    endpoints: tuple[str, ...]
    strategy: PoolStrategy = PoolStrategy.WEIGHTED
    weights: tuple[float, ...] = ()


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one model server. Agents wait `patience_s` for a server that is down.

    Its key is in the variable `key_variable`, or is what `key_command` prints. With
    `one_hour_cache`, Anthropic's servers keep prompts for an hour instead of five minutes. A
    timeout that is not set depends on the server: 900 s in the cloud, 120 s elsewhere.
    """

    slots: int | None = None
    key_variable: str = ""
    key_command: str = ""
    one_hour_cache: bool = False
    patience_s: float = 120.0
    first_byte_timeout_s: float | None = None
    idle_timeout_s: float | None = None


class McpServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server: a `command` with `args`, `env` and `cwd`, or a `url` with `headers`.

    `${NAME}` is replaced by an environment variable, `${RETINUE_PROJECT}` by the project's path.
    A server of the user runs in the home directory unless `cwd` is set; `cwd` is relative to the
    project.

    Without `command` and `url`, the other fields apply to the project's server of that name.
    `tools` are the tools to offer, `read` the tools that change nothing; both may be patterns. With
    `trust_hints`, the server itself says which tools change nothing. `sandbox` says whether it runs
    in the sandbox: by default a project's server does, and the user's does not. `network` gives it
    network there. `read`, `trust_hints`, `sandbox` and `network` count only in the user's file.
    """

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    type: Transport | None = None
    headers: dict[str, str] = {}
    tools: tuple[str, ...] | None = None
    read: tuple[str, ...] = ()
    trust_hints: bool = False
    sandbox: bool | None = None
    network: bool = False
    timeout_s: float | None = None
    start_timeout_s: float | None = None
    enabled: bool = True


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where children run. `address` is what `--cluster` says if it is left out.

    Only nodes with all `labels` have a host, whose process gets the variables of `environment`.
    `resources` are what a child of a role takes of its node, by role and by the names that Ray has
    for them. Processes of this machine have neither labels nor resources.
    """

    address: str | None = None
    labels: dict[str, str] = {}
    children_per_node: int | None = None
    """Children at work on one host. Children that wait for their own children do not count."""
    resources: dict[str, dict[str, float]] = {}
    environment: dict[str, str] = {}


class HookCommandSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that runs on an event. `timeout` counts seconds, as in Claude Code."""

    command: str
    type: str = "command"
    timeout: float | None = None


class HookGroupSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Commands for the events that `matcher` covers: names of tools, or a regular expression."""

    hooks: tuple[HookCommandSettings, ...]
    matcher: str = ""


class Theme(StrEnum):
    AUTO = "auto"
    LIGHT = "light"
    DARK = "dark"
    TERMINAL = "terminal"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One settings file. `budget` limits a whole run. `models` are short names for models."""

    model: str | None = None
    mode: Mode | None = None
    max_concurrent: int | None = None
    max_depth: int | None = None
    budget: BudgetSettings = BudgetSettings()
    sampling: Sampling = NO_SAMPLING
    """For agents with the default model, unless their role says otherwise."""
    sub_agents: SubAgentSettings = SubAgentSettings()
    roles: dict[str, RoleSettings] = {}
    profiles: dict[str, ProfileSettings] = {}
    models: dict[str, str] = {}
    endpoints: tuple[str, ...] = ()
    """Addresses to which model names may route, and which are sent the user's key."""
    pools: dict[str, PoolSettings] = {}
    servers: dict[str, EndpointSettings] = {}
    """Model servers by address, such as http://127.0.0.1:8080."""
    prices: dict[str, Price] = {}
    """By model name, in US dollars per million tokens."""
    mcp: dict[str, McpServerSettings] = {}
    web_hosts: tuple[str, ...] | None = None
    """Hosts that agents may fetch from, such as `docs.python.org` and `*.readthedocs.io`."""
    web_private_hosts: tuple[str, ...] = ()
    """Hosts of `web_hosts` that may have a private address, such as one in the local network."""
    web_search: str | None = None
    """The search provider: `searxng:http://HOST:PORT`, `brave` or `tavily`."""
    hooks: dict[str, tuple[HookGroupSettings, ...]] = {}
    """By event, in the format of Claude Code. Hooks of the project need the user's trust."""
    delegation: bool = True
    allow: tuple[str, ...] = ()
    """Calls that need no approval, such as `run_command(git log *)`."""
    deny: tuple[str, ...] = ()
    """Calls that are always refused. It takes precedence over `allow`."""
    shell: bool = True
    """Whether agents may run shell commands at all."""
    cache: bool = True
    discovery: bool = True
    """Whether the default ports of this machine are probed when no model is named."""
    silence_s: float | None = None
    warn_at_calls: int | None = None
    pause_at_calls: int | None = None
    ask_above_tokens: int | None = None
    """A plan or fan-out that is expected to use more needs your approval."""
    ask_above_usd: float | None = None
    report_path: str = REPORT_PATH_PATTERN
    notify_after_s: float = 20.0
    """A command that took longer rings the bell when it ends or asks; 0 never rings."""
    theme: Theme = Theme.AUTO
    """Colours of the chat. `auto` chooses from the background of the terminal."""
    keep_journals_days: float = 180.0
    """Age after which `retinue clean` prunes the journal of a run to its outcome."""
    cluster: ClusterSettings = ClusterSettings()
    store: str | None = None
    """Postgres address of the journals and memories; without one, they are in the project."""
    checks: tuple[str, ...] = ()
    """Commands that must succeed on a child's work before it is merged."""
    test: str = ""
    """The command that runs the project's tests. One of the project needs the user's trust."""
    on_conflict: OnConflict | None = None
    on_child_failure: OnChildFailure | None = None


class MergedSettings(Settings, frozen=True, kw_only=True):
    """The user's settings, narrowed by the project's. A setting that is in neither has its
    default."""

    mode: Mode = Mode.NORMAL
    web_hosts: tuple[str, ...] = ()
    max_concurrent: int = 3
    max_depth: int = 2
    silence_s: float = 120.0
    warn_at_calls: int = 60
    pause_at_calls: int = 80
    ask_above_tokens: int = 5_000_000
    ask_above_usd: float = 1.0
    on_conflict: OnConflict = OnConflict.FAIL
    on_child_failure: OnChildFailure = OnChildFailure.ERROR


class SettingsLayers(msgspec.Struct, frozen=True):
    """The user's settings and the project's. They are separate because trust differs."""

    user: Settings
    project: Settings
    directory: str = ""
    """The project's directory; "" is the current one."""

    @property
    def merged(self) -> MergedSettings:
        return narrow_settings(self.user, self.project)

    def for_hosts(self) -> SettingsLayers:
        """Without what hosts do not need, which may hold secrets."""
        user, project = (
            msgspec.structs.replace(one, mcp={}, hooks={}, cluster=ClusterSettings(), store=None)
            for one in (self.user, self.project)
        )
        return SettingsLayers(user, project, self.directory)


_LOWER_WINS = (
    "max_concurrent", "max_depth", "silence_s", "warn_at_calls", "pause_at_calls",
    "ask_above_tokens", "ask_above_usd",
)  # fmt: skip


def narrow_settings(user: Settings, project: Settings) -> MergedSettings:
    """The user's settings, narrowed by the project's."""
    given = {k: v for k, v in msgspec.structs.asdict(user).items() if v is not None}
    mine = MergedSettings(**given)
    mode = min(mine.mode, project.mode or mine.mode, key=lambda m: m.rank)
    numbers = {name: _lower(getattr(mine, name), getattr(project, name)) for name in _LOWER_WINS}
    limits, theirs = user.budget.given(), project.budget.given()
    lower = {k: _lower(v, limits.get(k, getattr(RUN_BUDGET, k))) for k, v in theirs.items()}
    # A field that is not listed here is for the user alone to decide. For example, a project that
    # could define `sonnet` in `models` could send the user's work to another server.
    return msgspec.structs.replace(
        mine,
        **numbers,
        model=user.model or project.model,
        mode=mode,
        budget=BudgetSettings(**(limits | lower)),
        # Roles grant no rights: a contract is the intersection with the parent's. So a project may
        # define roles; `role_narrowing` keeps it from widening built-in ones.
        roles=project.roles | user.roles,
        profiles=project.profiles | user.profiles,
        delegation=user.delegation and project.delegation,
        deny=(*user.deny, *project.deny),
        web_hosts=_narrower_hosts(user.web_hosts, project.web_hosts),
        shell=user.shell and project.shell,
        cache=user.cache and project.cache,
        discovery=user.discovery and project.discovery,
        # The project may add checks: more checks only reject more work.
        checks=tuple(dict.fromkeys((*user.checks, *project.checks))),
        on_conflict=user.on_conflict or project.on_conflict or mine.on_conflict,
        on_child_failure=(
            user.on_child_failure or project.on_child_failure or mine.on_child_failure
        ),
    )


def _narrower_hosts(user: Sequence[str] | None, project: Sequence[str] | None) -> Any:
    hosts = canonical_hosts(user or ())
    return hosts if project is None else intersect_hosts(hosts, canonical_hosts(project))


def _lower(a: float | None, b: float | None) -> Any:
    """The smaller of two limits; None is no limit."""
    return b if a is None else a if b is None else min(a, b)
