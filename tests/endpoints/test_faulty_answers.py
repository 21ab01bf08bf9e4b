from __future__ import annotations

import pytest

from retinue.domain.messages import Request, UserMessage
from retinue.errors import ModelError, ModelTimeout, ProviderError
from retinue.models.http.endpoint import Endpoint
from retinue.models.openai.model import OpenAIModel
from retinue.models.scripted.model import say
from retinue.testing.server import ModelServer
from tests.endpoints.faulty_answers import FaultyAnswers

ASKED = Request(messages=(UserMessage("?"),))


async def outcomes(
    faulty: FaultyAnswers, times: int, timeout_s: float = 120.0
) -> list[str | ModelError]:
    found: list[str | ModelError] = []
    async with ModelServer(faulty) as server:
        endpoint = Endpoint(
            base_url=server.base_url,
            model="m",
            first_byte_timeout_s=timeout_s,
            idle_timeout_s=timeout_s,
        )
        for _ in range(times):
            async with OpenAIModel(endpoint) as model:
                try:
                    found.append((await model.reply(ASKED)).message.content)
                except ModelError as error:
                    found.append(error)
    return found


async def test_without_trouble_all_is_well() -> None:
    faulty = FaultyAnswers(lambda _: say("Yes."))
    assert await outcomes(faulty, 3) == ["Yes."] * 3
    assert (list(faulty.given.values()), faulty.happened.total()) == ([3], 0)


@pytest.mark.parametrize(
    ("share", "name", "kind", "words"),
    [
        ("drops", "dropped", ProviderError, ("closed the connection", "broke off")),
        ("stalls", "stalled", ModelTimeout, ("did not begin to reply", "went silent")),
        ("breaks", "broken", ProviderError, ("sent broken JSON",)),
    ],
)
async def test_each_kind_of_trouble(
    share: str, name: str, kind: type[ModelError], words: tuple[str, ...]
) -> None:
    faulty = FaultyAnswers(lambda _: say("Yes, and at some length."), **{share: 1.0})  # type: ignore[arg-type]
    found = await outcomes(faulty, 8, 0.05 if share == "stalls" else 120.0)
    assert {type(error) for error in found} == {kind}
    assert all(any(word in str(error) for word in words) for error in found)
    assert (faulty.happened, faulty.given) == ({name: 8}, {})


def test_the_same_seed_brings_the_same_day() -> None:
    from retinue.testing.server import Received

    def day(seed: int) -> list[bytes]:
        faulty = FaultyAnswers(lambda _: say("Yes."), drops=0.3, stalls=0.3, breaks=0.3, seed=seed)
        request = Received(method="POST", target="/", headers={}, body=b"")
        return [faulty(request).body for _ in range(50)]

    assert day(1) == day(1)
    assert day(1) != day(2)
