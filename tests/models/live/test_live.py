"""The client against servers that nobody here wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

import retinue
from retinue.config.environment import Environment
from retinue.errors import ModelError
from retinue.models.anthropic.model import AnthropicModel
from retinue.models.http.endpoint import Endpoint
from retinue.models.responses.model import ResponsesModel
from retinue.models.server_info.inventory import inspect_model
from tests.models.live.server_contract import ServerContract, asked

pytestmark = pytest.mark.live

SLOTS = 2
SLOT_TOKENS = 1024
URL = os.environ.get("RETINUE_LIVE_URL", "")


class TestLlamaCpp(ServerContract):
    window_tokens = SLOT_TOKENS

    @pytest.fixture(autouse=True)
    def _served(self, llama_cpp: Endpoint) -> None:
        self.endpoint = llama_cpp

    async def test_reports_its_window(self) -> None:
        found = await inspect_model(self.endpoint)
        assert found is not None
        assert (found.server, found.window, found.slots) == ("llama.cpp", SLOT_TOKENS, SLOTS)
        assert found.max_window == 8192


class TestLlamaCppMessages(TestLlamaCpp):
    """The same server by Anthropic's API, in which it takes no notice of a schema."""

    client = AnthropicModel
    holds_schemas = False


class TestLlamaCppResponses(TestLlamaCpp):
    """The same server by the Responses API, in which it takes no notice of a schema."""

    client = ResponsesModel
    holds_schemas = False


# Not by Anthropic's API: there it asks the server behind it by a third one, the Responses API,
# never for less than 16 tokens, says end_turn where it was cut off, and leaves out the schema.
class TestLiteLLM(ServerContract):
    window_tokens = SLOT_TOKENS
    checks_models = True

    @pytest.fixture(autouse=True)
    def _served(self, litellm: Endpoint) -> None:
        self.endpoint = litellm

    # Without a database it answers 400 "No connected db." to a wrong key, and 500 to none.
    @pytest.mark.parametrize("key", ["sk-wrong", None])
    async def test_unknown_key(self, key: str | None) -> None:
        error = await self.refused(asked("Hi."), api_key=key)
        assert isinstance(error, ModelError)
        assert "sk-wrong" not in str(error)


if URL:

    class TestNamed(ServerContract):
        """The server that the user named."""

        endpoint = Endpoint(
            base_url=URL,
            model=os.environ.get("RETINUE_LIVE_MODEL", "default"),
            api_key=os.environ.get("RETINUE_LIVE_KEY"),
            key_source="RETINUE_LIVE_KEY",
        )


async def test_a_run_is_recorded_and_replayed(llama_cpp: Endpoint, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("A heron stands in the reeds.\n")
    environment = Environment(variables={"HOME": str(tmp_path)})
    recording = tmp_path / "run.jsonl"
    there, again = [
        await _looked(project, environment, model=model, record=record)
        for model, record in (
            (f"openai:smollm2@{llama_cpp.base_url}", recording),
            (f"replay:{recording}", None),
        )
    ]
    assert there.response
    assert (again.status, again.response) == (there.status, there.response)
    assert msgspec.structs.replace(again.usage, duration_s=there.usage.duration_s) == there.usage


async def _looked(project: Path, environment: Environment, **options: Any) -> retinue.Result:
    async with retinue.open(project, environment=environment, **options) as rt:
        return await rt.spawn(
            "reviewer", "Which bird is it?", max_turns=2, context_files=("a.txt",)
        )
