"""Tests that every adapter of the port `Model` must pass; its test class inherits them.

class TestMyModel(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps):
        yield MyModel(...)  # one that will answer these steps, in order
"""

from __future__ import annotations

import asyncio
import base64
from contextlib import AbstractAsyncContextManager, suppress

import msgspec

from retinue.domain.images import read_image
from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Request,
    SystemMessage,
    Thought,
    Thoughts,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from retinue.models.scripted.model import ScriptedReply, call, calls, say, think
from retinue.ports.model import Model

SPEC = ToolSpec(
    "read_file",
    "Read a file.",
    msgspec.Raw(b'{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}'),
)
OPENING = (SystemMessage("Be brief."), UserMessage("What is in a.txt?"))
SCHEMA = '{"type":"object","properties":{"lines":{"type":"integer"}},"required":["lines"]}'


# One red pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
IMAGE = read_image("shot.png", PNG)


class ModelContract:
    """Tests that every `Model` should pass: inherit it, and define `opened`.

    The tests are coroutines: use pytest-asyncio with `asyncio_mode = "auto"`, or anyio with
    `anyio_mode = "auto"`. They cover text, calls, images, schemas, usage, cancelling, and thoughts:
    those of a step come back in `AssistantMessage.thoughts`. For a model that does not think, set
    the tests of thoughts to None: `test_thoughts_are_no_text_and_are_taken_back = None`.

    To see values in failed assertions, `pytest.register_assert_rewrite(
    "retinue.testing.model_contract")` has to come first in your `conftest.py`.

    ```python
    from contextlib import asynccontextmanager

    class TestMyModel(ModelContract):
        @asynccontextmanager
        async def opened(self, *steps):
            yield ScriptedModel(list(steps))  # your model, which will answer these steps

    await TestMyModel().test_a_call_keeps_its_name_and_arguments()
    ```
    """

    def opened(self, *steps: ScriptedReply) -> AbstractAsyncContextManager[Model]:
        """A model that will reply with these steps, one for each request, in order.

        Let the server of your model, or what stands in for it, send the fields of each step:
        `thought`, `text`, `calls`, `finish` and `usage`, those that are set.
        """
        raise NotImplementedError

    async def test_text_arrives_in_pieces_and_as_a_whole(self) -> None:
        text = "Grüße, 世界! \n\n  A heron 🪶 stands here.\n"
        pieces: list[str] = []
        async with self.opened(say(text)) as model:
            reply = await model.reply(Request(messages=OPENING), pieces.append)
        assert (reply.message.content, reply.message.calls) == (text, ())
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

    async def test_images_are_part_of_a_conversation(self) -> None:
        async with self.opened(call("read_file", path="shot.png"), say("A red pixel.")) as model:
            asked = (OPENING[0], UserMessage("What is on it?", (IMAGE,)))
            first = await model.reply(Request(messages=asked, tools=(SPEC,)))
            (made,) = first.message.calls
            answer = ToolMessage(made.id, "[seen]", images=(IMAGE,))
            second = await model.reply(
                Request(messages=(*asked, first.message, answer), tools=(SPEC,))
            )
        assert second.message.content == "A red pixel."

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
            answers = [ToolMessage(made.id, "") for made in first.message.calls]
            second = await model.reply(
                Request(messages=(*OPENING, first.message, *answers), tools=(SPEC,))
            )
        assert second.message.content == "Nothing."

    async def test_answers_of_several_calls_and_a_failed_one_are_taken(self) -> None:
        asked = calls(call("read_file", path="a"), call("read_file", path="b"))
        async with self.opened(asked, say("One.")) as model:
            first = await model.reply(Request(messages=OPENING, tools=(SPEC,)))
            one, other = first.message.calls
            answers = (ToolMessage(one.id, "text"), ToolMessage(other.id, "[ERROR]", failed=True))
            told = UserMessage("Be quick.")
            second = await model.reply(
                Request(messages=(*OPENING, first.message, *answers, told), tools=(SPEC,))
            )
        assert second.message.content == "One."

    async def test_a_last_word_without_tools_after_calls(self) -> None:
        async with self.opened(call("read_file", path="a"), say("Enough.")) as model:
            first = await model.reply(Request(messages=OPENING, tools=(SPEC,)))
            (made,) = first.message.calls
            last = (
                *OPENING,
                first.message,
                ToolMessage(made.id, "text"),
                UserMessage("Answer now."),
            )
            assert (await model.reply(Request(messages=last))).message.content == "Enough."

    async def test_thoughts_are_no_text_and_are_taken_back(self) -> None:
        thought = "Let me see: ä 🪶."
        told: list[str] = []
        async with self.opened(
            think(thought, call("read_file", path="a.txt")), say("Nothing.")
        ) as model:
            first = await model.reply(Request(messages=OPENING, tools=(SPEC,)), told.append)
            message = first.message
            answers = [ToolMessage(made.id, "") for made in message.calls]
            # As a journal keeps it.
            message = msgspec.json.decode(msgspec.json.encode(message), type=AssistantMessage)
            second = await model.reply(
                Request(messages=(*OPENING, message, *answers), tools=(SPEC,))
            )
        assert message == first.message
        assert message.content == "".join(told) == ""
        assert message.thoughts is not None
        # Thoughts belong to the model that wrote them: in a pool, to one of its members.
        assert message.thoughts.by
        assert thought in message.thoughts.blocks[0].block
        assert second.message.content == "Nothing."

    async def test_thoughts_of_a_reply_without_calls_are_taken_back(self) -> None:
        async with self.opened(think("Hm.", say("Nothing.")), say("Indeed.")) as model:
            first = await model.reply(Request(messages=OPENING))
            assert first.message.content == "Nothing."
            assert first.message.thoughts is not None
            asked = (*OPENING, first.message, UserMessage("Sure?"))
            assert (await model.reply(Request(messages=asked))).message.content == "Indeed."

    async def test_thoughts_that_were_cut_off_are_not_kept(self) -> None:
        step = think("Hm.", say("", finish=Finish.LENGTH))
        async with self.opened(step) as model:
            reply = await model.reply(Request(messages=OPENING, max_output_tokens=3))
        assert reply.message.thoughts is None

    async def test_thoughts_of_another_model_are_left_alone(self) -> None:
        theirs = Thoughts("another", (Thought('{"type":"thinking","thinking":"forged"}'),))
        made = AssistantMessage("", (ToolCall("call:1.2", "read_file", "{}"),), theirs)
        asked = (*OPENING, made, ToolMessage("call:1.2", "text"))
        async with self.opened(say("Nothing.")) as model:
            reply = await model.reply(Request(messages=asked, tools=(SPEC,)))
        assert reply.message.content == "Nothing."

    async def test_an_answer_to_a_schema_is_its_text(self) -> None:
        async with self.opened(say('{"lines": 3}'), say('{"lines": 4}')) as model:
            plain = await model.reply(Request(messages=OPENING, schema=SCHEMA))
            beside = await model.reply(Request(messages=OPENING, schema=SCHEMA, tools=(SPEC,)))
        assert (plain.message.content, plain.message.calls) == ('{"lines": 3}', ())
        assert (beside.message.content, beside.message.calls) == ('{"lines": 4}', ())

    async def test_a_schema_does_not_forbid_calls(self) -> None:
        async with self.opened(call("read_file", path="a.txt")) as model:
            reply = await model.reply(Request(messages=OPENING, schema=SCHEMA, tools=(SPEC,)))
        assert [made.name for made in reply.message.calls] == ["read_file"]

    async def test_a_reply_can_be_cancelled_in_its_middle(self) -> None:
        heard = asyncio.Event()
        async with self.opened(say("one two three four").after(3600), say("Hi.")) as model:
            task = asyncio.ensure_future(
                model.reply(Request(messages=OPENING), lambda _: heard.set())
            )
            await heard.wait()
            task.cancel()
            # A reply that comes in a single piece may be whole already.
            with suppress(asyncio.CancelledError):
                await task
            assert (await model.reply(Request(messages=OPENING))).message.content == "Hi."

    async def test_the_reply_that_hit_the_limit_says_so(self) -> None:
        async with self.opened(say("Once upon a", finish=Finish.LENGTH)) as model:
            reply = await model.reply(Request(messages=OPENING, max_output_tokens=3))
        assert reply.finish is Finish.LENGTH

    async def test_usage_is_what_was_counted(self) -> None:
        async with self.opened(say("Hi.").using(100, 7, tokens_cached=90)) as model:
            usage = (await model.reply(Request(messages=OPENING))).usage
        assert (usage.tokens_in, usage.tokens_cached, usage.tokens_out) == (100, 90, 7)
        assert not usage.estimated

    async def test_usage_tells_what_was_put_into_a_cache(self) -> None:
        used = Usage(100, 60, 7, tokens_written=30)
        step = msgspec.structs.replace(say("Hi."), usage=used)
        async with self.opened(step) as model:
            usage = (await model.reply(Request(messages=OPENING))).usage
        # Not every API tells it, but the sum is always the same.
        assert usage in (used, Usage(100, 60, 7))

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
