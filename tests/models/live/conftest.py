"""Real servers, each started once: a small llama.cpp, and LiteLLM as a proxy before it.

Each is a process of its own that ends with its standard input, and so cannot outlive the tests.
`script/servers` installs them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.embedded.model import is_available
from retinue.embedded.weights import fetch_weights
from retinue.errors import UsageError
from retinue.models.http.endpoint import Endpoint

ROOT = Path(__file__).parents[3]
TEMPLATE = Path(__file__).with_name("chatml.jinja")
PROXY_PYTHON = ROOT / ".live" / "bin" / "python"
PROXY_KEY = "sk-live-0123456789abcdef"
SLOTS = 2
SLOT_TOKENS = 1024

# The embedded model, but with a template that has tools, and slots of its own.
_LLAMA = """
import sys
from pathlib import Path
from retinue.embedded.llama_server import start_server
weights, template, window, slots = sys.argv[1:]
template = Path(template).read_text()
url = start_server(
    Path(weights), threads=1, slots=int(slots), window=int(window), template=template
)
print("listening on", url, flush=True)
sys.stdin.read()
"""
_LITELLM = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
sys.argv = ["litellm", "--config", sys.argv[1], "--host", "127.0.0.1", "--port", "0"]
from litellm import run_server
run_server()
"""
_LITELLM_CONFIG = """
model_list:
  - model_name: {name}
    litellm_params: {{model: {model}, api_base: "{address}", api_key: none}}
general_settings: {{master_key: {key}}}
"""


@pytest.fixture(scope="session")
def llama_cpp() -> Iterator[Endpoint]:
    with _llama_cpp(SLOT_TOKENS, SLOTS) as endpoint:
        yield endpoint


@pytest.fixture
def roomy_llama_cpp() -> Iterator[Endpoint]:
    """One with more slots, that hold a prompt of some length."""
    with _llama_cpp(6_144, 4) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def litellm(llama_cpp: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    home = tmp_path_factory.mktemp("litellm")
    with proxy_before(llama_cpp.base_url, "openai/smollm2", home) as endpoint:
        yield endpoint


@contextmanager
def proxy_before(address: str, model: str, home: Path) -> Iterator[Endpoint]:
    """LiteLLM before the server at `address`; `model` is what LiteLLM calls its model."""
    if not PROXY_PYTHON.exists():
        pytest.skip("LiteLLM is missing: run script/servers")
    config = home / "config.yaml"
    name = model.rpartition("/")[2]
    config.write_text(
        _LITELLM_CONFIG.format(name=name, model=model, address=address, key=PROXY_KEY)
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONUNBUFFERED": "1",
        # Otherwise it asks the internet for prices, and waits.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [str(PROXY_PYTHON), "-c", _LITELLM, str(config)]
    with _serving(command, environment, "Uvicorn running on") as url:
        yield Endpoint(base_url=f"{url}/v1", model=name, api_key=PROXY_KEY)


@contextmanager
def _llama_cpp(slot_tokens: int, slots: int) -> Iterator[Endpoint]:
    if not is_available():
        pytest.skip("llama.cpp is missing: run script/servers")
    try:
        weights = asyncio.run(fetch_weights(Environment.current().embedded_dir, os.environ))
    except UsageError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-c", _LLAMA, str(weights), str(TEMPLATE)]
    command += [str(slot_tokens), str(slots)]
    with _serving(command, os.environ, "listening on") as address:
        yield Endpoint(base_url=f"{address}/v1", model="smollm2")


@contextmanager
def _serving(command: list[str], environment: Mapping[str, str], sign: str) -> Iterator[str]:
    """Run a server until the block ends; gives the address that it prints behind `sign`."""
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        printed: list[str] = []
        for line in process.stdout:
            printed.append(line)
            if sign in line:
                break
        else:
            pytest.fail(f"the server did not start:\n{''.join(printed[-20:])}")
        yield line.partition(sign)[2].split()[0]
        process.kill()
