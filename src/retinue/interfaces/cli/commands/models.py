"""The command that tells which models are served, and what their servers say about them."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from retinue.config.environment import Environment
from retinue.config.settings import load
from retinue.discovery import discover, named_models
from retinue.domain.discovery import Discovery, Looked, Offer, Place
from retinue.domain.served import Inventory, Served
from retinue.embedded.model import NAME, SERVED
from retinue.embedded.serving import published
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
    layers = load(environment.user_settings, project(directory))
    named = named_models(environment, layers)
    more = [one.place for one in named if one.place is not None]
    found = perform(discover(environment, layers, more=more, cloud=True))
    pairs = [(look, offer) for look in found.looked for offer in look.offers]
    pairs += [_embedded(environment)] if found.embedded else []
    if as_json:
        for look, offer in pairs:
            click.echo(msgspec.json.encode(_fields(look, offer)))
    elif pairs:
        _print_all(pairs, found, {one.model for one in named})
    else:
        lines = found.troubles or found.help
        tell("\n".join(["retinue: No model was found.", *lines]))
    return 0 if pairs else 1


def _embedded(environment: Environment) -> tuple[Looked, Offer]:
    """The embedded model, in the place where it is served while somebody uses it."""
    address = published(environment.embedded)
    at = "" if address is None else address.url
    place = Place(address=at, title=NAME, named_by=NAME)
    return Looked(place, Inventory(address=at)), Offer(
        name=NAME, served=msgspec.structs.replace(SERVED, loaded=address is not None)
    )


def _fields(look: Looked, offer: Offer) -> dict[str, Any]:
    served = offer.served
    return {
        "name": offer.name,
        "endpoint": look.inventory.address,
        "model": served.model,
        "server": served.server,
        "window": served.window,
        "max_window": served.max_window,
        "slots": served.slots,
        "tools": served.tools,
        "loaded": served.loaded,
        "remote": served.remote,
        "latency_s": look.inventory.latency_s,
        "notes": served.notes,
    }


def _print_all(pairs: list[tuple[Looked, Offer]], found: Discovery, used: set[str]) -> None:
    rows = [COLUMNS, *(_row(look, offer, used) for look, offer in pairs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width]
        write("  ".join(cells).rstrip())
    notes = [note for _, offer in pairs for note in offer.served.notes]
    for note in (*notes, *found.troubles):
        write(f"\nnote: {note}")


def _row(look: Looked, offer: Offer, used: set[str]) -> tuple[str, ...]:
    served, latency_s = offer.served, look.inventory.latency_s
    return (
        "*" if offer.name in used else "",
        served.server or (look.place.title if look.place.named_by else UNSAID),
        _window(served),
        UNSAID if served.slots is None else str(served.slots),
        UNSAID if served.tools is None else "yes" if served.tools else "no",
        UNSAID if latency_s is None else f"{latency_s * 1000:.0f} ms",
        offer.name,
    )


def _window(served: Served) -> str:
    if served.window is None:
        if served.loaded is False and served.max_window:
            return f"not loaded, up to {served.max_window:,}"
        return "not loaded" if served.loaded is False else UNSAID
    if served.max_window is None or served.max_window <= served.window:
        return f"{served.window:,}"
    return f"{served.window:,} of {served.max_window:,}"
