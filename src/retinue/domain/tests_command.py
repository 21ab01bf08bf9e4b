"""The project's test command: `pytest -q`, or `go test {selector:./...}`."""

from __future__ import annotations

import re
import shlex

from retinue.errors import ToolFailure

_PLACE = re.compile(r"\{selector(?::([^{}]*))?\}")


def command_for_tests(setting: str, selector: str) -> str:
    """The command for all tests, or for those that `selector` names.

    The words of the selector replace `{selector}` in the setting, or come last. In
    `{selector:DEFAULT}`, DEFAULT stands for all tests. The words are data: none can be an option,
    set a variable of make, or start a program.
    """
    try:
        words = shlex.split(selector)
    except ValueError as error:
        raise ToolFailure(f"run_tests: 'selector' cannot be read: {error}.") from None
    for word in words:
        if word.startswith("-") or re.match(r"\w+=", word):
            raise ToolFailure(
                f"run_tests: {word!r} is no test; name a file, a folder or a test, without options."
            )
    chosen = shlex.join(words)
    if not _PLACE.search(setting):
        return f"{setting} {chosen}" if chosen else setting
    return _PLACE.sub(lambda place: chosen or place[1] or "", setting).strip()
