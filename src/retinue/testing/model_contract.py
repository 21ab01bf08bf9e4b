"""What every adapter of the port `Model` must do, as tests that its own tests inherit.

class TestMyModel(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps):
        yield MyModel(...)  # one that will answer these steps, in order
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

import msgspec

from retinue.domain.messages import (
    Assistant,
    Finish,
    Request,
    System,
    ToolAnswer,
    ToolSpec,
    User,
)
from retinue.models.scripted import Answer, call, calls, say
from retinue.ports import Model

SPEC = ToolSpec(
    "read_file",
    "Read a file.",
    msgspec.Raw(b'{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}'),
)
OPENING = (System("Be brief."), User("What is in a.txt?"))


class ModelContract:
    def opened(self, *steps: Answer) -> AbstractAsyncContextManager[Model]:
        """A model that will reply with these steps."""
        raise NotImplementedError

    async def test_text_arrives_in_pieces_and_as_a_whole(self) -> None:
        text = "Grüße, 世界! \n\n  A heron 🪶 stands here.\n"
        pieces: list[str] = []
        async with self.opened(say(text)) as model:
            reply = await model.reply(Request(messages=OPENING), pieces.append)
        assert reply.message == Assistant(text)
        assert "".join(pieces) == text
        assert reply.finish is Finish.STOP

    async def test_a_call_keeps_its_name_and_arguments(self) -> None:
        async with self.opened(call("read_file", path='ä "b".txt')) as model:
            reply = await model.reply(Request(messages=OPENING, tools=(SPEC,)))
        (made,) = reply.message.calls
        assert made.name == "read_file"
        assert msgspec.json.decode(made.arguments) == {"path": 'ä "b".txt'}
        assert made.id
        assert reply.finish is Finish.TOOLS

    async def test_several_calls_keep_their_order_and_have_different_ids(self) -> None:
        step = calls(*(call("read_file", path=f"{n}.txt") for n in range(5)), text="All five.")
        async with self.opened(step) as model:
            reply = await model.reply(Request(messages=OPENING, tools=(SPEC,)))
        paths = [msgspec.json.decode(made.arguments)["path"] for made in reply.message.calls]
        assert paths == [f"{n}.txt" for n in range(5)]
        assert len({made.id for made in reply.message.calls}) == 5
        assert reply.message.content == "All five."

    async def test_a_conversation_goes_on_after_a_tool(self) -> None:
        async with self.opened(call("read_file", path="a.txt"), say("Nothing.")) as model:
            first = await model.reply(Request(messages=OPENING, tools=(SPEC,)))
            answers = [ToolAnswer(made.id, "") for made in first.message.calls]
            second = await model.reply(
                Request(messages=(*OPENING, first.message, *answers), tools=(SPEC,))
            )
        assert second.message.content == "Nothing."

    async def test_the_reply_that_hit_the_limit_says_so(self) -> None:
        async with self.opened(say("Once upon a", finish=Finish.LENGTH)) as model:
            reply = await model.reply(Request(messages=OPENING, max_output_tokens=3))
        assert reply.finish is Finish.LENGTH

    async def test_usage_is_what_was_counted(self) -> None:
        async with self.opened(say("Hi.").using(100, 7, tokens_cached=90)) as model:
            usage = (await model.reply(Request(messages=OPENING))).usage
        assert (usage.tokens_in, usage.tokens_cached, usage.tokens_out) == (100, 90, 7)
        assert not usage.estimated

    async def test_usage_that_nobody_counted_is_estimated(self) -> None:
        async with self.opened(say("Hi, there.")) as model:
            usage = (await model.reply(Request(messages=OPENING))).usage
        assert usage.estimated
        assert usage.tokens_in > 0
        assert usage.tokens_out == 3

    async def test_many_replies_at_once(self) -> None:
        async with self.opened(*(say(f"Reply {n}.") for n in range(20))) as model:
            replies = await asyncio.gather(
                *(model.reply(Request(messages=OPENING)) for _ in range(20))
            )
        said = sorted(reply.message.content for reply in replies)
        assert said == sorted(f"Reply {n}." for n in range(20))

    async def test_closing_twice_is_fine(self) -> None:
        async with self.opened(say("Hi.")) as model:
            await model.reply(Request(messages=OPENING))
            await model.aclose()
            await model.aclose()

    async def test_it_has_a_name(self) -> None:
        async with self.opened() as model:
            assert model.name
