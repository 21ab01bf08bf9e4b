"""Which model to use when nobody named one: what was looked at, and what follows from it.

One model is used; of several, somebody has to choose; and where there is none, it is said what to
start or to set. A cloud key counts as several: it names no model, and calls cost money.
"""

from __future__ import annotations

import msgspec

from retinue.domain.served import OLLAMA, Inventory, Served

SHOWN = 8
EMBEDDED_OFFER = (
    "Or use the one that is installed here, which only summarises, titles and classifies:"
    " -m embedded."
)
HOW_TO_CHOOSE = '-m NAME, or RETINUE_MODEL=NAME, or model = "NAME" in {file}'


class Place(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An address where a model may be served."""

    address: str
    title: str
    """What is usually there, such as Ollama."""
    named_by: str = ""
    """The variable or the setting that names it; empty for a port that is only tried."""
    provider: str = "openai"
    key_variable: str = ""
    """The variable with the key that it may be sent; empty for none."""
    own: bool = False
    """Whether it is where the provider's models are asked when their names have no address."""
    cloud: bool = False
    """Whether it is the provider itself, which has many models and costs money."""


class Cloud(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A provider that the user has a key for."""

    provider: str
    title: str
    key_variable: str
    address: str
    example: str


class Offer(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A model that could be used, by its full name."""

    name: str
    served: Served

    @property
    def described(self) -> str:
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
        return f"{self.name}  ({self.described})" if self.described else self.name


class Looked(msgspec.Struct, frozen=True, gc=False):
    """One place, and what was found there."""

    place: Place
    inventory: Inventory

    @property
    def offers(self) -> list[Offer]:
        place = self.place
        at = "" if place.own else f"@{self.inventory.address}"
        return [
            Offer(name=f"{place.provider}:{served.model}{at}", served=served)
            for served in self.inventory.models
        ]

    @property
    def trouble(self) -> str | None:
        """What is wrong there, if the user named it or if a server is there after all."""
        place, inventory = self.place, self.inventory
        if inventory.models or (inventory.absent and not place.named_by):
            return None
        where = inventory.address
        if inventory.problem:
            named_by = f" ({place.named_by})" if place.named_by else ""
            return f"{where}{named_by}: {inventory.problem}."
        if inventory.server == OLLAMA:
            return f"Ollama at {where} has no model to talk to: ollama pull qwen3:8b."
        return f"{inventory.server or 'The server'} at {where} serves no model."


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    looked: tuple[Looked, ...] = ()
    clouds: tuple[Cloud, ...] = ()
    settings_file: str = "~/.config/retinue/config.toml"
    embedded: bool = False
    """Whether the embedded model is installed. It is offered, not used unasked: it is small."""

    @property
    def offers(self) -> list[Offer]:
        """What is served where the user said; else what was found. What is at hand comes first."""
        near = [look for look in self.looked if not look.place.cloud]
        named = [offer for look in near if look.place.named_by for offer in look.offers]
        found = named or [offer for look in near for offer in look.offers]
        return sorted(found, key=lambda offer: (offer.served.remote, offer.served.loaded is False))

    @property
    def only(self) -> Offer | None:
        """The one model there is, if nothing else could be meant and nothing leaves for a cloud."""
        offers = self.offers
        if len(offers) != 1 or offers[0].served.remote or self.clouds:
            return None
        return offers[0]

    @property
    def explained(self) -> str:
        """Why no model was chosen, and the way out."""
        if self.offers:
            return "\n".join([self._several, *self._listed(self.offers), *self._of_clouds()])
        if self.clouds:
            return "\n".join([self._key_alone, *self._of_clouds()])
        return "\n".join(self._nothing())

    @property
    def question(self) -> str:
        """The models to choose from, numbered, and how to be asked no more."""
        offers = self.offers
        lines = [f"{number:>3}  {offer}" for number, offer in enumerate(offers, 1)]
        return "\n".join(
            [
                "No model was named. There are:",
                *lines,
                *self._of_clouds(),
                f"To be asked no more: {self._choosing}.",
            ]
        )

    def picked(self, answer: str) -> str | None:
        """The model that an answer to the question means; None for a number that is not there."""
        for offer in self.offers:
            if answer in ("", offer.served.model):
                return offer.name
        if not answer.isdecimal():
            return answer
        number = int(answer)
        return self.offers[number - 1].name if 1 <= number <= len(self.offers) else None

    @property
    def _choosing(self) -> str:
        return HOW_TO_CHOOSE.format(file=self.settings_file)

    @property
    def _several(self) -> str:
        found = "there are several" if len(self.offers) > 1 or self.clouds else "this is in a cloud"
        return f"No model was named, and {found}. Choose one: {self._choosing}."

    @property
    def _key_alone(self) -> str:
        keys = " and ".join(cloud.key_variable for cloud in self.clouds)
        return (
            f"{keys} {'is' if len(self.clouds) == 1 else 'are'} set, but no model was named."
            f" Choose one: {self._choosing}."
        )

    def _listed(self, offers: list[Offer]) -> list[str]:
        lines = [f"  {offer}" for offer in offers[:SHOWN]]
        if len(offers) > SHOWN:
            lines.append(f"  and {len(offers) - SHOWN} more; `retinue models` lists them")
        return lines

    def _of_clouds(self) -> list[str]:
        return [
            f"  {cloud.example}, or another of {cloud.title}'s; `retinue models` lists them"
            for cloud in self.clouds
        ]

    def _nothing(self) -> list[str]:
        """Three lines: what is wrong, what to start, what to set instead."""
        if not self.looked:
            return ["No model was named, and discovery is off in the settings.", *self.help]
        if troubles := " ".join(self.troubles):
            return ["No model was named, and none was found.", troubles, *self.help[1:]]
        return ["No model was named, and no model server was found on this machine.", *self.help]

    @property
    def troubles(self) -> list[str]:
        return [trouble for look in self.looked if (trouble := look.trouble)]

    @property
    def help(self) -> tuple[str, ...]:
        """What to start, what to set instead, and what is here anyway, where there is nothing."""
        start = (
            "Start one: llama-server -m MODEL.gguf, or ollama serve, or LM Studio's server,"
            " or vllm serve MODEL."
        )
        name = f"Name one: {self._choosing}, such as openai:MODEL@http://127.0.0.1:8080/v1."
        return (
            start if self.looked else name,
            "Or set OPENAI_API_KEY or ANTHROPIC_API_KEY and name a model with -m."
            " `retinue doctor` tells what was tried.",
            *([EMBEDDED_OFFER] if self.embedded else []),
        )
