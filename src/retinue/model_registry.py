"""The models of a runtime by name: short names, pools, prices, clients, and what servers say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from retinue.config.environment import Environment, secret_variables
from retinue.config.model_providers import PROVIDER_APIS, RESPONSES
from retinue.config.model_routes import EMBEDDED, ModelRoute, parse_route
from retinue.config.model_table import complete_served
from retinue.config.server_addresses import origin_of
from retinue.config.settings import PoolStrategy, Settings, SettingsLayers
from retinue.domain.account import UNLIMITED
from retinue.domain.price import PoolPrice, Price
from retinue.domain.server_info import PER_SLOT_CACHE, EndpointLoad, ServedModel
from retinue.errors import ConfigError, StoreError
from retinue.model_endpoints import ModelEndpoints
from retinue.models.checked import CheckedModel
from retinue.models.repair.model import RepairedModel
from retinue.models.routing.endpoint_queue import EndpointModel, EndpointQueue
from retinue.models.routing.lent_slots import HostSlots
from retinue.models.routing.pool import Pool, PoolMember, UnqueuedModel
from retinue.ports.clock import Clock
from retinue.ports.endpoint_slots import AnswerSlot, LentSlots, SlotSource
from retinue.ports.model import Model

# Clients are imported where they are made: aiohttp alone costs 250 ms of CPU.
if TYPE_CHECKING:
    from retinue.embedded.model import EmbeddedModel
    from retinue.embedded.serving import RunningServer
    from retinue.models.replay.model import ReplayModel
    from retinue.models.replay.recorder import Recorder
    from retinue.models.replay.redaction import Redaction

RECORDED_PACE = "@recorded"
"""Suffix of a recording's file name: replies take as long as they took."""


class ModelRegistry:
    """The models of a runtime, shared by all of its agents.

    A client is made when its model is first named, and kept while the runtime is open. `given` are
    models that the program has made itself.
    """

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
        self._endpoints = ModelEndpoints(environment, layers.user, str(root))
        self._short_names = layers.user.models
        self._pools = layers.user.pools
        self._prices = layers.user.prices
        self._default = ""
        self._given = set(given)
        self._models = {n: self._wrapped(CheckedModel(model)) for n, model in given.items()}
        # By full name: several pools share the client of a model.
        self._clients: dict[str, Model] = {}
        self._queues: dict[str, EndpointQueue] = {}
        self._slot_source: SlotSource | None = None
        self._served: dict[str, ServedModel | None] = {}
        # Every child asks twice for the price of its model.
        self._known_prices: dict[str, Price | PoolPrice | None] = {}
        self._blind: set[str] = set()
        """Full names of models that cannot see images."""
        self._served_locks: dict[str, asyncio.Lock] = {}

    # Names

    def allow_endpoints(self, names: Iterable[str | None]) -> None:
        """Let models of these names be asked."""
        self._endpoints.allow(names)

    def choose_default(self, chosen: str | Model | None, settings: Settings) -> str | None:
        """Set the default model: the chosen one, or that of the environment or the settings.

        Returns its name; None if nothing names a model.
        """
        if chosen is not None and not isinstance(chosen, str):
            from retinue.models.replay.model import ReplayModel

            if isinstance(chosen, ReplayModel):
                self._replay = chosen
            self._models[chosen.name] = self._wrapped(CheckedModel(chosen))
            self._given.add(chosen.name)
            self._known_prices.clear()
            self._default = chosen.name
            return chosen.name
        if chosen is not None:
            return self.use_trusted(chosen)
        name = self._environment.get("RETINUE_MODEL") or settings.model
        return None if name is None else self.use(name)

    def use_trusted(self, name: str) -> str:
        """Make a model the default that the user named, so that it may be sent the key."""
        self._endpoints.trust(name)
        return self.use(name)

    def use(self, name: str) -> str:
        """Make it the default model."""
        name = self._short_names.get(name, name)
        self.allow_endpoints([name])
        route = parse_route(name)
        if route.provider == "replay":
            self._replay = self._replay_of(route)
            self._models[name] = self._wrapped(self._replay)
        self._default = name
        self.get(name)
        return name

    def resolve(self, model: str | None, endpoint: str | None) -> str | None:
        """The model name for a choice of model and endpoint; None if nothing is chosen.

        A model may have made this choice, so an address must be one that the user knows. A bare
        model name means another model of the server in use.
        """
        if self.replaying or (not model and not endpoint):
            return None
        if endpoint:
            self._endpoints.check_allowed(endpoint)
        if endpoint and model in self._pools:
            raise ConfigError(f"{model!r} is a pool and has its endpoints; leave `endpoint` out.")
        if model in self._models or model in self._pools:
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
            self._endpoints.check_allowed(route.endpoint)
            return name
        if default is not None and default.provider == route.provider:
            return str(msgspec.structs.replace(route, endpoint=default.endpoint))
        if name in self._endpoints.named_by_user and name.startswith(f"{route.provider}:"):
            return name  # The user named it, so a model that chooses it leads nowhere new.
        known = ", ".join(sorted({*self._models, *self._pools, *self._short_names}))
        raise ConfigError(f"Unknown model {name!r}; there are: {known}.")

    def members(self, name: str) -> list[str]:
        """The full names of a pool's models; of a model, its own name."""
        name = self._short_names.get(name, name)
        if name not in self._pools:
            return [name]
        return [self._full_name(endpoint) for endpoint in self._pools[name].endpoints]

    def is_served(self, name: str) -> bool:
        """Whether another process can ask the model too: servers over HTTP answer, not objects."""
        if self.replaying or self._recorder is not None:
            return False
        members = self.members(name)
        return not self._given.intersection(members) and all(
            parse_route(member).provider in PROVIDER_APIS for member in members
        )

    # Slots of endpoints, which a run shares with its hosts

    def lend_slots(self, answer: AnswerSlot) -> LentSlots:
        """Let a host use slots of the endpoints of this process."""
        return HostSlots(self._endpoint_model, answer)

    def _endpoint_model(self, full_name: str) -> EndpointModel | None:
        queue = self._queues.get(full_name)
        return None if queue is None else queue.model(full_name)

    def take_slots_from(self, source: SlotSource) -> None:
        """On a host: take a slot from there for each request."""
        self._slot_source = source
        for queue in self._queues.values():
            queue.take_slots_from(source)

    def _full_name(self, name: str) -> str:
        if name in self._given:
            return name
        return str(parse_route(self._short_names.get(name, name)))

    # Prices

    def price(self, name: str) -> Price | PoolPrice | None:
        """The price of a model; of a pool, those of its models.

        The user's prices, by full or bare name, come before what the server says, and that before
        the table of models.
        """
        if name not in self._known_prices:
            self._known_prices[name] = self._find_price(name)
        return self._known_prices[name]

    def _find_price(self, name: str) -> Price | PoolPrice | None:
        if name not in self._pools:
            return self._price(name)
        prices = {n: price for n in self.members(name) if (price := self._price(n)) is not None}
        return PoolPrice(prices) if prices else None

    def _price(self, name: str) -> Price | None:
        if name in self._prices or name in self._given:
            return self._prices.get(name)
        route = parse_route(self._short_names.get(name, name))
        if (price := self._prices.get(str(route)) or self._prices.get(route.model)) is not None:
            return price
        served = self._served.get(name)
        if served is not None and served.price is not None:
            return served.price
        known = self._endpoints.known_model(route) if route.provider in PROVIDER_APIS else None
        if known is None:
            return None
        price, settings = known.price, self._endpoints.settings_of(self._endpoints.url_of(route))
        if settings.one_hour_cache and price.cache_write is not None:
            # Writing for an hour costs twice the input, instead of 1.25 times.
            return msgspec.structs.replace(price, cache_write=2 * price.input, tiers=())
        return price

    # Clients

    def get(self, name: str) -> Model:
        """The model of that name. Raises ConfigError for an unknown name."""
        if self.replaying:
            name = self._default  # A replay answers for every model that a role may name.
        if name not in self._models:
            self._models[name] = self._wrapped(self._pool(name))
        return self._models[name]

    def _pool(self, name: str) -> Pool:
        """The pool of that name; a model by itself is a pool of one."""
        name = self._short_names.get(name, name)
        pool = self._pools.get(name)
        if pool is None:
            return Pool(self._full_name(name), [self._pool_member(name)])
        weights = pool.weights or (1.0,) * len(pool.endpoints)
        return Pool(
            name,
            [self._pool_member(*each) for each in zip(pool.endpoints, weights, strict=True)],
            in_order=pool.strategy is PoolStrategy.ORDER,
        )

    def _pool_member(self, name: str, weight: float = 1.0) -> PoolMember:
        full = self._full_name(name)
        queue = self._queues[full] = self._queue_of(full)
        if self._slot_source is not None:
            queue.take_slots_from(self._slot_source)
        endpoint_model = queue.model(full)
        if full in self._given:
            return PoolMember(full, self._models[full], endpoint_model, weight=weight)
        if full not in self._clients:
            self._clients[full] = self._new_client(parse_route(full), endpoint_model)
            if full in self._blind:
                self._leave_images_out(full)
        return PoolMember(full, self._clients[full], endpoint_model, weight=weight)

    def _leave_images_out(self, full_name: str) -> None:
        from retinue.models.http.client import HttpModel
        from retinue.models.http.images import IMAGES

        client = self._clients.get(full_name)
        if isinstance(client, HttpModel):
            client.leave_out(IMAGES)

    def _queue_of(self, full_name: str) -> EndpointQueue:
        route = None if full_name in self._given else parse_route(full_name)
        if route is None or route.provider not in PROVIDER_APIS:
            queue = _shared_queue(full_name)
            if route is not None and route.provider == EMBEDDED:
                queue.set_slots(1)
            return queue
        url = self._endpoints.url_of(route)
        queue, settings = _shared_queue(origin_of(url)), self._endpoints.settings_of(url)
        queue.health.patience_s = settings.patience_s
        if settings.slots is not None:
            queue.set_slots(settings.slots)
        return queue

    def _new_client(self, route: ModelRoute, endpoint_model: EndpointModel) -> Model:
        if route.provider == "replay":
            return self._replay_of(route)
        if route.provider == "scripted":
            from retinue.models.scripted.model import ScriptedModel

            return ScriptedModel.from_yaml(self._root / route.model)
        if route.provider == EMBEDDED:
            return embedded_model(self._environment)
        url = self._endpoints.url_of(route)
        self._endpoints.check_allowed(url)
        endpoint, cloud = self._endpoints.endpoint(route), self._endpoints.cloud_of(route)
        if cloud is not None and endpoint.api_key is None and endpoint.read_key is None:
            close = get_close_matches(route.model, {*self._short_names, *self._pools}, n=1)
            raise ConfigError(
                f"Model {route.model!r} needs a key: set {endpoint.key_source}; or name a server"
                f" of your own: -m {route.provider}:{route.model}@http://127.0.0.1:8080/v1."
                + (f" Did you mean {close[0]!r}?" if close else "")
            )
        name, on_headers = str(route), endpoint_model.on_headers
        if PROVIDER_APIS[route.provider].dialect == "anthropic":
            from retinue.models.anthropic.model import AnthropicModel

            known = self._endpoints.known_model(route)
            return AnthropicModel(
                endpoint,
                name=name,
                thinking=route.thinking,
                adaptive=known is not None and "a" in known.abilities,
                one_hour_cache=self._endpoints.settings_of(url).one_hour_cache,
                on_headers=on_headers,
            )
        from retinue.models.openai.model import OpenAIModel
        from retinue.models.responses.model import ResponsesModel, is_responses_address

        responses = route.provider == RESPONSES or is_responses_address(url)
        client = ResponsesModel if responses else OpenAIModel
        return client(endpoint, name=name, effort=route.thinking.effort, on_headers=on_headers)

    def _replay_of(self, route: ModelRoute) -> ReplayModel:
        from retinue.models.replay.model import ReplayModel
        from retinue.models.replay.recording import read_recording

        file = route.model.removesuffix(RECORDED_PACE)
        return ReplayModel(
            read_recording(self._root / file),
            name=str(route),
            redaction=redaction_of(self._root, self._environment),
            clock=None if file == route.model else self._clock,
        )

    def _wrapped(self, model: Model) -> Model:
        """The model with its replies repaired, and recorded as they are before the repair."""
        if not isinstance(model, Pool):
            model = UnqueuedModel(model)
        if self._recorder is not None:
            from retinue.models.replay.recorder import RecordedModel

            model = RecordedModel(model, self._recorder)
        return RepairedModel(model)

    @property
    def replaying(self) -> bool:
        """Whether a recording stands in for every model."""
        return self._replay is not None

    async def start_embedded(self, name: str, on_wait: Callable[[str], None] | None) -> None:
        """Start the embedded model if it is the default.

        If only a role or a call chooses it, its first request starts it.
        """
        given = self.replaying or name in self._given
        if given or self._full_name(name) != EMBEDDED:
            return
        from retinue.embedded.model import EmbeddedModel

        client = self._clients[EMBEDDED]
        assert isinstance(client, EmbeddedModel)
        last = ""

        def report_once(text: str) -> None:
            nonlocal last
            if text != last and on_wait is not None:
                on_wait(text)
            last = text

        await client.open(report_once)

    # Information from servers

    async def served(self, name: str) -> ServedModel | None:
        """The server's information about a model, requested once; None if the server has none."""
        if self._replay is not None:
            return self._replay.served(name)
        if name not in self._served:
            async with self._served_locks.setdefault(name, asyncio.Lock()):
                if name not in self._served:
                    found = self._served[name] = await self._smallest_served(name)
                    self._known_prices.clear()
                    if found is not None and self._recorder is not None:
                        self._recorder.add_served(name, found)
        return self._served[name]

    def known(self, name: str) -> ServedModel | None:
        return self._served.get(name) if self._replay is None else self._replay.served(name)

    def loads(self) -> list[EndpointLoad]:
        return [queue.load for queue in dict.fromkeys(self._queues.values())]

    async def _smallest_served(self, name: str) -> ServedModel | None:
        """Information about a model; for a pool, about the model with the smallest window."""
        if self._short_names.get(name, name) not in self._pools:
            return await self._ask_server(name)
        asked = [self.served(each) for each in self.members(name)]
        found = [served for served in await asyncio.gather(*asked) if served is not None]
        return min(found, key=lambda s: UNLIMITED if s.window is None else s.window, default=None)

    async def _ask_server(self, name: str) -> ServedModel | None:
        if name in self._given:
            return None
        route = parse_route(self._short_names.get(name, name))
        if route.provider == EMBEDDED:
            from retinue.embedded.adapter import installed_adapter
            from retinue.embedded.model import served_model

            return served_model(installed_adapter())
        if route.provider not in PROVIDER_APIS:
            return None
        url, cloud = self._endpoints.url_of(route), self._endpoints.cloud_of(route)
        if not self._endpoints.is_allowed(url):
            return None
        known = self._endpoints.known_model(route)
        found = None
        # A provider that does not tell is not asked.
        if cloud is None or cloud.lists_windows:
            from retinue.models.server_info.inventory import inspect_model

            dialect = PROVIDER_APIS[route.provider].dialect
            found = await inspect_model(self._endpoints.endpoint(route), dialect)
        if known is not None:
            found = complete_served(found or ServedModel(model=route.model), known)
        elif cloud is not None and cloud.table and self._price(name) is None:
            found = found or ServedModel(model=route.model)
            found = msgspec.structs.replace(found, unpriced=found.price is None)
        if found is not None:
            queue = _shared_queue(origin_of(url))
            if found.slots is not None and self._endpoints.settings_of(url).slots is None:
                queue.set_slots(found.slots)
            per_slot = found.server in PER_SLOT_CACHE
            queue.model(self._full_name(name)).prefix_cache.per_slot = per_slot
            if found.images is False:
                self._blind.add(self._full_name(name))
                self._leave_images_out(self._full_name(name))
        return found or ServedModel(model=route.model)

    # Closing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for model in self._models.values():
            try:
                await model.aclose()
            except Exception:
                # Raise the error of the block, not the error that it causes on closing.
                if kind is None:
                    raise
        if self._recorder is not None:
            with nullcontext() if kind is None else suppress(StoreError):
                self._recorder.close()


# One queue for each endpoint of the process: what one runtime learns of an endpoint holds for all.
# By event loop, since what waits on one loop cannot be woken from another.
_queues: dict[asyncio.AbstractEventLoop, dict[str, EndpointQueue]] = {}


def _shared_queue(origin: str) -> EndpointQueue:
    loop = asyncio.get_running_loop()
    if loop not in _queues:
        for closed in [other for other in _queues if other.is_closed()]:
            del _queues[closed]
        _queues[loop] = {}
    return _queues[loop].setdefault(origin, EndpointQueue(origin))


def embedded_model(environment: Environment) -> EmbeddedModel:
    """The model that is installed on this machine; ConfigError if none is installed."""
    from retinue.embedded.adapter import installed_adapter
    from retinue.embedded.model import EmbeddedModel

    return EmbeddedModel(
        environment.embedded_dir, environment.variables, connect_embedded, installed_adapter()
    )


def connect_embedded(server: RunningServer) -> Model:
    """A client of the embedded model's server."""
    from retinue.embedded.llama_server import MODEL_ALIAS
    from retinue.embedded.model import NAME, PATIENCE_S
    from retinue.models.http.endpoint import Endpoint
    from retinue.models.http.images import IMAGES
    from retinue.models.openai.model import OpenAIModel

    endpoint = Endpoint(
        base_url=server.url,
        model=MODEL_ALIAS,
        api_key=server.key,
        first_byte_timeout_s=PATIENCE_S,
    )
    model = OpenAIModel(endpoint, name=NAME)
    model.leave_out(IMAGES)
    return model


def redaction_of(root: Path, environment: Environment) -> Redaction:
    """Redaction for recordings of this project: its folder, and the values of secret variables."""
    from retinue.models.replay.redaction import Redaction

    return Redaction(directory=str(root), secrets=secret_variables(environment))
