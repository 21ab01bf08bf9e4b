"""The composition root: the only place that builds the object graph."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import msgspec

from retinue.config.environment import Environment
from retinue.config.permission import SERVER, permission
from retinue.config.pools import EndpointSettings, Strategy
from retinue.config.roles import LEAD, catalogue, is_of_project
from retinue.config.routes import EMBEDDED, SERVICES, Route, Service, parse_route
from retinue.config.seal import Seal
from retinue.config.settings import (
    MAX_CONCURRENT,
    MAX_DEPTH,
    PAUSE_AT_CALLS,
    SILENCE_S,
    WARN_AT_CALLS,
    Layers,
    Settings,
    load,
)
from retinue.config.trust import Demand
from retinue.discovery import discover, endpoint_at
from retinue.domain.approval import Rules, rule
from retinue.domain.budget import UNLIMITED, Budget
from retinue.domain.chore import Chore
from retinue.domain.contract import OnConflict
from retinue.domain.discovery import Discovery
from retinue.domain.events import Event
from retinue.domain.grant import Mode
from retinue.domain.price import Price, Tariff
from retinue.domain.role import Role
from retinue.domain.served import BY_SLOT, Load, Served
from retinue.domain.toolserver import ToolServer
from retinue.errors import ConfigError, RunError, StoreError, UnknownRun, UsageError
from retinue.models.gate import Gate, Line
from retinue.models.pool import Door, Pool
from retinue.models.repair import Repaired
from retinue.ports import Approve, Ask, Clock, Model, Sandbox, Tool
from retinue.runtime.cache import Cache
from retinue.runtime.clock import SystemClock
from retinue.runtime.collector import patient_collector
from retinue.runtime.facade import Runtime, Terms
from retinue.runtime.run import Surroundings
from retinue.runtime.toolbox import Breaker, nobody
from retinue.runtime.undo import Past, Revision, past, revision
from retinue.store.export import export_run
from retinue.store.posts import FilePosts
from retinue.store.reports import FileReports
from retinue.store.sqlite import SqliteStore
from retinue.store.vault import SqliteVault
from retinue.tools.builtin import REPEATABLE, builtin_tools
from retinue.tools.delegate import delegation_tools
from retinue.tools.person import ask_user
from retinue.tools.registry import Registry
from retinue.workspace.ground import UsersGround

if TYPE_CHECKING:
    from retinue.embedded.model import EmbeddedModel
    from retinue.embedded.serving import Address
    from retinue.models.endpoint import Endpoint
    from retinue.models.recorder import Recorder
    from retinue.models.redaction import Redaction
    from retinue.models.replay import ReplayModel
    from retinue.tools.mcp.servers import Offered

STATE_DIR = ".retinue"
DATABASE = "retinue.db"
AT_ITS_PACE = "@recorded"  # behind the file of a replay
POSTS_DIR = "live"

Choose = Callable[[Discovery], Awaitable[str]]
"""Have a person choose a model; answers the name of one."""


@asynccontextmanager
async def open_runtime(
    directory: str | Path = ".",
    *,
    model: str | Model | None = None,
    models: Mapping[str, Model] | None = None,
    mode: Mode | str | None = None,
    budget: Budget | None = None,
    limits: Mapping[str, Any] | None = None,
    tools: Iterable[Tool] = (),
    max_concurrent: int | None = None,
    cache: bool | None = None,
    checks: Iterable[str] = (),
    on_conflict: OnConflict | str | None = None,
    shell: bool = True,
    unsafe_no_sandbox: bool = False,
    trust: bool | None = None,
    approve: Approve = nobody,
    ask: Ask | None = None,
    choose: Choose | None = None,
    record: str | Path | None = None,
    on_event: Callable[[Event], None] | None = None,
    on_text: Callable[[str], None] | None = None,
    on_partial: Callable[[str, str], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
    clock: Clock | None = None,
    environment: Environment | None = None,
) -> AsyncIterator[Runtime]:
    """Open a project for agents to work in.

    `model` is a name such as "openai:qwen3@http://127.0.0.1:8080/v1", or a Model; `models` are more
    of them, by name. Where nothing names a model, the servers of this machine are looked at: the
    only one that is served is used, and of several `choose` has to choose. `mode` is how much may
    happen without a person's word: plan, normal, auto or dangerous. `budget` limits everything
    together; `limits` changes single limits of the one in the settings. `max_concurrent` is how
    many children of one parent run at a time. `cache=False` never uses an earlier child's result; a
    Model given as an object has no name that would mean the same next time, so for it that is the
    default. `checks` are commands that must succeed on what a child has made before it is
    integrated, and `on_conflict` ("fail" or "resolve") is what becomes of a child whose work
    contradicts a sibling's. `record` is a file, as seen from the directory, to write the traffic of
    all models to; the model "replay:FILE" serves it back, in the place of all of them. Neither uses
    earlier results. There are shell commands where a sandbox holds, or with `unsafe_no_sandbox`;
    `shell=False` leaves them out. `trust` says whether the project's own MCP servers and model may
    be used; left out, what the user has decided by `retinue trust` holds. `on_wait` is told what
    the opening waits for, where that may take a while.

    `on_event` is given every event as it happens, `on_text` the words of a root's model as they
    arrive, and `on_partial` those of a child's, with the child's id.
    """
    root, clock = project(directory), clock or SystemClock()
    environment = environment or Environment.current()
    layers = load(environment.user_settings, root)
    settings = layers.merged
    permitted = permission(
        layers, root, environment, trust=trust, model_is_chosen=model is not None
    )
    permitted.check_model()
    sandbox = None
    if settings.shell and shell:
        sandbox = await _sandbox(environment, unconfined=unsafe_no_sandbox)

    async def confine() -> Sandbox | None:
        return sandbox or await _sandbox(environment, unconfined=unsafe_no_sandbox)

    named = model is None or isinstance(model, str)
    reuse = settings.cache and (named if cache is None else cache) and record is None
    more_tools = tuple(tools)
    roles = catalogue(
        layers,
        root,
        environment.home,
        config_home=environment.config_home,
        tools=[tool.spec.name for tool in more_tools],
        servers=[server.name for server in permitted.servers],
    ).roles
    recorder = None if record is None else _recorder(root / record, root, environment, clock)
    async with Clients(environment, layers, root, models or {}, clock, recorder) as clients:
        name = clients.default(model, settings)
        notes: tuple[str, ...] = ()
        if name is None:
            name, notes = await _found(clients, await discover(environment, layers), choose)
        notes += await clients.begin(name, on_wait)
        terms = Terms(
            model=name,
            notes=notes,
            mode=_mode(mode, environment, settings),
            budget=budget or _budget(settings, limits or {}),
            lead=LEAD,
            max_depth=settings.max_depth or MAX_DEPTH,
            directory=str(root),
            silence_s=settings.silence_s or SILENCE_S,
            delegation=settings.delegation,
            checks=(*settings.checks, *checks),
            on_conflict=OnConflict(on_conflict or settings.on_conflict or OnConflict.FAIL),
        )
        # Roles of the project may name an endpoint; only the user's may make one known.
        clients.know(role.model for role in roles.values() if not is_of_project(role))
        if terms.budget.max_cost_usd is not None:
            for name in clients.behind(terms.model):
                if clients.price(name) is None:
                    raise ConfigError(
                        f"max_cost_usd is set, and nobody knows what {name} costs; write its price"
                        f' into your settings: [prices."{name}"] with input and output.'
                    )
        # In plan mode nothing else of a server could be used.
        usable = [s for s in permitted.servers if terms.mode is not Mode.PLAN or s.may_read]
        async with (
            _offered(usable, root, environment, clock, on_wait=on_wait) as offered,
            _store(root) as store,
            _vault(root, clock) as vault,
        ):
            missing = (*permitted.notes, *(line for one in offered if (line := one.note)))
            if sandbox is not None and sandbox.tier == "reduced":
                missing = (
                    "sandbox: reduced; `retinue doctor` tells what it does not hold",
                    *missing,
                )
            terms = msgspec.structs.replace(terms, notes=(*terms.notes, *missing))
            more_tools += tuple(tool for one in offered for tool in one.tools)
            found = _tools(roles, more_tools, settings, shell=sandbox is not None, ask=ask)
            registry = Registry(found)
            ground = _ground(root, environment)
            with patient_collector(), closing(FileReports(root)) as reports:
                around = Surroundings(
                    store=store,
                    posts=posts(root),
                    vault=vault,
                    reports=reports,
                    clock=clock,
                    tools=registry,
                    roles=roles,
                    cache=Cache(
                        store, registry, REPEATABLE if reuse and not clients.replaying else None
                    ),
                    workspace_for=ground.workspace,
                    ground=ground,
                    history=ground,
                    sandbox=sandbox,
                    confine=confine,
                    approve=approve,
                    model_for=clients.get,
                    route=clients.route,
                    price_for=clients.price,
                    servers=clients,
                    max_concurrent=max_concurrent or settings.max_concurrent or MAX_CONCURRENT,
                    report_path_pattern=settings.report_path,
                    seal=Seal(environment.state / "key").of,
                    breaker=Breaker(
                        warn_at=settings.warn_at_calls or WARN_AT_CALLS,
                        pause_at=settings.pause_at_calls or PAUSE_AT_CALLS,
                    ),
                    rules=Rules(
                        allow=tuple(map(rule, settings.allow)),
                        deny=tuple(map(rule, settings.deny)),
                    ),
                    ask=ask,
                    listener=on_event,
                    on_text=on_text,
                    on_partial=on_partial,
                )
                async with Runtime(terms, around) as runtime:
                    yield runtime


def embedded_model(environment: Environment) -> EmbeddedModel:
    """The model of this machine; ConfigError if it is not installed."""
    from retinue.embedded.llama import ALIAS
    from retinue.embedded.model import NAME, EmbeddedModel

    def connect(address: Address) -> Model:
        from retinue.models.endpoint import Endpoint
        from retinue.models.openai import OpenAIModel

        endpoint = Endpoint(base_url=address.url, model=ALIAS, api_key=address.key)
        return OpenAIModel(endpoint, name=NAME)

    return EmbeddedModel(environment.embedded, environment.variables, connect)


async def _found(
    clients: Clients, discovery: Discovery, choose: Choose | None
) -> tuple[str, tuple[str, ...]]:
    """The model to use when nobody named one, and what the user should know about that."""
    offer = discovery.only
    if offer is not None:
        return clients.use(offer.name), (f"no model was named: using {offer}",)
    if choose is None or not discovery.offers:
        raise ConfigError(discovery.explained)
    name = await choose(discovery)
    # One of the list was found, not named: it is asked, and sent no key.
    listed = any(offer.name == name for offer in discovery.offers)
    return clients.use(name) if listed else clients.named(name), ()


def _tools(
    roles: Mapping[str, Role],
    more: Iterable[Tool],
    settings: Settings,
    *,
    shell: bool,
    ask: Ask | None,
) -> list[Tool]:
    """The tools there are. One that cannot work here is not offered: it would cost tokens."""
    found = [*builtin_tools(shell=shell), *more]
    if settings.delegation:
        found += delegation_tools(roles)
    if ask is not None:
        found.append(ask_user)
    return found


@asynccontextmanager
async def _offered(
    servers: Sequence[ToolServer],
    root: Path,
    environment: Environment,
    clock: Clock,
    *,
    anew: bool = False,
    on_wait: Callable[[str], None] | None = None,
) -> AsyncIterator[Sequence[Offered]]:
    """What MCP servers offer, for as long as this is open; `anew` asks all of them."""
    if not servers:
        yield ()
        return
    from retinue.tools.mcp.servers import Servers

    logs, cache = _state_directory(root) / "mcp", environment.cache / "mcp"
    async with Servers(servers, cache=cache, logs=logs, clock=clock) as opened:
        if on_wait is not None and (names := opened.asked(anew=anew)):
            on_wait(f"starting MCP servers to see what they offer: {', '.join(names)}")
        yield await opened.offered(anew=anew)


def _ground(root: Path, environment: Environment) -> UsersGround:
    return UsersGround(
        str(root),
        state=str(root / STATE_DIR),
        worktrees=str(environment.cache / "worktrees"),
        home=str(environment.home),
        config_home=str(environment.config_home),
    )


class Inspection(msgspec.Struct, frozen=True):
    """The tools of a project: those that come with retinue, and what each MCP server offers.

    `untrusted` are the servers that the project brings and the user has not said yes to;
    `problems` tell why another cannot be had.
    """

    tools: tuple[Tool, ...]
    offered: tuple[Offered, ...]
    untrusted: tuple[Demand, ...]
    problems: tuple[str, ...]


async def inspect_tools(
    directory: str | Path = ".",
    *,
    on_wait: Callable[[str], None] | None = None,
    environment: Environment | None = None,
) -> Inspection:
    """Start the MCP servers of a project that may be started, and tell what they offer."""
    root, environment = project(directory), environment or Environment.current()
    found = permission(load(environment.user_settings, root), root, environment)
    async with _offered(
        found.servers, root, environment, SystemClock(), anew=True, on_wait=on_wait
    ) as offered:
        untrusted = tuple(demand for demand in found.denied if demand.kind == SERVER)
        return Inspection(builtin_tools(), tuple(offered), untrusted, found.problems)


@asynccontextmanager
async def open_journal(
    directory: str | Path = ".", *, write: bool = False
) -> AsyncIterator[SqliteStore]:
    """The journal of a project, for reading only unless said otherwise."""
    store = SqliteStore(project(directory) / STATE_DIR / DATABASE, write=write)
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def open_past(
    directory: str | Path, run_id: str, *, environment: Environment | None = None
) -> AsyncIterator[Past]:
    """What a run has done to the files of a project."""
    root = project(directory)
    ground = _ground(root, environment or Environment.current())
    async with open_journal(root) as store:
        yield await past(store, ground, run_id)


@asynccontextmanager
async def open_revision(
    directory: str | Path,
    run_id: str,
    *,
    agent: str | None = None,
    environment: Environment | None = None,
) -> AsyncIterator[Revision]:
    """What a run, or one agent of it, has done to the files, to be undone or redone."""
    root = project(directory)
    ground = _ground(root, environment or Environment.current())
    async with open_journal(root):
        pass  # Writing would make one where there is none.
    async with (
        open_journal(root, write=True) as store,
        revision(store, ground, posts(root), SystemClock(), run_id, agent=agent) as found,
    ):
        yield found


async def clean_up(
    directory: str | Path = ".",
    *,
    older_s: float | None = None,
    look: bool = False,
    environment: Environment | None = None,
) -> list[Chore]:
    """Remove what is kept of runs and is older, and tell what there was; `look` only tells.

    Without `older_s` each kind of thing has an age of its own.
    """
    root = project(directory)
    if not (root / STATE_DIR / DATABASE).exists():
        raise UsageError(f"Nothing is kept in {root}: no run has begun there.")
    async with open_journal(root) as store:
        at_work = [row.id for row in await store.runs(limit=1000) if row.status is None]
    if older_s is not None and not look and (held := [*filter(posts(root).held, at_work)]):
        raise RunError(
            f"Run {held[0]} is at work, and needs what looks old to others; wait for it, or leave"
            " the age away."
        )
    return await _ground(root, environment or Environment.current()).clean(older_s, look=look)


@asynccontextmanager
async def open_run(directory: str | Path, run: str) -> AsyncIterator[tuple[SqliteStore, str]]:
    """A journal for reading, and the name of a run in it: of a project, or what was exported.

    `run` is an id, or the file that `export` has written.
    """
    exported = _file(run)
    if exported is None:
        async with open_journal(directory) as store:
            yield store, run
        return
    store = SqliteStore(exported, write=False)
    try:
        rows = await store.runs(limit=1)
        if not rows:
            raise UnknownRun(f"There is no run in {run}.")
        yield store, rows[0].id
    finally:
        await store.aclose()


def _file(name: str) -> Path | None:
    path = Path(name)
    return path if path.is_file() else None


async def export_journal(directory: str | Path, run: str, target: Path | None) -> Path:
    """Write a run to a file of its own; answers which. The file must not be there yet."""
    database = project(directory) / STATE_DIR / DATABASE
    async with open_journal(directory) as store:
        row = await store.run(run)
    target = target or Path(f"{row.id}.retinue")
    # A journal of an earlier version is brought up to date first.
    async with _store(project(directory)):
        await asyncio.to_thread(export_run, database, row.id, target)
    return target


def posts(directory: str | Path = ".") -> FilePosts:
    """Who works on the runs of a project, in whichever process."""
    return FilePosts(project(directory) / STATE_DIR / POSTS_DIR)


def project(directory: str | Path) -> Path:
    path = Path(directory).expanduser()
    if not path.exists():
        raise UsageError(f"There is no directory {str(directory)!r}.")
    if not path.is_dir():
        raise UsageError(f"{str(directory)!r} is a file, not a directory.")
    found = path.resolve()
    try:
        str(found).encode()
    except UnicodeEncodeError:
        raise UsageError(f"The name of the directory {str(found)!r} is not valid UTF-8.") from None
    return found


# One gate for each endpoint, whoever asks: what one runtime learns of an endpoint holds for all.
# By event loop, since what waits on one cannot be woken from another.
_gates: dict[asyncio.AbstractEventLoop, dict[str, Gate]] = {}


def _gate(origin: str) -> Gate:
    loop = asyncio.get_running_loop()
    if loop not in _gates:
        for over in [other for other in _gates if other.is_closed()]:
            del _gates[over]
        _gates[loop] = {}
    return _gates[loop].setdefault(origin, Gate(origin))


class Clients:
    """The model clients of a runtime, one per name, shared by all of its agents."""

    def __init__(
        self,
        environment: Environment,
        layers: Layers,
        root: Path,
        given: Mapping[str, Model],
        clock: Clock,
        recorder: Recorder | None = None,
    ) -> None:
        self._environment = environment
        self._root = root
        self._clock = clock
        self._recorder = recorder
        self._replay: ReplayModel | None = None
        self._made: dict[str, Model] = {name: self._used(model) for name, model in given.items()}
        self._clients: dict[str, Model] = {}
        self._gates: dict[str, Gate] = {}
        self._short_names = layers.user.models
        self._pools = layers.user.pools
        self._servers = {_origin(at): server for at, server in layers.user.servers.items()}
        self._prices = layers.user.prices
        self._default = ""
        self._given = set(given)
        self._served: dict[str, Served | None] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        # Origins that may be sent the user's key. A project's file or a model can name an endpoint
        # as well, and must not be able to have the key sent there.
        self._trusted = {_origin(self._url_of(service)) for service in SERVICES.values()}
        user = layers.user
        self._trusted |= {_origin(address) for address in user.endpoints}
        self._named = {
            environment.get("RETINUE_MODEL"),
            user.model,
            *user.models.values(),
            *(name for pool in user.pools.values() for name in pool.endpoints),
            *(role.model for role in user.roles.values()),
            *(profile.model or profile.pool for profile in user.profiles.values()),
        }
        for name in self._named:
            self._trust(name)
        # Origins that may be asked, with a key or without. What a prompt holds is the user's.
        self._known = set(self._trusted)

    def know(self, names: Iterable[str | None]) -> None:
        """Let models of these names be asked."""
        for name in names:
            if name and (endpoint := parse_route(name).endpoint):
                self._known.add(_origin(endpoint))

    def default(self, chosen: str | Model | None, settings: Settings) -> str | None:
        """The name of the model to use where nobody names another; None if nothing names one."""
        if chosen is not None and not isinstance(chosen, str):
            self._made[chosen.name] = self._used(chosen)
            self._given.add(chosen.name)
            self._default = chosen.name
            return chosen.name
        if chosen is not None:
            return self.named(chosen)
        name = self._environment.get("RETINUE_MODEL") or settings.model
        return None if name is None else self.use(name)

    def named(self, name: str) -> str:
        """Use a model that the user named, and so may be sent the key."""
        self._trust(name)
        return self.use(name)

    def use(self, name: str) -> str:
        """Make it the model to use where nobody names another."""
        name = self._short_names.get(name, name)
        self.know([name])
        route = parse_route(name)
        if route.provider == "replay":
            self._replay = self._replayed(route)
            self._made[name] = self._used(self._replay)
        self._default = name
        self.get(name)
        return name

    async def begin(self, name: str, on_wait: Callable[[str], None] | None) -> tuple[str, ...]:
        """Start the embedded model if it is the one to use; gives what the user should know of it.

        If it is only chosen by a role or a call, the first of those starts it.
        """
        given = self.replaying or name in self._given
        if given or self._full_name(name) != EMBEDDED:
            return ()
        from retinue.embedded.model import ABOUT, EmbeddedModel

        client = self._clients[EMBEDDED]
        assert isinstance(client, EmbeddedModel)
        told = ""

        def tell(text: str) -> None:
            nonlocal told
            if text != told and on_wait is not None:
                on_wait(text)
            told = text

        await client.open(tell)
        return (ABOUT,)

    def route(self, model: str | None, endpoint: str | None) -> str | None:
        """The model name for somebody's choice of model and endpoint; None if nothing is chosen.

        A model may have made this choice, so an address must be one that the user knows. A bare
        model name means another model of the server in use.
        """
        if self.replaying or (not model and not endpoint):
            return None
        if endpoint:
            self._check_known(endpoint)
        if endpoint and model in self._pools:
            raise ConfigError(f"{model!r} is a pool and has its endpoints; leave `endpoint` out.")
        if model in self._made or model in self._pools:
            return model
        name = self._short_names.get(model or "", model or "")
        if not endpoint and name in self._pools:
            return name
        fixed = self._default in self._given or self._default in self._pools
        default = None if fixed else parse_route(self._default)
        if default is not None and default.provider not in SERVICES:
            default = None
        if not name:
            if default is None:
                raise ConfigError(f"Name the model to ask at {endpoint!r}, too.")
            route = default
        elif default is not None and endpoint in (None, "", default.endpoint):
            route = parse_route(name, otherwise=default.provider)
        else:
            route = parse_route(name)
        if route.provider == EMBEDDED and not endpoint:
            return name
        if route.provider not in SERVICES:
            raise ConfigError(f"Model {name!r} cannot be chosen here; name one that is served.")
        if endpoint:
            return str(msgspec.structs.replace(route, endpoint=endpoint.rstrip("/")))
        if route.endpoint:
            self._check_known(route.endpoint)
            return name
        if default is not None and default.provider == route.provider:
            return str(msgspec.structs.replace(route, endpoint=default.endpoint))
        if name in self._named and name.startswith(f"{route.provider}:"):
            return name  # The user's word, and so not a model's wish to go elsewhere.
        known = ", ".join(sorted({*self._made, *self._pools, *self._short_names}))
        raise ConfigError(f"Unknown model {name!r}; there are: {known}.")

    def behind(self, name: str) -> list[str]:
        """The models that a name stands for: several for a pool, else itself."""
        name = self._short_names.get(name, name)
        if name not in self._pools:
            return [name]
        return [self._full_name(endpoint) for endpoint in self._pools[name].endpoints]

    def price(self, name: str) -> Price | Tariff | None:
        """What a model costs, by its full name or by the bare one; for a pool, what each does."""
        if name not in self._pools:
            return self._price(name)
        prices = {n: price for n in self.behind(name) if (price := self._price(n)) is not None}
        return Tariff(prices) if prices else None

    def _price(self, name: str) -> Price | None:
        if name in self._prices:
            return self._prices[name]
        return None if name in self._given else self._prices.get(parse_route(name).model)

    def get(self, name: str) -> Model:
        """The client for a model name. Raises ConfigError for a name that means nothing."""
        if self.replaying:
            name = self._default  # What is replayed asks nobody, whatever a role may name.
        if name not in self._made:
            self._made[name] = self._used(self._pool(name))
        return self._made[name]

    def _pool(self, name: str) -> Pool:
        """The pool of that name; a model by itself is a pool of one."""
        meant = self._short_names.get(name, name)
        pool = self._pools.get(meant)
        if pool is None:
            return Pool(self._full_name(meant), [self._door(meant)])
        weights = pool.weights or (1.0,) * len(pool.endpoints)
        return Pool(
            meant,
            [self._door(*each) for each in zip(pool.endpoints, weights, strict=True)],
            in_order=pool.strategy is Strategy.ORDER,
        )

    def _full_name(self, name: str) -> str:
        """The name of a model that may have been called by a short one."""
        if name in self._given:
            return name
        return str(parse_route(self._short_names.get(name, name)))

    def _door(self, name: str, weight: float = 1.0) -> Door:
        """The way to a model. All pools share its client, and all runtimes its gate."""
        full = self._full_name(name)
        gate = self._gates[full] = self._gate_of(full)
        line = gate.line(full)
        if full in self._given:
            return Door(full, self._made[full], line, weight=weight)
        if full not in self._clients:
            self._clients[full] = self._make(parse_route(full), line)
        return Door(full, self._clients[full], line, weight=weight)

    def _gate_of(self, full: str) -> Gate:
        route = None if full in self._given else parse_route(full)
        if route is None or route.provider not in SERVICES:
            gate = _gate(full)
            if route is not None and route.provider == EMBEDDED:
                gate.serves(1)
            return gate
        origin = _origin(route.endpoint or self._url_of(SERVICES[route.provider]))
        gate, server = _gate(origin), self._servers.get(origin, EndpointSettings())
        gate.patience_s = server.patience_s
        if server.slots is not None:
            gate.serves(server.slots)
        return gate

    @property
    def replaying(self) -> bool:
        """Whether a recording stands in for every model."""
        return self._replay is not None

    async def served(self, name: str) -> Served | None:
        """What the server says about a model, which is asked once; None if it does not tell."""
        if self._replay is not None:
            return self._replay.served(name)
        if name not in self._served:
            async with self._asking.setdefault(name, asyncio.Lock()):
                if name not in self._served:
                    found = self._served[name] = await self._smallest(name)
                    if found is not None and self._recorder is not None:
                        self._recorder.add_served(name, found)
        return self._served[name]

    def known(self, name: str) -> Served | None:
        return self._served.get(name) if self._replay is None else self._replay.served(name)

    def loads(self) -> list[Load]:
        return [gate.load for gate in dict.fromkeys(self._gates.values())]

    async def _smallest(self, name: str) -> Served | None:
        """What is said of a model; of a pool, the one with the smallest window: all must do."""
        if self._short_names.get(name, name) not in self._pools:
            return await self._ask(name)
        asked = [self.served(each) for each in self.behind(name)]
        found = [served for served in await asyncio.gather(*asked) if served is not None]
        return min(found, key=lambda s: UNLIMITED if s.window is None else s.window, default=None)

    async def _ask(self, name: str) -> Served | None:
        if name in self._given:
            return None
        route = parse_route(self._short_names.get(name, name))
        if route.provider == EMBEDDED:
            from retinue.embedded.model import SERVED

            return SERVED
        if route.provider not in SERVICES:
            return None
        service = SERVICES[route.provider]
        url = route.endpoint or self._url_of(service)
        # A name may come from a project, which must not have anybody asked that the user does not
        # know. The services themselves do not tell, and have room for any agent.
        own = {_origin(one.url) for one in SERVICES.values()}
        if _origin(url) in own or _origin(url) not in self._known:
            return None
        from retinue.models.inventory import served

        found = await served(self._endpoint(url, route.model, service))
        if found is not None:
            self._tell(found, url, self._full_name(name))
        return found

    def _tell(self, served: Served, url: str, full: str) -> None:
        """Let the gate know what is known of its endpoint."""
        gate, server = _gate(_origin(url)), self._servers.get(_origin(url))
        if served.slots is not None and (server is None or server.slots is None):
            gate.serves(served.slots)
        gate.line(full).warmth.by_slot = served.server in BY_SLOT

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for model in self._made.values():
            try:
                await model.aclose()
            except Exception:
                # What happened inside tells more than what it does to the closing.
                if kind is None:
                    raise
        if self._recorder is not None:
            with nullcontext() if kind is None else suppress(StoreError):
                self._recorder.close()

    def _url_of(self, service: Service) -> str:
        return self._environment.get(service.url_variable) or service.url

    def _owner(self, service: Service, url: str) -> Service:
        """Whose key an address gets: each service's own address gets that of its own, whichever
        API is spoken there."""
        owners = [
            one
            for one in SERVICES.values()
            if _origin(url) in (_origin(one.url), _origin(self._url_of(one)))
        ]
        return service if service in owners or not owners else owners[0]

    def _check_known(self, endpoint: str) -> None:
        if _origin(endpoint) not in self._known:
            known = ", ".join(sorted(self._known))
            raise ConfigError(
                f"Endpoint {endpoint!r} is not known; add it to `endpoints` in your settings."
                f" Known: {known}."
            )

    def _trust(self, name: str | None) -> None:
        if name and (endpoint := parse_route(name).endpoint):
            self._trusted.add(_origin(endpoint))

    def _used(self, model: Model) -> Model:
        """A model as it is used: mended, and recorded as it is before that."""
        if self._recorder is not None:
            from retinue.models.recorder import Recorded

            model = Recorded(model, self._recorder)
        return Repaired(model)

    def _replayed(self, route: Route) -> ReplayModel:
        from retinue.models.recording import read_recording
        from retinue.models.replay import ReplayModel

        file = route.model.removesuffix(AT_ITS_PACE)
        return ReplayModel(
            read_recording(self._root / file),
            name=str(route),
            redaction=_redaction(self._root, self._environment),
            clock=None if file == route.model else self._clock,
        )

    def _make(self, route: Route, line: Line) -> Model:
        if route.provider == "replay":
            return self._replayed(route)
        if route.provider == "scripted":
            from retinue.models.scripted import ScriptedModel

            return ScriptedModel.from_yaml(self._root / route.model)
        if route.provider == EMBEDDED:
            return embedded_model(self._environment)
        service = SERVICES[route.provider]
        url = route.endpoint or self._url_of(service)
        self._check_known(url)
        endpoint = self._endpoint(url, route.model, service)
        owner = self._owner(service, url)
        if _origin(url) == _origin(owner.url) and endpoint.api_key is None:
            close = get_close_matches(route.model, {*self._short_names, *self._pools}, n=1)
            raise ConfigError(
                f"Model {route.model!r} needs a key: set {owner.key_variable}; or name a server of"
                f" your own: -m {route.provider}:{route.model}@http://127.0.0.1:8080/v1."
                + (f" Did you mean {close[0]!r}?" if close else "")
            )
        # aiohttp costs a quarter of a second to import; only a real endpoint needs it.
        if route.provider == "anthropic":
            from retinue.models.anthropic import AnthropicModel

            return AnthropicModel(
                endpoint, name=str(route), thinking=route.thinking, on_head=line.heard
            )
        from retinue.models.openai import OpenAIModel

        return OpenAIModel(endpoint, name=str(route), on_head=line.heard)

    def _endpoint(self, url: str, model: str, service: Service) -> Endpoint:
        variable = self._owner(service, url).key_variable
        key = self._environment.get(variable) if _origin(url) in self._trusted else None
        found = endpoint_at(url, self._environment, model=model, key=key, source=variable)
        server = self._servers.get(_origin(url), EndpointSettings())
        return msgspec.structs.replace(
            found,
            first_byte_timeout_s=server.first_byte_timeout_s,
            idle_timeout_s=server.idle_timeout_s,
        )


def _recorder(path: Path, root: Path, environment: Environment, clock: Clock) -> Recorder:
    from retinue.models.recorder import Recorder

    path = Path(os.path.abspath(path))
    if path.is_relative_to(root) and not path.is_relative_to(_state_directory(root)):
        raise UsageError(
            f"Cannot record to {str(path)!r}: agents would see it grow, and a replay would see it"
            f" otherwise. Name one outside of the project, or {STATE_DIR}/{path.name}."
        )
    return Recorder(path, redaction=_redaction(root, environment), clock=clock)


def _redaction(root: Path, environment: Environment) -> Redaction:
    from retinue.models.redaction import Redaction

    return Redaction(directory=str(root), secrets=environment.secrets)


@asynccontextmanager
async def _store(root: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(_state_directory(root) / DATABASE)
    try:
        yield store
    except BaseException:
        # What happened inside tells more than what it does to the closing.
        with suppress(StoreError):
            await store.aclose()
        raise
    else:
        await store.aclose()


@asynccontextmanager
async def _vault(root: Path, clock: Clock) -> AsyncIterator[SqliteVault]:
    vault = SqliteVault(root / STATE_DIR / DATABASE, clock)
    try:
        yield vault
    finally:
        await vault.aclose()


def _state_directory(root: Path) -> Path:
    """`.retinue/`, which ignores itself: the user's repository is never touched."""
    path = root / STATE_DIR
    if path.is_symlink() or (path / DATABASE).is_symlink():
        # A project that somebody cloned could have our files written anywhere.
        raise StoreError(f"{path} is, or holds, a link to somewhere else; remove it.")
    try:
        path.mkdir(exist_ok=True)
        ignore = path / ".gitignore"
        if not ignore.exists():
            # All but the agents, which people write, and may want to share.
            ignore.write_text("*\n!/agents/\n!/agents/**\n", "utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}).") from error
    return path


async def _sandbox(environment: Environment, *, unconfined: bool) -> Sandbox | None:
    """What commands are confined by: the best that holds; nothing only if the user says so."""
    if unconfined:
        from retinue.sandbox.unconfined import Unconfined

        return Unconfined(environment.passed_on())
    from retinue.sandbox.choice import choose

    return (await choose(environment.passed_on(), cache=str(environment.cache))).sandbox


def _mode(chosen: Mode | str | None, environment: Environment, settings: Settings) -> Mode:
    name = chosen or environment.get("RETINUE_MODE") or settings.mode or Mode.NORMAL
    try:
        return Mode(name)
    except ValueError:
        raise UsageError(f"Unknown mode {name!r}; there are: {', '.join(Mode)}.") from None


def _budget(settings: Settings, limits: Mapping[str, Any]) -> Budget:
    """The budget of a whole run: the defaults, the settings, and what was said for this one."""
    return msgspec.structs.replace(LEAD.budget, **(settings.budget.chosen() | dict(limits)))


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
