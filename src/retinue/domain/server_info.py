"""Information about models and servers, as model servers report it."""

from __future__ import annotations

import msgspec

from retinue.domain.price import Price

# Tools, instructions, a task and one file take about this much. With less, an agent forgets what it
# read before it can use it.
AGENT_WINDOW = 8_192

LLAMA_CPP = "llama.cpp"
OLLAMA = "Ollama"
LM_STUDIO = "LM Studio"
VLLM = "vLLM"

# Servers with one prompt cache per slot instead of one for all slots.
PER_SLOT_CACHE = frozenset({LLAMA_CPP, OLLAMA, LM_STUDIO})

# The default port of each server.
DEFAULT_PORTS = {LLAMA_CPP: 8080, OLLAMA: 11434, LM_STUDIO: 1234, VLLM: 8000}

_HOW_TO_WIDEN = {
    LLAMA_CPP: "start llama-server with a larger -c, which its slots may have to share",
    OLLAMA: "start Ollama with OLLAMA_CONTEXT_LENGTH=32768 (in its app: Settings, Context length)",
    LM_STUDIO: "load it with a larger context: lms load MODEL --context-length 32768",
    VLLM: "start vLLM with a larger --max-model-len",
}

# Servers that do not help a model without tool support: Ollama refuses tools, and llama.cpp leaves
# them out of the prompt, so that the model invents an answer. Other servers find a way.
_WITHOUT_TOOLS = {
    LLAMA_CPP: (
        "cannot call tools, says llama.cpp (its chat template has none): choose another with -m,"
        " or attach files with -f"
    ),
    OLLAMA: "cannot call tools, says Ollama: choose another with -m",
    # A provider in a cloud.
    "": "cannot call tools: choose another with -m; `retinue models` lists them",
}


class EndpointLoad(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How busy an endpoint is: requests in flight, the limit of them, and requests that wait.

    ```python
    for load in rt.loads:
        print(load.address, f"{load.in_flight} of {load.limit}, {load.waiting} wait")
    ```
    """

    address: str
    in_flight: int
    limit: int
    waiting: int
    known: bool
    """Whether the limit comes from the server or the user, and is not a guess."""


class ServedModel(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One model at one server. None: the server does not say.

    ```python
    served = retinue.ServedModel(model="qwen3", server="llama.cpp", window=8_192)
    print(served.notes)
    ```
    """

    model: str
    server: str = ""
    """The kind of server, such as Ollama; empty if it is not known."""
    window: int | None = None
    """The tokens that one request may have, prompt and reply together."""
    max_window: int | None = None
    """The largest window of the model; servers often load it with less."""
    max_output: int | None = None
    """The tokens that one reply may have at most, thinking included."""
    slots: int | None = None
    """How many requests the server works on at a time."""
    tools: bool | None = None
    thinking: bool | None = None
    images: bool | None = None
    loaded: bool | None = None
    """False: the first request loads the model, and only then its window is known."""
    remote: bool = False
    """Whether the server passes requests on to a cloud, as Ollama does for some models."""
    about: str = ""
    """Known strengths and limits of the model, for people."""
    price: Price | None = None
    unpriced: bool = False
    """Whether its calls cost money, and its price is unknown."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings for the user before agents use the model."""
        found = []
        if self.window is not None and self.window < AGENT_WINDOW:
            found.append(
                f"{self._shown_name} has a window of {self.window:,} tokens"
                f"{f' at {self.server}' if self.server else ''}, and an agent needs"
                f" {AGENT_WINDOW:,}: {self._way_out}"
            )
        if self.unpriced:
            found.append(
                f"price unknown: {self._shown_name} costs money that is not counted; set input and"
                f' output under [prices."{self.model}"] in your settings'
            )
        if self.about:
            found.append(self.about)
        elif self.tools is False and self.server in _WITHOUT_TOOLS:
            found.append(f"{self._shown_name} {_WITHOUT_TOOLS[self.server]}")
        return tuple(found)

    @property
    def _shown_name(self) -> str:
        """The name to show; llama.cpp may use the path of a file as a name."""
        return self.model.rpartition("/")[2] if self.model.startswith("/") else self.model

    @property
    def _way_out(self) -> str:
        if self.max_window is not None and self.max_window < AGENT_WINDOW:
            return "choose a model with a larger window"
        return _HOW_TO_WIDEN.get(self.server, "serve it with a larger one")


class ServerInventory(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The result of inspecting one server: its models, or the problem.

    ```python
    models = (retinue.ServedModel(model="qwen3"),)
    inventory = retinue.ServerInventory(address="http://127.0.0.1:8080/v1", models=models)
    assert inventory.find("qwen3") is models[0]
    ```
    """

    address: str
    server: str = ""
    models: tuple[ServedModel, ...] = ()
    latency_s: float | None = None
    """How long the server took to list its models."""
    problem: str = ""
    """Why there are no models, as a text that follows the address and a colon."""
    no_server: bool = False
    """Whether there is no model server at all: nothing listens, or another program does."""

    def find(self, model: str) -> ServedModel | None:
        """The model that the server would use for this name."""
        # Ollama adds `:latest` to a name without a tag; llama.cpp with one model accepts any name.
        names = (model, f"{model}:latest") if self.server == OLLAMA else (model,)
        for served in self.models:
            if served.model in names:
                return served
        if self.server == LLAMA_CPP and len(self.models) == 1:
            return self.models[0]
        return None
