"""`/model`, `/mode`, `/budget` and `/theme`: the options of the chat."""

from __future__ import annotations

import msgspec

from retinue.config.server_addresses import address_of
from retinue.config.settings import Theme
from retinue.config.settings_editor import set_value
from retinue.config.settings_file import load_settings
from retinue.discovery import discover
from retinue.domain.budget import Budget, Limits
from retinue.domain.grant import Mode
from retinue.errors import UsageError
from retinue.interfaces.chat.chat import Chat, Choice, Work
from retinue.interfaces.chat.styles import THEMES
from retinue.interfaces.cli.options import LIMIT_FLAGS
from retinue.interfaces.view.formatting import format_cost, short_count
from retinue.interfaces.view.modes import MODES
from retinue.interfaces.view.styled_text import Tone
from retinue.model_probe import probe_model


def change_model(chat: Chat, name: str) -> Work:
    """Change the model; without a name, choose one from a list."""
    if not name:
        return _list_models(chat)
    chat.host.check_idle()
    return _verify_model(chat, name)


async def _verify_model(chat: Chat, name: str) -> None:
    """Ask the model to call a tool, and change to it if it answers."""
    current = chat.runtime.model if chat.host.ready else ""
    settings = load_settings(chat.environment, chat.directory)
    with chat.waiting(f"waiting for a first answer from {name}"):
        probe = await probe_model(chat.environment, settings, chat.directory, name)
    add = chat.conversation.add_notice
    if not probe.answered:
        still = f"The model is still {current}." if current else "No model is set."
        add(f"✗ {name}: {probe.text.rstrip('.')}.\n{still}", Tone.FAILED)
        return
    chat.host.reopen(model=name)
    if probe.ok:
        add(f"Model changed to {name} ({probe.text}).")
    else:
        add(f"! Model changed to {name}: {probe.text.rstrip('.')}.", Tone.STOPPED)


async def _list_models(chat: Chat) -> None:
    """List the models of the settings, of the servers that are found, and of the current server."""
    current = chat.runtime.model if chat.host.ready else ""
    layers = load_settings(chat.environment, chat.directory)
    place = address_of(current, "", chat.environment, layers.user) if current else None
    more = () if place is None else (place,)
    with chat.waiting("looking for models"):
        found = await discover(chat.environment, layers, more=more, cloud=True)
    offers = [option for server in found.servers for option in server.options]
    choices = dict(layers.user.models) | {offer.name: offer.description for offer in offers}
    if not choices:
        raise UsageError(
            f"The model is {current or 'not set'}. No other is configured, and no model server was"
            " found. Name one: /model openai:NAME@http://HOST:PORT/v1"
        )
    chat.pick(f"Model (now {current or 'none'})", list(choices.items()), change_model)


def model_choices(chat: Chat) -> list[Choice]:
    settings = load_settings(chat.environment, chat.directory)
    return list(settings.user.models.items())


def change_mode(chat: Chat, name: str) -> None:
    """Change the mode; without a name, choose one from a list."""
    if not name:
        title = f"Mode (now {chat.runtime.mode})"
        chat.pick(title, mode_choices(chat), change_mode)
        return
    if name not in list(Mode):
        raise UsageError(f"Unknown mode {name!r}; use one of: {', '.join(Mode)}.")
    chat.host.reopen(mode=name)
    chat.conversation.add_notice(f"Mode changed to {name}: {MODES[Mode(name)]}.")


def mode_choices(_: Chat) -> list[Choice]:
    return [(str(mode), text) for mode, text in MODES.items()]


def change_theme(chat: Chat, name: str) -> None:
    """Change the colours, and keep them for later; without a name, choose from a list."""
    if not name:
        chat.pick("Theme", theme_choices(chat), change_theme)
        return
    if name not in list(Theme):
        raise UsageError(f"Unknown theme {name!r}; use one of: {', '.join(Theme)}.")
    chat.on_theme(Theme(name))
    path = chat.environment.user_settings_file
    set_value(path, ["theme"], [name])
    where = chat.environment.display_path(path)
    chat.conversation.add_notice(f"Theme changed to {name}, and saved in {where}.")


def theme_choices(_: Chat) -> list[Choice]:
    return [(str(theme), text) for theme, text in THEMES.items()]


def change_budget(chat: Chat, argument: str) -> None:
    if argument:
        name, value = _parse_limit(argument)
        limits = chat.host.options.get("limits", Limits())
        chat.host.reopen(limits=msgspec.structs.replace(limits, **{name: value}))
        chat.conversation.add_notice(f"{name} is now {value:,} for each message.")
        return
    budget, trees = chat.runtime.budget, list(chat.forest.trees.values())
    tokens = sum(tree.run.usage.tokens for tree in trees)
    cost = sum(tree.run.usage.cost_usd for tree in trees)
    limits = [f"  {name} {_limit_text(budget, name)}" for name in LIMIT_FLAGS]
    used = f"{short_count(tokens)} tokens{f', {format_cost(cost)}' if cost else ''}"
    lines = [f"This conversation has used {used}."]
    lines += ["Limits for each message; change one with /budget NAME VALUE:", *limits]
    chat.conversation.add_notice("\n".join(lines))


def _parse_limit(argument: str) -> tuple[str, int | float]:
    name, _, value = argument.replace("=", " ").partition(" ")
    if name not in LIMIT_FLAGS:
        raise UsageError(f"Unknown limit {name!r}; use one of: {', '.join(LIMIT_FLAGS)}.")
    try:
        digits = value.strip().replace(",", "").replace("_", "")
        number: int | float = LIMIT_FLAGS[name].type(digits)
    except ValueError:
        raise UsageError(f"{name} must be a number, not {value.strip()!r}.") from None
    Budget(**{name: number})  # type: ignore[arg-type]  # Raises for an invalid number.
    return name, number


def _limit_text(budget: Budget, name: str) -> str:
    value = getattr(budget, name)
    return "none" if value is None else f"{value:,g}" if isinstance(value, float) else f"{value:,}"
