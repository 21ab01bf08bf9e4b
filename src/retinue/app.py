"""The composition root: the only place that builds the object graph."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from retinue.config.environment import Environment
from retinue.config.roles import LEAD, configured_roles
from retinue.config.routes import OPENAI_URL, Route, parse_route
from retinue.config.settings import Layers, Settings, load
from retinue.domain.budget import Budget
from retinue.domain.events import Event
from retinue.domain.grant import Mode
from retinue.errors import ConfigError, StoreError, UsageError
from retinue.ports import Approve, Clock, Model, Sandbox, Tool
from retinue.runtime.clock import SystemClock
from retinue.runtime.facade import Runtime, Terms
from retinue.runtime.run import Surroundings
from retinue.runtime.toolbox import nobody
from retinue.store.sqlite import SqliteStore
from retinue.tools.builtin import builtin_tools
from retinue.tools.registry import Registry
from retinue.workspace.tree import DirectoryTree

STATE_DIR = ".retinue"
DATABASE = "retinue.db"
MAX_CONCURRENT = 3
MAX_DEPTH = 2

NO_MODEL = (
    "No model is chosen. Name one with -m, for example -m openai:MODEL@http://127.0.0.1:8080/v1,"
    ' or set RETINUE_MODEL, or write model = "…" into retinue.toml.'
)


@asynccontextmanager
async def open_runtime(
    directory: str | Path = ".",
    *,
    model: str | Model | None = None,
    mode: Mode | str | None = None,
    budget: Budget | None = None,
    limits: Mapping[str, Any] | None = None,
    tools: Iterable[Tool] = (),
    unsafe_no_sandbox: bool = False,
    approve: Approve = nobody,
    on_event: Callable[[Event], None] | None = None,
    on_text: Callable[[str], None] | None = None,
    clock: Clock | None = None,
    environment: Environment | None = None,
) -> AsyncIterator[Runtime]:
    """Open a project for agents to work in.

    `model` is a name such as "openai:qwen3@http://127.0.0.1:8080/v1", or a Model. `mode` is how
    much may happen without a person's word: plan, normal, auto or dangerous. `budget` limits
    everything together; `limits` changes single limits of the one in the settings. Shell commands
    stay off until there is a sandbox, or `unsafe_no_sandbox`.
    """
    root = project(directory)
    environment = environment or Environment.current()
    layers = load(environment.user_settings, root)
    settings = layers.merged
    sandbox = _sandbox(environment) if unsafe_no_sandbox else None
    clients = Clients(environment, layers, root)
    try:
        terms = Terms(
            model=clients.default(model, settings),
            mode=_mode(mode, environment, settings),
            budget=budget or _budget(settings, limits or {}),
            roles=configured_roles(settings.roles, "settings"),
            lead=LEAD,
            max_concurrent=settings.max_concurrent or MAX_CONCURRENT,
            max_depth=settings.max_depth or MAX_DEPTH,
            directory=str(root),
        )
        offered = builtin_tools(shell=sandbox is not None)
        registry = Registry((*offered, *tools))
        async with _store(root) as store:
            around = Surroundings(
                store=store,
                clock=clock or SystemClock(),
                tools=registry,
                workspace=DirectoryTree(root),
                sandbox=sandbox,
                approve=approve,
                model_for=clients.get,
                listener=on_event,
                on_text=on_text,
            )
            async with Runtime(terms, around) as runtime:
                yield runtime
    finally:
        await clients.aclose()


@asynccontextmanager
async def open_journal(directory: str | Path = ".") -> AsyncIterator[SqliteStore]:
    """The journal of a project, for reading only."""
    store = SqliteStore(project(directory) / STATE_DIR / DATABASE, write=False)
    try:
        yield store
    finally:
        await store.aclose()


def project(directory: str | Path) -> Path:
    path = Path(directory).expanduser()
    if not path.exists():
        raise UsageError(f"There is no directory {str(directory)!r}.")
    if not path.is_dir():
        raise UsageError(f"{str(directory)!r} is a file, not a directory.")
    return path.resolve()


class Clients:
    """The model clients of a runtime, one per name, shared by all of its agents."""

    def __init__(self, environment: Environment, layers: Layers, root: Path) -> None:
        self._environment = environment
        self._root = root
        self._made: dict[str, Model] = {}
        self._user_model = layers.user.model
        # Origins that may be sent the user's key. A project's file or a model can name an endpoint
        # as well, and must not be able to have the key sent there.
        self._trusted = {_origin(self._openai_url)}
        for name in (environment.get("RETINUE_MODEL"), layers.user.model):
            self._trust(name)

    def default(self, chosen: str | Model | None, settings: Settings) -> str:
        """The name of the model to use where nobody names another."""
        if chosen is not None and not isinstance(chosen, str):
            self._made[chosen.name] = chosen
            return chosen.name
        self._trust(chosen)
        name = chosen or self._environment.get("RETINUE_MODEL") or settings.model
        if name is None:
            raise ConfigError(NO_MODEL)
        self.get(name)
        return name

    def get(self, name: str) -> Model:
        """The client for a model name. Raises ConfigError for a name that means nothing."""
        if name not in self._made:
            self._made[name] = self._make(parse_route(name))
        return self._made[name]

    async def aclose(self) -> None:
        for model in self._made.values():
            await model.aclose()

    @property
    def _openai_url(self) -> str:
        return self._environment.get("OPENAI_BASE_URL") or OPENAI_URL

    def _trust(self, name: str | None) -> None:
        if name and (endpoint := parse_route(name).endpoint):
            self._trusted.add(_origin(endpoint))

    def _make(self, route: Route) -> Model:
        if route.provider == "scripted":
            from retinue.models.scripted import ScriptedModel

            return ScriptedModel.from_yaml(self._root / route.model)
        # aiohttp costs a quarter of a second to import; only a real endpoint needs it.
        from retinue.models.endpoint import Endpoint
        from retinue.models.openai import OpenAIModel

        url = route.endpoint or self._openai_url
        key = self._environment.get("OPENAI_API_KEY") if _origin(url) in self._trusted else None
        if url == OPENAI_URL and key is None:
            raise ConfigError(
                f"Model {route.model!r} needs a key: set OPENAI_API_KEY; or name a server of your"
                f" own: -m openai:{route.model}@http://127.0.0.1:8080/v1."
            )
        return OpenAIModel(
            Endpoint(
                base_url=url,
                model=route.model,
                api_key=key,
                key_source="OPENAI_API_KEY",
                proxy=self._environment.proxy_for(url),
                ca_file=self._environment.ca_file,
            ),
            name=str(route),
        )


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


def _state_directory(root: Path) -> Path:
    """`.retinue/`, which ignores itself: the user's repository is never touched."""
    path = root / STATE_DIR
    try:
        path.mkdir(exist_ok=True)
        ignore = path / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", "utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}).") from error
    return path


def _sandbox(environment: Environment) -> Sandbox:
    from retinue.sandbox.unconfined import Unconfined

    return Unconfined(environment.passed_on())


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
