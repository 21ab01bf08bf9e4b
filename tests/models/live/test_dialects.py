"""One agent run by all three APIs of LiteLLM, which stands before a scripted server.

LiteLLM translates the Responses API and the Messages API into chat completions, so that one
scripted server answers all of them, in streams that nobody here wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.messages import Finish, Request
from retinue.models.http.endpoint import Endpoint
from retinue.models.responses.model import ResponsesModel
from retinue.models.scripted.model import call, calls, say, think
from retinue.testing.model_contract import OPENING, SCHEMA, SPEC
from retinue.testing.server import Answering, Received
from tests.interfaces.cli.conftest import Serving
from tests.models.live.conftest import PROXY_KEY, proxy_before

pytestmark = pytest.mark.live

DIALECTS = ("openai", "responses", "anthropic")


def answer(request: Received) -> Answering:
    """Two rounds of two calls, then an answer; by the position in the conversation."""
    body = request.json
    if body.get("response_format"):
        return say('{"lines": 3}').using(20, 5)
    if body.get("max_tokens") == 16 or body.get("max_completion_tokens") == 16:
        return say("Once upon a", finish=Finish.LENGTH).using(20, 16)
    rounds = sum(1 for message in body["messages"] if message.get("tool_calls"))
    if not body.get("tools") or rounds == 2:
        return say("Three herons.").using(120, 5)
    plan = calls(call("list_dir", path="."), call("read_file", path=f"{'ab'[rounds]}.txt"))
    return think("Let me look.", plan).using(100, 40)


@pytest.fixture(scope="module")
def scripted() -> Iterator[Serving]:
    with Serving(answer, {}) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(scripted: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    # By this name it translates to chat completions, and not to the Responses API.
    with proxy_before(
        scripted.url, "openai/chat_completions/m", tmp_path_factory.mktemp("litellm")
    ) as endpoint:
        yield endpoint


async def test_the_same_run_by_all_three(
    proxy: Endpoint, scripted: Serving, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in "ab":
        (project / f"{name}.txt").write_text(f"Herons of {name}.\n")
    found = {}
    for dialect in DIALECTS:
        address = proxy.base_url.removesuffix("/v1") if dialect == "anthropic" else proxy.base_url
        keys = {"OPENAI_API_KEY": PROXY_KEY, "ANTHROPIC_API_KEY": PROXY_KEY}
        environment = Environment(variables={"HOME": str(tmp_path), **keys})
        model = f"{dialect}:{proxy.model}@{address}"
        async with retinue.open(project, model=model, environment=environment) as rt:
            result = await rt.spawn("researcher", f"How many herons, by {dialect}?")
        read = [Path(each).name for each in result.files_read]
        found[dialect] = (
            result.status,
            result.response,
            result.usage.turns,
            result.usage.tool_calls,
            sorted(read),
        )
    assert found["openai"] == ("completed", "Three herons.", 3, 4, ["a.txt", "b.txt"])
    assert found["responses"] == found["openai"]
    assert found["anthropic"] == found["openai"]


async def test_the_ends_of_a_response(proxy: Endpoint) -> None:
    async with ResponsesModel(proxy) as model:
        asked = await model.reply(Request(messages=OPENING, tools=(SPEC,)))
        held = await model.reply(Request(messages=OPENING, schema=SCHEMA))
        cut = await model.reply(Request(messages=OPENING, max_output_tokens=16))
    assert asked.finish is Finish.TOOLS
    assert [made.name for made in asked.message.calls] == ["list_dir", "read_file"]
    assert (asked.usage.tokens_in, asked.usage.tokens_out) == (100, 40)
    assert (held.message.content, held.finish) == ('{"lines": 3}', Finish.STOP)
    assert (cut.message.content, cut.finish) == ("Once upon a", Finish.LENGTH)
