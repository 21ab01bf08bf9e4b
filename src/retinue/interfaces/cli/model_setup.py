"""A short dialog on the terminal: offers the models that can be used, and saves the choice."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from retinue.config.environment import Environment
from retinue.config.model_routes import PROVIDERS
from retinue.config.settings_editor import set_value
from retinue.config.settings_file import load_settings
from retinue.discovery import discover, named_models
from retinue.domain.discovered_models import DiscoveredModels
from retinue.domain.plural import plural
from retinue.domain.server_info import DEFAULT_PORTS
from retinue.embedded.adapter import installed_adapter
from retinue.embedded.model import NAME as EMBEDDED
from retinue.errors import RetinueError, UsageError
from retinue.extras import install_command
from retinue.interfaces.cli.event_loop import run_async
from retinue.interfaces.cli.terminal.output import print_error, width
from retinue.interfaces.view.formatting import aligned
from retinue.model_registry import ModelRegistry
from retinue.project import project_root
from retinue.runtime.core.clock import SystemClock

LOOK_AGAIN = "r"
MAX_SHOWN = 12


class Offer(msgspec.Struct, frozen=True):
    """A model that can be chosen by its number."""

    name: str
    about: str
    group: str


def choose_model_if_none(directory: str, model: str | None) -> str | None:
    """The model to use, if none is named anywhere and the choice is not obvious; else `model`."""
    environment, root = Environment.current(), project_root(directory)
    layers = load_settings(environment, root)
    if model is not None or named_models(environment, layers):
        return model
    if run_async(discover(environment, layers)).only_option is not None:
        return None  # The runtime finds it too, and says so.
    return choose_model(directory)


def choose_model(directory: str) -> str:
    """Ask for a model, and save it in the user's settings. Raises click.Abort on Ctrl-C."""
    environment, root = Environment.current(), project_root(directory)
    layers = load_settings(environment, root)
    while True:
        found = run_async(discover(environment, layers))
        offers = list(_offers(found))
        _print_offers(offers, found)
        while (answer := _ask(offers)) != LOOK_AGAIN:
            try:
                name = _chosen(answer, found, offers, {*layers.user.models, *layers.user.pools})
                run_async(_check(environment, root, name))
                set_value(environment.user_settings_file, ("model",), [name])
            except RetinueError as error:
                print_error(str(error))
                continue
            file = environment.display_path(environment.user_settings_file)
            print_error(f'Saved in {file}: model = "{name}". `retinue setup` changes it.')
            click.echo(err=True)
            return name


def _offers(found: DiscoveredModels) -> Iterator[Offer]:
    here = all(not server.place.named_by for server in found.servers if server.options)
    group = "Served on this machine:" if here else "Served at the addresses that you named:"
    for option in found.options[:MAX_SHOWN]:
        yield Offer(option.name, option.description, group)
    for cloud in found.clouds:
        key = cloud.key_variable or cloud.key_command
        yield Offer(cloud.example, f"with {key}", "At a provider, with your key:")
    if found.embedded:
        able = "finds things, edits values" if installed_adapter() else "answers from files"
        about = f"small: {able}; it is no coding agent"
        yield Offer(EMBEDDED, about, "Without a server and a key:")


def _print_offers(offers: list[Offer], found: DiscoveredModels) -> None:
    click.secho("Which model shall agents use?", bold=True, err=True)
    click.echo(err=True)
    rows = aligned([[f"{n:>4}", one.name, one.about] for n, one in enumerate(offers, 1)])
    if max(map(len, rows), default=0) > width(sys.stderr):
        rows = [f"{n:>4}  {one.name}\n      {one.about}" for n, one in enumerate(offers, 1)]
    group = ""
    for offer, row in zip(offers, rows, strict=True):
        if offer.group != group:
            group = offer.group
            print_error(f"  {group}")
        print_error(row)
    if (more := len(found.options) - MAX_SHOWN) > 0:
        print_error(f"      and {plural(more, 'more model')}; `retinue models` lists them")
    for problem in found.problems:
        print_error(f"  {problem}")
    answering = {s.inventory.server for s in found.servers if s.inventory.models}
    silent = [name for name in DEFAULT_PORTS if name not in answering]
    if silent and any(not server.place.named_by for server in found.servers):
        print_error(f"  Not running here: {', '.join(silent)}. Start one, then type r.")
    if not found.clouds:
        print_error("  No key of a provider is set, such as OPENAI_API_KEY.")
    if not found.embedded:
        print_error(f"  Not installed: the embedded model ({install_command('embedded')}).")


def _ask(offers: list[Offer]) -> str:
    start = "Number, or the name of another model" if offers else "Name of a model"
    question = f"\n{start} (r: look again, Ctrl-C: quit)"
    default = "1" if offers else None
    answer: str = click.prompt(question, default=default, err=True)
    return answer.strip()


def _chosen(
    answer: str, found: DiscoveredModels, offers: Sequence[Offer], short_names: Collection[str]
) -> str:
    """The full name of the model that an answer means."""
    if answer.isdecimal():
        if not 1 <= int(answer) <= len(offers):
            raise UsageError(f"There is no number {answer}.")
        return offers[int(answer) - 1].name
    for option in found.options:
        if answer == option.served.model:
            return option.name
    if answer.partition(":")[0] not in (*PROVIDERS, EMBEDDED, *short_names):
        raise UsageError(
            f"Which provider serves {answer!r}? Write it like openai:{answer}, or for a server of"
            f" your own openai:{answer}@http://HOST:PORT/v1."
        )
    return answer


async def _check(environment: Environment, root: Path, name: str) -> None:
    """Raise ConfigError if the name is wrong, or its key is missing. Nothing is sent."""
    layers = load_settings(environment, root)
    async with ModelRegistry(environment, layers, root, {}, SystemClock()) as registry:
        registry.use_trusted(name)
