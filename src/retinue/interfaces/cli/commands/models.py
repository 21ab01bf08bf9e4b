"""The command that tells which models are served, and what their servers say about them."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from retinue.config.environment import Environment
from retinue.config.settings_file import load_settings
from retinue.discovery import discover, named_models
from retinue.domain.discovered_models import (
    DiscoveredModels,
    InspectedServer,
    ModelOption,
    ServerAddress,
)
from retinue.domain.server_info import ServedModel, ServerInventory
from retinue.embedded.model import NAME, SERVED
from retinue.embedded.serving import running_server
from retinue.interfaces.cli.options import directory
from retinue.interfaces.cli.terminal.console import perform
from retinue.interfaces.cli.terminal.output import tell, write
from retinue.project import project

COLUMNS = ("", "SERVER", "WINDOW", "SLOTS", "TOOLS", "LATENCY", "MODEL")
UNSAID = "-"


@click.command()
@directory
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def models(directory: str, as_json: bool) -> int:
    """List the models that are served, by the names that -m takes.

    WINDOW is the number of tokens that a call may have now, SLOTS how many calls are worked on at
    the same time, LATENCY how long the server took to answer with this list. Exit 1 if there is no
    model.

    Example: retinue models
    """
    environment = Environment.current()
    layers = load_settings(environment.user_settings_file, project(directory))
    named = named_models(environment, layers)
    more = [one.place for one in named if one.place is not None]
    found = perform(discover(environment, layers, more=more, cloud=True))
    pairs = [(server, option) for server in found.servers for option in server.options]
    pairs += [_embedded(environment)] if found.embedded else []
    if as_json:
        for server, option in pairs:
            click.echo(msgspec.json.encode(_fields(server, option)))
    elif pairs:
        _print_all(pairs, found, {one.model for one in named})
    else:
        lines = found.problems or found.hints
        tell("\n".join(["retinue: No model was found.", *lines]))
    return 0 if pairs else 1


def _embedded(environment: Environment) -> tuple[InspectedServer, ModelOption]:
    """The embedded model, in the place where it is served while somebody uses it."""
    address = running_server(environment.embedded_dir)
    at = "" if address is None else address.url
    place = ServerAddress(address=at, title=NAME, named_by=NAME)
    return InspectedServer(place, ServerInventory(address=at)), ModelOption(
        name=NAME, served=msgspec.structs.replace(SERVED, loaded=address is not None)
    )


def _fields(server: InspectedServer, option: ModelOption) -> dict[str, Any]:
    served = option.served
    return {
        "name": option.name,
        "endpoint": server.inventory.address,
        "model": served.model,
        "server": served.server,
        "window": served.window,
        "max_window": served.max_window,
        "slots": served.slots,
        "tools": served.tools,
        "loaded": served.loaded,
        "remote": served.remote,
        "latency_s": server.inventory.latency_s,
        "notes": served.notes,
    }


def _print_all(
    pairs: list[tuple[InspectedServer, ModelOption]], found: DiscoveredModels, used: set[str]
) -> None:
    rows = [COLUMNS, *(_row(server, option, used) for server, option in pairs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width]
        write("  ".join(cells).rstrip())
    notes = [note for _, option in pairs for note in option.served.notes]
    for note in (*notes, *found.problems):
        write(f"\nnote: {note}")


def _row(server: InspectedServer, option: ModelOption, used: set[str]) -> tuple[str, ...]:
    served, latency_s = option.served, server.inventory.latency_s
    return (
        "*" if option.name in used else "",
        served.server or (server.place.title if server.place.named_by else UNSAID),
        _window(served),
        UNSAID if served.slots is None else str(served.slots),
        UNSAID if served.tools is None else "yes" if served.tools else "no",
        UNSAID if latency_s is None else f"{latency_s * 1000:.0f} ms",
        option.name,
    )


def _window(served: ServedModel) -> str:
    if served.window is None:
        if served.loaded is False and served.max_window:
            return f"not loaded, up to {served.max_window:,}"
        return "not loaded" if served.loaded is False else UNSAID
    if served.max_window is None or served.max_window <= served.window:
        return f"{served.window:,}"
    return f"{served.window:,} of {served.max_window:,}"
