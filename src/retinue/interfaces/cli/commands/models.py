"""`retinue models`: lists the models that are served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from retinue.config.environment import Environment
from retinue.config.settings import SettingsLayers
from retinue.config.settings_file import load_settings
from retinue.discovery import discover, named_models
from retinue.domain.discovered_models import (
    DiscoveredModels,
    InspectedServer,
    ModelOption,
    ServerAddress,
)
from retinue.domain.price import Price
from retinue.domain.server_info import ServedModel, ServerInventory
from retinue.embedded.adapter import installed_adapter
from retinue.embedded.model import NAME, served_model, server_folder
from retinue.embedded.serving import running_server
from retinue.interfaces.cli.event_loop import run_async
from retinue.interfaces.cli.options import directory_option, json_objects_option
from retinue.interfaces.cli.terminal.output import print_error, print_json, print_text
from retinue.interfaces.cli.terminal.progress import waiting_line
from retinue.interfaces.view.formatting import aligned
from retinue.project import project_root

COLUMNS = (
    "", "SERVER", "WINDOW", "OUTPUT", "SLOTS", "TOOLS", "THINKS", "IMAGES", "PRICE", "LATENCY",
    "MODEL",
)  # fmt: skip
# Columns that are left out if no model has a value: local servers do not say these.
OPTIONAL_COLUMNS = frozenset({"", "OUTPUT", "THINKS", "IMAGES", "PRICE"})
UNKNOWN = "-"
YES_OR_NO = {None: UNKNOWN, True: "yes", False: "no"}


@click.command()
@click.argument("text", default="")
@directory_option
@json_objects_option
def models(text: str, directory: str, as_json: bool) -> int:
    """List the models that your servers and keys reach, by the names that -m takes.

    With TEXT, list only names that contain it. WINDOW is the number of tokens that fit into a call,
    OUTPUT the longest reply, SLOTS how many calls the server processes at the same time, PRICE what
    a million tokens of input and of output cost, LATENCY how long the server took to list its
    models. A * marks the models that your settings name. Exits with 1 if there are none.

    Example: retinue models
    """
    environment = Environment.current()
    layers = load_settings(environment, project_root(directory))
    named = named_models(environment, layers)
    places = [model.place for model in named if model.place is not None]
    found = run_async(_discovered(environment, layers, places))
    pairs = [(server, option) for server in found.servers for option in server.options]
    pairs += [_embedded(environment)] if found.embedded else []
    pairs = [pair for pair in pairs if text.lower() in pair[1].name.lower()]
    if as_json:
        print_json(*(_fields(server, option) for server, option in pairs))
    elif pairs:
        _print_all(pairs, found, {model.model for model in named})
    elif text and found.servers:
        print_error(f"retinue: No model has {text!r} in its name; `retinue models` lists all.")
    else:
        lines = found.problems or found.hints
        print_error("\n".join(["retinue: No model was found.", *lines]))
    return 0 if pairs else 1


def _embedded(environment: Environment) -> tuple[InspectedServer, ModelOption]:
    """The embedded model, with the address of its server while that runs."""
    adapter = installed_adapter()
    address = running_server(server_folder(environment.embedded_dir, adapter))
    url = "" if address is None else address.url
    place = ServerAddress(address=url, title=NAME, named_by=NAME)
    served = msgspec.structs.replace(served_model(adapter), loaded=address is not None)
    return (
        InspectedServer(place, ServerInventory(address=url)),
        ModelOption(name=NAME, served=served),
    )


async def _discovered(
    environment: Environment, layers: SettingsLayers, places: Sequence[ServerAddress]
) -> DiscoveredModels:
    async with waiting_line() as on_wait:
        on_wait("asking the model servers")
        return await discover(environment, layers, more=places, cloud=True)


def _fields(server: InspectedServer, option: ModelOption) -> dict[str, Any]:
    served = msgspec.structs.asdict(option.served)
    del served["about"]  # One of the notes.
    return {
        "name": option.name,
        "endpoint": server.inventory.address,
        **served,
        "latency_s": server.inventory.latency_s,
        "notes": option.served.notes,
    }


def _print_all(
    pairs: list[tuple[InspectedServer, ModelOption]], found: DiscoveredModels, used: set[str]
) -> None:
    rows = [COLUMNS, *(_row(server, option, used) for server, option in pairs)]
    kept = [
        index
        for index, column in enumerate(COLUMNS)
        if column not in OPTIONAL_COLUMNS
        or any(row[index] not in ("", UNKNOWN) for row in rows[1:])
    ]
    for line in aligned([[row[index] for index in kept] for row in rows]):
        print_text(line)
    notes = [note for _, option in pairs for note in option.served.notes]
    for note in (*notes, *found.problems):
        print_text(f"\nnote: {note}")


def _row(server: InspectedServer, option: ModelOption, used: set[str]) -> tuple[str, ...]:
    served, latency_s = option.served, server.inventory.latency_s
    return (
        "*" if option.name in used else "",
        served.server or (server.place.title if server.place.named_by else UNKNOWN),
        _window(served),
        UNKNOWN if served.max_output is None else f"{served.max_output:,}",
        UNKNOWN if served.slots is None else str(served.slots),
        *(YES_OR_NO[said] for said in (served.tools, served.thinking, served.images)),
        UNKNOWN if served.price is None else _price(served.price),
        UNKNOWN if latency_s is None else f"{latency_s * 1000:.0f} ms",
        option.name,
    )


def _price(price: Price) -> str:
    more = "+" if price.tiers else ""
    return f"${price.input:g}/${price.output:g}{more}"


def _window(served: ServedModel) -> str:
    if served.window is None:
        if served.loaded is False and served.max_window:
            return f"not loaded, up to {served.max_window:,}"
        return "not loaded" if served.loaded is False else UNKNOWN
    if served.max_window is None or served.max_window <= served.window:
        return f"{served.window:,}"
    return f"{served.window:,} of {served.max_window:,}"
