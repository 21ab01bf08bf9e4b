"""Files that `retinue init` writes: settings with every default, and an example agent."""

from __future__ import annotations

import json
from importlib.resources import files

import msgspec

from retinue.config.settings import RUN_BUDGET, MergedSettings

AGENT_FILE_NAME = "translator.md"
EXAMPLES_HEADING = "# Examples"
USER_ONLY_HEADING = "# Only in your own file"


def settings_template(test: str = "", check: str = "") -> str:
    """First content of `retinue.toml`. Every line is commented out, except a `test` command.

    `check` is the command of a linter, which `checks` names as a proposal.

    The numbers come from the code, so they are always the real defaults.
    """
    values = msgspec.structs.asdict(MergedSettings()) | msgspec.structs.asdict(RUN_BUDGET)
    # JSON and TOML write these values alike.
    written = {name: json.dumps(value, default=str) for name, value in values.items()}
    text = _template("retinue.toml").format(**written)
    if check:
        text = text.replace("# checks = []", f"# checks = [{json.dumps(check)}]")
    return text.replace('# test = ""', f"test = {json.dumps(test)}") if test else text


def agent_template() -> str:
    return _template(AGENT_FILE_NAME)


def _template(name: str) -> str:
    return (files("retinue.config") / "templates" / name).read_text("utf-8")
