"""Decides which model to use when no model is named, from the servers that were inspected.

If there is exactly one model, it is used. Of several, the user has to choose. If there is none, the
explanation says what to start or to set. A cloud key counts as several models: it names no model,
and calls cost money.
"""

from __future__ import annotations

import msgspec

from retinue.domain.server_info import OLLAMA, ServedModel, ServerInventory

SHOWN = 8
EMBEDDED_HINT = (
    "Or use the small one that is installed here, for small tasks such as questions on files:"
    " -m embedded."
)
HOW_TO_CHOOSE = '-m NAME, or RETINUE_MODEL=NAME, or model = "NAME" in {file}'


class ServerAddress(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An address where a model may be served.

    ```python
    place = retinue.ServerAddress(address="http://127.0.0.1:8080/v1", title="llama.cpp")
    assert not place.cloud
    ```
    """

    address: str
    title: str
    """The kind of server that is expected there, such as Ollama."""
    named_by: str = ""
    """The variable or setting that names the address; empty for a default port."""
    provider: str = "openai"
    key_variable: str = ""
    """The variable with the key that may be sent there; empty for none."""
    key_command: str = ""
    """Command that prints the key, instead of a variable."""
    key_header: str = ""
    """Header that carries the key as well."""
    is_default: bool = False
    """Whether model names of the provider without an address mean this address."""
    cloud: bool = False
    """Whether it is the provider's own address, with many models that cost money."""
    example: str = ""
    """The full name of one of its models, if it is in a cloud."""


class ModelOption(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A model that can be chosen; `name` is its full name.

    ```python
    async def choose(found: retinue.DiscoveredModels) -> str:
        for option in found.options:
            print(option.name, option.description, option.served.window)
        return found.options[-1].name
    ```
    """

    name: str
    served: ServedModel

    @property
    def description(self) -> str:
        """The known facts about the model, in a line."""
        served = self.served
        facts = [f"{served.server}'s cloud" if served.remote else served.server]
        if served.window is not None:
            facts.append(f"{served.window:,} tokens")
        if served.slots is not None:
            facts.append(f"{served.slots} at a time")
        if served.loaded is False:
            facts.append("not loaded")
        return ", ".join(filter(None, facts))

    def __str__(self) -> str:
        return f"{self.name}  ({self.description})" if self.description else self.name


class InspectedServer(msgspec.Struct, frozen=True, gc=False):
    """One address, and what was found there.

    ```python
    async def choose(found: retinue.DiscoveredModels) -> str:
        for server in found.servers:
            print(server.place.address, server.problem or server.options)
        return found.options[0].name
    ```
    """

    place: ServerAddress
    inventory: ServerInventory

    @property
    def options(self) -> list[ModelOption]:
        """The models that can be chosen there."""
        place = self.place
        at = "" if place.is_default else f"@{self.inventory.address}"
        return [
            ModelOption(name=f"{place.provider}:{served.model}{at}", served=served)
            for served in self.inventory.models
        ]

    @property
    def problem(self) -> str | None:
        """The problem of a server that the user named or that was found; else None."""
        place, inventory = self.place, self.inventory
        if inventory.models or (inventory.no_server and not place.named_by):
            return None
        where = inventory.address
        if inventory.problem:
            named_by = f" ({place.named_by})" if place.named_by else ""
            return f"{where}{named_by}: {inventory.problem}."
        if inventory.server == OLLAMA:
            return f"Ollama at {where} has no model to talk to: ollama pull qwen3:8b."
        return f"{inventory.server or 'The server'} at {where} serves no model."


class DiscoveredModels(msgspec.Struct, frozen=True, kw_only=True):
    """The models that servers of this machine offer, if no model was named.

    ```python
    async def choose(found: retinue.DiscoveredModels) -> str:
        return found.options[0].name

    person = retinue.Person(choose_model=choose)
    ```
    """

    servers: tuple[InspectedServer, ...] = ()
    clouds: tuple[ServerAddress, ...] = ()
    """Providers for which the user has a key."""
    settings_file: str = "~/.config/retinue/config.toml"
    embedded: bool = False
    """Whether the embedded model is installed. It is small, so it is only offered."""

    @property
    def options(self) -> list[ModelOption]:
        """The models at addresses that the user named, else all that were found.

        Local models come first, loaded ones before others.
        """
        near = [server for server in self.servers if not server.place.cloud]
        named = [option for server in near if server.place.named_by for option in server.options]
        found = named or [option for server in near for option in server.options]
        return sorted(
            found, key=lambda option: (option.served.remote, option.served.loaded is False)
        )

    @property
    def only_option(self) -> ModelOption | None:
        """The only model, if there is exactly one and it is not in a cloud."""
        options = self.options
        if len(options) != 1 or options[0].served.remote or self.clouds:
            return None
        return options[0]

    @property
    def explanation(self) -> str:
        """Why no model was chosen, and what to do."""
        options = self.options
        if not options and not self.clouds:
            return "\n".join(self._nothing())
        if options:
            several = len(options) > 1 or self.clouds
            found = "there are several" if several else "this is in a cloud"
            lines = [f"No model was named, and {found}. Choose one: {self._choosing}."]
            lines += [f"  {option}" for option in options[:SHOWN]]
            if len(options) > SHOWN:
                lines.append(f"  and {len(options) - SHOWN} more; `retinue models` lists them")
        else:
            keys = " and ".join(cloud.key_variable for cloud in self.clouds)
            are = "is" if len(self.clouds) == 1 else "are"
            lines = [f"{keys} {are} set, but no model was named. Choose one: {self._choosing}."]
        return "\n".join([*lines, *self._of_clouds()])

    @property
    def question(self) -> str:
        """The numbered models to choose from, and how to set a default."""
        lines = ["No model was named. There are:"]
        lines += [f"{number:>3}  {option}" for number, option in enumerate(self.options, 1)]
        return "\n".join([*lines, *self._of_clouds(), f"To set a default: {self._choosing}."])

    def resolve_answer(self, answer: str) -> str | None:
        """The model name that an answer to `question` means; None for an unknown number."""
        for option in self.options:
            if answer in ("", option.served.model):
                return option.name
        if not answer.isdecimal():
            return answer
        number = int(answer)
        return self.options[number - 1].name if 1 <= number <= len(self.options) else None

    @property
    def _choosing(self) -> str:
        return HOW_TO_CHOOSE.format(file=self.settings_file)

    def _of_clouds(self) -> list[str]:
        return [
            f"  {cloud.example}, or another of {cloud.title}'s; `retinue models` lists them"
            for cloud in self.clouds
        ]

    def _nothing(self) -> list[str]:
        """Lines that say what is wrong, what to start, and what to set instead."""
        if not self.servers:
            return ["No model was named, and discovery is off in the settings.", *self.hints]
        if problem_text := " ".join(self.problems):
            return ["No model was named, and none was found.", problem_text, *self.hints[1:]]
        return ["No model was named, and no model server was found on this machine.", *self.hints]

    @property
    def problems(self) -> list[str]:
        """Problems of servers that were found or named, a line each."""
        return [text for server in self.servers if (text := server.problem)]

    @property
    def hints(self) -> tuple[str, ...]:
        """Advice on what to start or set, and the embedded model if it is installed."""
        start = (
            "Start one: llama-server -m MODEL.gguf, or ollama serve, or LM Studio's server,"
            " or vllm serve MODEL."
        )
        name = f"Name one: {self._choosing}, such as openai:MODEL@http://127.0.0.1:8080/v1."
        return (
            start if self.servers else name,
            "Or set the key of a provider, such as OPENAI_API_KEY, and name a model with -m."
            " `retinue doctor` shows what was tried.",
            *([EMBEDDED_HINT] if self.embedded else []),
        )
