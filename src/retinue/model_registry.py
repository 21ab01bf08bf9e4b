"""The clients of models: made when first named, kept for as long as the runtime is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import msgspec

from retinue.config.environment import Environment
from retinue.config.model_routes import (
    EMBEDDED,
    PROVIDER_APIS,
    ModelRoute,
    ProviderApi,
    parse_route,
)
from retinue.config.pools import EndpointSettings, PoolStrategy
from retinue.config.settings import Settings, SettingsLayers
from retinue.discovery import endpoint_at
from retinue.domain.account import UNLIMITED
from retinue.domain.price import PoolPrice, Price
from retinue.domain.server_info import PER_SLOT_CACHE, EndpointLoad, ServedModel
from retinue.errors import ConfigError, StoreError
from retinue.models.repair.model import RepairedModel
from retinue.models.routing.endpoint_queue import EndpointModel, EndpointQueue
from retinue.models.routing.pool import Pool, PoolMember
from retinue.ports.clock import Clock
from retinue.ports.model import Model

if TYPE_CHECKING:
    from retinue.embedded.model import EmbeddedModel
    from retinue.embedded.serving import RunningServer
    from retinue.models.http.endpoint import Endpoint
    from retinue.models.replay.model import ReplayModel
    from retinue.models.replay.recorder import Recorder
    from retinue.models.replay.redaction import Redaction

AT_ITS_PACE = "@recorded"  # behind the file of a replay


class ModelRegistry:
    """The model clients of a runtime, one per name, shared by all of its agents."""

    def __init__(
        self,
        environment: Environment,
        layers: SettingsLayers,
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
        self._queues: dict[str, EndpointQueue] = {}
        self._short_names = layers.user.models
        self._pools = layers.user.pools
        self._servers = {_origin(at): server for at, server in layers.user.servers.items()}
        self._prices = layers.user.prices
        self._default = ""
        self._given = set(given)
        self._served: dict[str, ServedModel | None] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        # Origins that may be sent the user's key. A project's file or a model can name an endpoint
        # as well, and must not be able to have the key sent there.
        self._trusted = {_origin(self._url_of(service)) for service in PROVIDER_APIS.values()}
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

    def allow_endpoints(self, names: Iterable[str | None]) -> None:
        """Let models of these names be asked."""
        for name in names:
            if name and (endpoint := parse_route(name).endpoint):
                self._known.add(_origin(endpoint))

    def choose_default(self, chosen: str | Model | None, settings: Settings) -> str | None:
        """The name of the model to use where nobody names another; None if nothing names one."""
        if chosen is not None and not isinstance(chosen, str):
            self._made[chosen.name] = self._used(chosen)
            self._given.add(chosen.name)
            self._default = chosen.name
            return chosen.name
        if chosen is not None:
            return self.use_trusted(chosen)
        name = self._environment.get("RETINUE_MODEL") or settings.model
        return None if name is None else self.use(name)

    def use_trusted(self, name: str) -> str:
        """Use a model that the user named, and so may be sent the key."""
        self._trust(name)
        return self.use(name)

    def use(self, name: str) -> str:
        """Make it the model to use where nobody names another."""
        name = self._short_names.get(name, name)
        self.allow_endpoints([name])
        route = parse_route(name)
        if route.provider == "replay":
            self._replay = self._replayed(route)
            self._made[name] = self._used(self._replay)
        self._default = name
        self.get(name)
        return name

    async def start_embedded(self, name: str, on_wait: Callable[[str], None] | None) -> None:
        """Start the embedded model if it is the one to use.

        If it is only chosen by a role or a call, the first of those starts it.
        """
        given = self.replaying or name in self._given
        if given or self._full_name(name) != EMBEDDED:
            return
        from retinue.embedded.model import EmbeddedModel

        client = self._clients[EMBEDDED]
        assert isinstance(client, EmbeddedModel)
        told = ""

        def tell(text: str) -> None:
            nonlocal told
            if text != told and on_wait is not None:
                on_wait(text)
            told = text

        await client.open(tell)

    def resolve(self, model: str | None, endpoint: str | None) -> str | None:
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
        if default is not None and default.provider not in PROVIDER_APIS:
            default = None
        if not name:
            if default is None:
                raise ConfigError(f"Name the model to ask at {endpoint!r}, too.")
            route = default
        elif default is not None and endpoint in (None, "", default.endpoint):
            route = parse_route(name, default_provider=default.provider)
        else:
            route = parse_route(name)
        if route.provider == EMBEDDED and not endpoint:
            return name
        if route.provider not in PROVIDER_APIS:
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

    def members(self, name: str) -> list[str]:
        """The models that a name stands for: several for a pool, else itself."""
        name = self._short_names.get(name, name)
        if name not in self._pools:
            return [name]
        return [self._full_name(endpoint) for endpoint in self._pools[name].endpoints]

    def price(self, name: str) -> Price | PoolPrice | None:
        """What a model costs, by its full name or by the bare one; for a pool, what each does."""
        if name not in self._pools:
            return self._price(name)
        prices = {n: price for n in self.members(name) if (price := self._price(n)) is not None}
        return PoolPrice(prices) if prices else None

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
            return Pool(self._full_name(meant), [self._member(meant)])
        weights = pool.weights or (1.0,) * len(pool.endpoints)
        return Pool(
            meant,
            [self._member(*each) for each in zip(pool.endpoints, weights, strict=True)],
            in_order=pool.strategy is PoolStrategy.ORDER,
        )

    def _full_name(self, name: str) -> str:
        """The name of a model that may have been called by a short one."""
        if name in self._given:
            return name
        return str(parse_route(self._short_names.get(name, name)))

    def _member(self, name: str, weight: float = 1.0) -> PoolMember:
        """The way to a model. All pools share its client, and all runtimes its gate."""
        full = self._full_name(name)
        queue = self._queues[full] = self._gate_of(full)
        endpoint_model = queue.model(full)
        if full in self._given:
            return PoolMember(full, self._made[full], endpoint_model, weight=weight)
        if full not in self._clients:
            self._clients[full] = self._make(parse_route(full), endpoint_model)
        return PoolMember(full, self._clients[full], endpoint_model, weight=weight)

    def _gate_of(self, full: str) -> EndpointQueue:
        route = None if full in self._given else parse_route(full)
        if route is None or route.provider not in PROVIDER_APIS:
            queue = _queue(full)
            if route is not None and route.provider == EMBEDDED:
                queue.set_slots(1)
            return queue
        origin = _origin(route.endpoint or self._url_of(PROVIDER_APIS[route.provider]))
        queue, server = _queue(origin), self._servers.get(origin, EndpointSettings())
        queue.health.patience_s = server.patience_s
        if server.slots is not None:
            queue.set_slots(server.slots)
        return queue

    @property
    def replaying(self) -> bool:
        """Whether a recording stands in for every model."""
        return self._replay is not None

    async def served(self, name: str) -> ServedModel | None:
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

    def known(self, name: str) -> ServedModel | None:
        return self._served.get(name) if self._replay is None else self._replay.served(name)

    def loads(self) -> list[EndpointLoad]:
        return [queue.load for queue in dict.fromkeys(self._queues.values())]

    async def _smallest(self, name: str) -> ServedModel | None:
        """What is said of a model; of a pool, the one with the smallest window: all must do."""
        if self._short_names.get(name, name) not in self._pools:
            return await self._ask(name)
        asked = [self.served(each) for each in self.members(name)]
        found = [served for served in await asyncio.gather(*asked) if served is not None]
        return min(found, key=lambda s: UNLIMITED if s.window is None else s.window, default=None)

    async def _ask(self, name: str) -> ServedModel | None:
        if name in self._given:
            return None
        route = parse_route(self._short_names.get(name, name))
        if route.provider == EMBEDDED:
            from retinue.embedded.model import SERVED

            return SERVED
        if route.provider not in PROVIDER_APIS:
            return None
        service = PROVIDER_APIS[route.provider]
        url = route.endpoint or self._url_of(service)
        # A name may come from a project, which must not have anybody asked that the user does not
        # know. The services themselves do not tell, and have room for any agent.
        own = {_origin(one.url) for one in PROVIDER_APIS.values()}
        if _origin(url) in own or _origin(url) not in self._known:
            return None
        from retinue.models.server_info.inventory import served

        found = await served(self._endpoint(url, route.model, service))
        if found is not None:
            self._tell(found, url, self._full_name(name))
        return found

    def _tell(self, served: ServedModel, url: str, full: str) -> None:
        """Let the gate know what is known of its endpoint."""
        queue, server = _queue(_origin(url)), self._servers.get(_origin(url))
        if served.slots is not None and (server is None or server.slots is None):
            queue.set_slots(served.slots)
        queue.model(full).prefix_cache.per_slot = served.server in PER_SLOT_CACHE

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

    def _url_of(self, service: ProviderApi) -> str:
        return self._environment.get(service.url_variable) or service.url

    def _owner(self, service: ProviderApi, url: str) -> ProviderApi:
        """Whose key an address gets: each service's own address gets that of its own, whichever
        API is spoken there."""
        owners = [
            one
            for one in PROVIDER_APIS.values()
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
            from retinue.models.replay.recorder import RecordedModel

            model = RecordedModel(model, self._recorder)
        return RepairedModel(model)

    def _replayed(self, route: ModelRoute) -> ReplayModel:
        from retinue.models.replay.model import ReplayModel
        from retinue.models.replay.recording import read_recording

        file = route.model.removesuffix(AT_ITS_PACE)
        return ReplayModel(
            read_recording(self._root / file),
            name=str(route),
            redaction=redaction_of(self._root, self._environment),
            clock=None if file == route.model else self._clock,
        )

    def _make(self, route: ModelRoute, endpoint_model: EndpointModel) -> Model:
        if route.provider == "replay":
            return self._replayed(route)
        if route.provider == "scripted":
            from retinue.models.scripted.model import ScriptedModel

            return ScriptedModel.from_yaml(self._root / route.model)
        if route.provider == EMBEDDED:
            return embedded_model(self._environment)
        service = PROVIDER_APIS[route.provider]
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
            from retinue.models.anthropic.model import AnthropicModel

            return AnthropicModel(
                endpoint,
                name=str(route),
                thinking=route.thinking,
                on_headers=endpoint_model.on_headers,
            )
        from retinue.models.openai.model import OpenAIModel

        return OpenAIModel(endpoint, name=str(route), on_headers=endpoint_model.on_headers)

    def _endpoint(self, url: str, model: str, service: ProviderApi) -> Endpoint:
        variable = self._owner(service, url).key_variable
        key = self._environment.get(variable) if _origin(url) in self._trusted else None
        found = endpoint_at(url, self._environment, model=model, key=key, source=variable)
        server = self._servers.get(_origin(url), EndpointSettings())
        return msgspec.structs.replace(
            found,
            first_byte_timeout_s=server.first_byte_timeout_s,
            idle_timeout_s=server.idle_timeout_s,
        )


def embedded_model(environment: Environment) -> EmbeddedModel:
    """The model of this machine; ConfigError if it is not installed."""
    from retinue.embedded.llama_server import MODEL_ALIAS
    from retinue.embedded.model import NAME, PATIENCE_S, EmbeddedModel

    def connect(address: RunningServer) -> Model:
        from retinue.models.http.endpoint import Endpoint
        from retinue.models.openai.model import OpenAIModel

        endpoint = Endpoint(
            base_url=address.url,
            model=MODEL_ALIAS,
            api_key=address.key,
            first_byte_timeout_s=PATIENCE_S,
        )
        return OpenAIModel(endpoint, name=NAME)

    return EmbeddedModel(environment.embedded_dir, environment.variables, connect)


def redaction_of(root: Path, environment: Environment) -> Redaction:
    from retinue.models.replay.redaction import Redaction

    return Redaction(directory=str(root), secrets=environment.secrets)


# One gate for each endpoint, whoever asks: what one runtime learns of an endpoint holds for all.
# By event loop, since what waits on one cannot be woken from another.
_queues: dict[asyncio.AbstractEventLoop, dict[str, EndpointQueue]] = {}


def _queue(origin: str) -> EndpointQueue:
    loop = asyncio.get_running_loop()
    if loop not in _queues:
        for over in [other for other in _queues if other.is_closed()]:
            del _queues[over]
        _queues[loop] = {}
    return _queues[loop].setdefault(origin, EndpointQueue(origin))


def _origin(url: str) -> str:
    """Whose address it is, however it is written. It is shown, so it has no name and password."""
    parts = urlsplit(url)
    usual_port = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    host = parts.netloc.rpartition("@")[2].lower().removesuffix(usual_port)
    return f"{parts.scheme}://{host}"
