"""Removing folders, whatever an agent has put into them."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

_FORCED_REMOVAL = 'chmod -R u+rwx -- "$0"; rm -rf -- "$0"'


def remove_folder(folder: str) -> None:
    """Remove a folder, as far as possible.

    It may contain folders without permissions, or nested deeper than Python can recurse.
    """
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        words = ("/bin/sh", "-c", _FORCED_REMOVAL, folder)
        # Not the user's PATH: its first folder may be the project's.
        subprocess.run(
            words,
            check=False,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath},
        )
