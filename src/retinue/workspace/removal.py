"""Removing folders that agents have filled."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

_AGAIN = 'chmod -R u+rwx -- "$0"; rm -rf -- "$0"'


def remove_folder(folder: str) -> None:
    """Remove a folder, as far as that is possible: with folders in it that their owner has no
    rights to, or that are nested deeper than Python can go."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        words = ("/bin/sh", "-c", _AGAIN, folder)
        subprocess.run(words, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
