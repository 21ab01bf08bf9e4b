"""The command `retinue`, and `python -m retinue`.

Before anything else is imported, folders of the workspace are removed from `sys.path`.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise

from retinue.import_path import leave_out_of_imports


def main() -> None:
    for directory in _directories(sys.argv[1:]):
        leave_out_of_imports(directory)
    from retinue.interfaces.cli.main import main as run_command

    run_command()


def _directories(argv: list[str]) -> list[str]:
    """The current directory, and those that -C names; options are not parsed yet."""
    found = [os.curdir]
    for word, following in pairwise([*argv, ""]):
        flags, named, value = word.partition("C")
        if named and flags.startswith("-") and not flags.startswith("--"):
            found.append(value or following)
    return found


if __name__ == "__main__":
    main()
