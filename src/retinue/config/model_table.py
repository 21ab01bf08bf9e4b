"""Windows, output limits, abilities and prices of cloud models, from the table of this release.

`script/prices` makes the table. A row is found by the provider, since the same model differs by
host, and by the model's name: as it is written, or without its date, version and path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from retinue.domain.price import Price, PriceTier
from retinue.domain.server_info import ServedModel

_REGION = re.compile(r"^(us|eu|apac|global|au|jp)-(?=[a-z]+-)")
_VERSION = re.compile(r"-v\d+(:\d+)?$")
_DATE = re.compile(r"-(latest|20\d{6}|20\d\d-\d\d-\d\d|2[3-6](0[1-9]|1[0-2]))$")


class KnownModel(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A row of the table. None: the sources do not say."""

    price: Price
    window: int | None = None
    max_output: int | None = None
    abilities: str = ""
    """Letters: t for tools, r for reasoning, v for images, a for adaptive thinking."""


def known_model(providers: Sequence[str], model: str) -> KnownModel | None:
    """The row of a model at the first of the providers that has one."""
    for provider in providers:
        rows = _table().get(provider, {})
        row = rows.get(model.lower()) or rows.get(_short_name(model))
        if row is not None:
            return _known_model(row)
    return None


def complete_served(served: ServedModel, known: KnownModel) -> ServedModel:
    """Add what the table knows and the server does not say."""

    def able(said: bool | None, letter: str) -> bool | None:
        return letter in known.abilities if said is None and known.abilities else said

    return msgspec.structs.replace(
        served,
        window=served.window or known.window,
        max_output=served.max_output or known.max_output,
        tools=able(served.tools, "t"),
        thinking=able(served.thinking, "r"),
        images=able(served.images, "v"),
        price=served.price or known.price,
    )


@cache
def _table() -> Any:
    return msgspec.json.decode(Path(__file__).with_name("model_table.json").read_bytes())


def _short_name(model: str) -> str:
    name = model.lower().rpartition("/")[2].replace(".", "-").replace("@", "-")
    name = _VERSION.sub("", _REGION.sub("", name))
    return _DATE.sub("", name)


def _known_model(row: list[Any]) -> KnownModel:
    window, max_output, price, cached, abilities, tiers = (
        row[0], row[1], row[2:4], [*row[4:6], None, None][:2], [*row[6:7], ""][0], row[7:]
    )  # fmt: skip
    return KnownModel(
        price=Price(
            input=price[0],
            output=price[1],
            cached=cached[0],
            cache_write=cached[1],
            tiers=tuple(
                PriceTier(above=t[0], input=t[1], output=t[2], cached=t[3], cache_write=t[4])
                for t in tiers
            ),
        ),
        window=window,
        max_output=max_output,
        abilities=abilities,
    )
