"""clean."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from retinue.interfaces.cli.clean import size_text

Cli = Callable[..., Any]
WRITES = """
rules:
  - match: ""
    steps: [{call: write_file, args: {path: a.txt, content: "2"}}, {say: Done.}]
"""


def test_what_is_kept_is_told_and_what_is_old_goes(cli: Cli, script: Callable[[str], str]) -> None:
    cli("spawn", "executor", "-m", script(WRITES), "--mode", "auto", "Write.")
    told = cli("clean", "--dry-run")
    assert told.code == 0, told.err
    copies, changes, versions = told.out.splitlines()
    assert copies.split("  ")[0] == "copies of trees"
    assert re.fullmatch(r"changes that can be undone  1; would go: 0", changes)
    assert re.fullmatch(r"versions of files +\d+, \d+ B; would go: 0", versions)
    assert re.search(r"undone  1; removed: 1$", cli("clean", "--older-than", "0").out, re.MULTILINE)
    assert cli("undo", cli("runs").out.split()[0]).err.startswith(
        "retinue: There is nothing to undo"
    )


def test_where_nothing_is_kept(cli: Cli) -> None:
    done = cli("clean")
    assert (done.code, "Nothing is kept in" in done.err) == (2, True)


def test_sizes() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 34_100_000, 5 * 10**15)] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "34.1 MB",
        "5000.0 TB",
    ]
