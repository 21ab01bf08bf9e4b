"""What servers say about the models that they serve."""

from __future__ import annotations

import msgspec

# Tools, instructions, a task and one file take about this much: in less, an agent forgets what it
# read before it can use it.
AGENT_WINDOW = 8_192

LLAMA_CPP = "llama.cpp"
OLLAMA = "Ollama"
LM_STUDIO = "LM Studio"
VLLM = "vLLM"

# Those that keep what they have read in each slot by itself, and not once for all.
PER_SLOT_CACHE = frozenset({LLAMA_CPP, OLLAMA, LM_STUDIO})

# Where each listens when nobody says otherwise.
DEFAULT_PORTS = {LLAMA_CPP: 8080, OLLAMA: 11434, LM_STUDIO: 1234, VLLM: 8000}

_WIDER = {
    LLAMA_CPP: "start llama-server with a larger -c, which its slots may have to share",
    OLLAMA: "start Ollama with OLLAMA_CONTEXT_LENGTH=32768 (in its app: Settings, Context length)",
    LM_STUDIO: "load it with a larger context: lms load MODEL --context-length 32768",
    VLLM: "start vLLM with a larger --max-model-len",
}

# Who does nothing about it where a model has no tools: Ollama refuses them, and llama.cpp leaves
# them out of the prompt, whereupon the model makes an answer up. The others find a way without.
_TOOLLESS = {
    LLAMA_CPP: (
        "has a chat template without tools, says llama.cpp, and so looks at nothing: choose"
        " another with -m, or give it files along with -f"
    ),
    OLLAMA: "cannot call tools, says Ollama: choose another with -m",
}


class EndpointLoad(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How busy an endpoint is: requests that it works on, how many it is given, how many wait."""

    address: str
    in_flight: int
    limit: int
    waiting: int
    known: bool
    """Whether the limit is the server's or the user's word, and not a guess."""


class ServedModel(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One model at one server. None: the server does not say."""

    model: str
    server: str = ""
    """The kind of server, such as Ollama; empty if it is none that we know."""
    window: int | None = None
    """The tokens that one request may have, prompt and answer together."""
    max_window: int | None = None
    """What the model was made for, which it seldom is loaded with."""
    slots: int | None = None
    """How many requests are worked on at the same time."""
    tools: bool | None = None
    loaded: bool | None = None
    """False: the first request loads it, and only then it is known how large its window is."""
    remote: bool = False
    """Whether the server passes on what it is sent, to a cloud: Ollama does, for some models."""
    about: str = ""
    """What it is good for and what not, where that is known of the model itself."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before agents work with it."""
        found = []
        if self.window is not None and self.window < AGENT_WINDOW:
            found.append(
                f"{self._called} has a window of {self.window:,} tokens"
                f"{f' at {self.server}' if self.server else ''}, and an agent needs"
                f" {AGENT_WINDOW:,}: {self._way_out}"
            )
        if self.about:
            found.append(self.about)
        elif self.tools is False and self.server in _TOOLLESS:
            found.append(f"{self._called} {_TOOLLESS[self.server]}")
        return tuple(found)

    @property
    def _called(self) -> str:
        """Its name as people would say it; llama.cpp may have the path of a file for one."""
        return self.model.rpartition("/")[2] if self.model.startswith("/") else self.model

    @property
    def _way_out(self) -> str:
        if self.max_window is not None and self.max_window < AGENT_WINDOW:
            return "choose a model that was made for more"
        return _WIDER.get(self.server, "serve it with a larger one")


class ServerInventory(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a look at one address found: models, or the problem."""

    address: str
    server: str = ""
    models: tuple[ServedModel, ...] = ()
    latency_s: float | None = None
    """How long the server took to list its models."""
    problem: str = ""
    """Why there is nothing to tell of, in words that can stand behind the address and a colon."""
    no_server: bool = False
    """Whether no model server is there at all: nothing listens, or another program does."""

    def find(self, model: str) -> ServedModel | None:
        """The one that the server would take for `model`."""
        # Ollama completes a name without a tag; a llama.cpp with one model takes any name for it.
        names = (model, f"{model}:latest") if self.server == OLLAMA else (model,)
        for served in self.models:
            if served.model in names:
                return served
        if self.server == LLAMA_CPP and len(self.models) == 1:
            return self.models[0]
        return None
