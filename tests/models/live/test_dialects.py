"""One agent run by all three APIs of LiteLLM, which stands before a scripted server.

LiteLLM translates the Responses API and the Messages API into chat completions, so that one
scripted server answers all of them, in streams that nobody here wrote.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from tests.runtime.test_images import SHOT

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
    if "On the picture" in str(body["messages"]):
        seen = say(f"{len(images_in(body))} seen.").using(120, 5)
        return call("read_file", path="shot.png").using(100, 9) if not rounds else seen
    if not body.get("tools") or rounds == 2:
        return say("Three herons.").using(120, 5)
    plan = calls(call("list_dir", path="."), call("read_file", path=f"{'ab'[rounds]}.txt"))
    return think("Let me look.", plan).using(100, 40)


def images_in(body: dict[str, Any]) -> list[str]:
    """The addresses of all images in a request, whatever message they are in."""
    parts = [m["content"] for m in body["messages"] if isinstance(m.get("content"), list)]
    return [part["image_url"]["url"] for each in parts for part in each if "image_url" in part]


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


async def by_all_three(
    endpoint: Endpoint, project: Path, task: str, **options: Any
) -> list[tuple[Any, ...]]:
    """What comes of one researcher by each API: status, answer, turns, calls, files read."""
    found = []
    for dialect in DIALECTS:
        address = endpoint.base_url
        if dialect == "anthropic":
            address = address.removesuffix("/v1")
        keys = {"OPENAI_API_KEY": PROXY_KEY, "ANTHROPIC_API_KEY": PROXY_KEY}
        environment = Environment(variables={"HOME": str(project.parent), **keys})
        model = f"{dialect}:{endpoint.model}@{address}"
        async with retinue.open(project, model=model, environment=environment) as rt:
            result = await rt.spawn("researcher", task, cache=False, **options)
        read = sorted(Path(each).name for each in result.files_read)
        usage = result.usage
        found.append((result.status, result.response, usage.turns, usage.tool_calls, read))
    return found


async def test_the_same_run_by_all_three(proxy: Endpoint, project: Path) -> None:
    for name in "ab":
        (project / f"{name}.txt").write_text(f"Herons of {name}.\n")
    found = await by_all_three(proxy, project, "How many herons?")
    assert found == [("completed", "Three herons.", 3, 4, ["a.txt", "b.txt"])] * 3


async def test_images_by_all_three(proxy: Endpoint, scripted: Serving, project: Path) -> None:
    """One that is attached, and one that a tool reads."""
    (project / "shot.png").write_bytes(SHOT)
    before = len(scripted.requests)
    found = await by_all_three(proxy, project, "On the picture: what?", context_files=["shot.png"])
    assert found == [("completed", "2 seen.", 2, 1, ["shot.png"])] * 3
    sent = [images_in(request.json) for request in scripted.requests[before:]]
    url = f"data:image/png;base64,{base64.b64encode(SHOT).decode()}"
    assert sent == [[url], [url, url]] * 3


async def test_llama_cpp_answers_the_same_by_all_three(
    roomy_llama_cpp: Endpoint, project: Path
) -> None:
    found = await by_all_three(
        roomy_llama_cpp,
        project,
        "What is the capital of France? Answer in one word, without tools.",
        max_turns=1,
        sampling=retinue.Sampling(temperature=0, seed=1, max_output_tokens=32),
    )
    assert found[0][1]
    assert found == [found[0]] * 3


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
