"""An endpoint on a clock that the test moves, whose model does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    QueuedRequest,
    Reply,
    Request,
    SystemMessage,
    Usage,
    UserMessage,
)
from retinue.errors import ModelError
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.openai.reply import ChatReplyReader
from retinue.models.routing.endpoint_queue import EndpointModel, EndpointQueue
from retinue.models.routing.pool import Pool, PoolMember
from retinue.testing.clock import FakeClock

ADDRESS = "http://127.0.0.1:8080"
REPLY = Reply(message=AssistantMessage("Yes."), usage=Usage(10, 0, 5), finish=Finish.STOP)


class ReceivedCall:
    """One request that has reached the model."""

    def __init__(self, name: str, on_text: Callable[[str], None] | None) -> None:
        self.name = name
        self.on_text = on_text
        self.outcome: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def answered(self) -> None:
        self.outcome.set_result(REPLY)
        await settled()

    async def failed(self, error: ModelError) -> None:
        self.outcome.set_exception(error)
        await settled()

    async def first_token(self) -> None:
        assert self.on_text is not None
        self.on_text("Y")
        await settled()

    async def keep_alive(self) -> None:
        """Send a comment, as a client reads it."""
        reader = ChatReplyReader(ErrorMapper(Endpoint(base_url=ADDRESS, model="m")), self.on_text)
        assert reader.feed([]) is None
        await settled()


class FakeEndpoint:
    """A model, and everybody who is with it or wants to be."""

    name = "m"

    def __init__(self, queue: EndpointQueue) -> None:
        self.queue = queue
        self.model: EndpointModel = queue.model("m")
        self.pool = Pool("m", [PoolMember("m", self, self.model)])
        self.visits: list[ReceivedCall] = []
        self.errors: list[ModelError] = []
        self.said = REPLY
        self.tasks: dict[str, asyncio.Task[Reply]] = {}

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        visit = ReceivedCall(request.messages[-1].content, on_text)
        self.visits.append(visit)
        try:
            return await visit.outcome
        finally:
            self.visits.remove(visit)

    async def aclose(self) -> None:
        pass

    async def ask(
        self,
        name: str,
        *,
        lane: str = "run",
        system: str = "Be brief.",
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        messages = (SystemMessage(system), UserMessage(name))
        request = QueuedRequest(messages=messages, queue_key=lane, asked_at=float(len(self.tasks)))
        self.tasks[name] = asyncio.create_task(self._asking(request, on_text))
        await settled()

    async def _asking(self, request: Request, on_text: Callable[[str], None] | None) -> Reply:
        """As an agent does it: a request that the queue waits out is made again at once."""
        while True:
            try:
                return await self.pool.reply(request, on_text)
            except ModelError as error:
                self.errors.append(error)
                if not error.held:
                    raise

    @property
    def present(self) -> list[str]:
        return [visit.name for visit in self.visits]

    def __getitem__(self, name: str) -> ReceivedCall:
        return next(visit for visit in self.visits if visit.name == name)

    async def known(self) -> None:
        """Let the endpoint have answered once."""
        await self.ask("hello")
        await self["hello"].answered()

    async def error_of(self, name: str) -> ModelError:
        with pytest.raises(ModelError) as caught:
            await self.tasks[name]
        return caught.value

    async def closed(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert self.queue.in_flight == self.queue.waiting == 0


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def passing(clock: FakeClock, seconds: float) -> None:
    clock.advance(seconds)
    await settled()


Opened = Callable[..., FakeEndpoint]
