"""Thinking options in a model's name: `claude-opus-4-5+thinking=8000`, `gpt-5+effort=high`."""

from __future__ import annotations

import msgspec

from retinue.errors import ConfigError

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
MIN_BUDGET_TOKENS = 1_024


class ThinkingOptions(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How much a model thinks. None leaves it to the model.

    `budget_tokens` limits the thinking of one reply.
    """

    on: bool | None = None
    budget_tokens: int | None = None
    effort: str | None = None

    def __str__(self) -> str:
        thinking = "" if self.on is None else "+thinking" if self.on else "+thinking=off"
        budget = "" if self.budget_tokens is None else f"={self.budget_tokens}"
        effort = "" if self.effort is None else f"+effort={self.effort}"
        return thinking + budget + effort


def parse_thinking(options: str) -> ThinkingOptions:
    """Parse `thinking`, `thinking=off`, `thinking=8000` and `effort=high`, joined by `+`."""
    found = ThinkingOptions()
    for option in options.split("+") if options else ():
        word, _, value = option.partition("=")
        match word, value:
            case "thinking", "" | "on" | "off":
                found = msgspec.structs.replace(found, on=value != "off")
            case "thinking", _ if value.isascii() and value.isdigit():
                budget = int(value)
                if budget < MIN_BUDGET_TOKENS:
                    raise ConfigError(
                        f"thinking={value} is too small; write at least {MIN_BUDGET_TOKENS}."
                    )
                found = msgspec.structs.replace(found, on=True, budget_tokens=budget)
            case "effort", _ if value in EFFORTS:
                found = msgspec.structs.replace(found, effort=value)
            case "effort", _:
                raise ConfigError(f"Unknown effort {value!r}; known: {', '.join(EFFORTS)}.")
            case _:
                raise ConfigError(
                    f"Unknown option {option!r}; write thinking, thinking=off, thinking=8000 (a"
                    " number of tokens) or effort=high."
                )
    return found
