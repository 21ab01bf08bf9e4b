"""Sampling settings: how a model chooses its words, and how long a reply may be."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.domain.budget import MAX_LIMIT
from retinue.domain.thinking import EFFORTS
from retinue.errors import ContractError

MIN_OUTPUT_TOKENS = 16
MAX_TEMPERATURE = 2.0
RESERVED_KEYS = frozenset({
    "model", "messages", "input", "system", "instructions", "tools", "tool_choice", "stream",
    "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "temperature",
    "top_p", "seed", "reasoning_effort", "n", "best_of", "models", "background",
    "previous_response_id",
})  # fmt: skip
"""Keys of a request that `extra_body` cannot set: retinue sets them, or they multiply the cost."""


class Sampling(
    msgspec.Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Settings of the requests of one agent. None means that the server decides.

    `check` says whether the values make sense: settings files report a problem with its line.

    ```python
    base = retinue.Sampling(temperature=0.2, seed=7)
    sampling = retinue.Sampling(temperature=0.8).over(base)
    assert (sampling.temperature, sampling.seed) == (0.8, 7)
    ```
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_output_tokens: int | None = None
    """Length of one reply, thinking included."""
    effort: str | None = None
    """How hard the model thinks, instead of the effort in its name."""
    extra_body: dict[str, Any] = {}
    """Options of one kind of server, added to the body of each request."""

    def over(self, base: Sampling) -> Sampling:
        """`base` with the settings that are given here instead of its own."""
        if self == NO_SAMPLING or base == NO_SAMPLING:
            return base if self == NO_SAMPLING else self
        given = {name: value for name in _VALUES if (value := getattr(self, name)) is not None}
        extra_body = base.extra_body | self.extra_body
        return msgspec.structs.replace(base, **given, extra_body=extra_body)

    def check(self) -> None:
        """Raise ContractError for a value that makes no sense; its first word is the name."""
        for name, most in (("temperature", MAX_TEMPERATURE), ("top_p", 1.0)):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise ContractError(f"{name} must be between 0 and {most:g}, not {value:g}.")
        if self.seed is not None and not 0 <= self.seed <= MAX_LIMIT:
            raise ContractError(f"seed must be between 0 and {MAX_LIMIT:,}, not {self.seed}.")
        longest = self.max_output_tokens
        if longest is not None and not MIN_OUTPUT_TOKENS <= longest <= MAX_LIMIT:
            raise ContractError(
                f"max_output_tokens must be at least {MIN_OUTPUT_TOKENS}, not {longest}."
            )
        if self.effort is not None and self.effort not in EFFORTS:
            raise ContractError(f"effort must be one of {', '.join(EFFORTS)}, not {self.effort!r}.")
        if reserved := sorted(RESERVED_KEYS & self.extra_body.keys()):
            raise ContractError(f"extra_body must not set {', '.join(reserved)}.")


NO_SAMPLING = Sampling()
_VALUES = ("temperature", "top_p", "seed", "max_output_tokens", "effort")
