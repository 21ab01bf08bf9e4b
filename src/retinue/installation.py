"""Finds the files that this process imports and starts, which no agent may write.

With retinue in a project's own `.venv`, an agent that can write the project could otherwise change
retinue's code, which runs outside the sandbox.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import all_suffixes

from retinue.domain.paths import is_below
from retinue.domain.protected_paths import START_UP_MODULES, ProtectedPaths
from retinue.executables import HELPER_PROGRAMS, exclude_project, find_program
from retinue.import_path import PACKAGE, is_strictly_inside, standard_library

_MAX_LINKS = 40


def protected_paths(paths: Iterable[str], *, writable_install: bool, root: str) -> ProtectedPaths:
    """`paths` and, without `writable_install`, the installation, for agents that work in `root`."""
    exclude_project(root)
    found = dict.fromkeys(part for path in paths for part in _links_and_target(path))
    if writable_install:
        return ProtectedPaths(tuple(found))
    own = installation_paths(root)
    return ProtectedPaths((*found, *own.paths), own.packages)


def installation_paths(workspace: str) -> ProtectedPaths:
    """Files that Python and retinue execute: interpreter, packages, the command, helper programs.

    A virtual environment inside `workspace` is protected as a whole.
    """
    packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), PACKAGE]
    if site.ENABLE_USER_SITE and site.USER_SITE:
        packages.append(site.USER_SITE)
    # The folder that contains the package is on `sys.path`, as a virtual environment's are.
    wholes = (sys.prefix, sys.exec_prefix, sys.base_prefix, os.path.dirname(PACKAGE))
    wanted = [
        *packages,
        *(folder for folder in wholes if is_strictly_inside(folder, workspace)),
        standard_library(),
        os.path.join(sys.prefix, "pyvenv.cfg"),
        os.path.join(sys.prefix, "bin"),
        os.path.join(sys.base_prefix, "bin"),
        sys.executable,
        *((sys.pycache_prefix,) if sys.pycache_prefix else ()),
        *((sys.argv[0],) if os.path.basename(sys.argv[0]) == "retinue" else ()),
        *filter(None, map(find_program, HELPER_PROGRAMS)),
        *_start_up_modules(workspace),
    ]
    found = dict.fromkeys(part for path in wanted for part in _links_and_target(path))
    return ProtectedPaths(tuple(found), tuple(dict.fromkeys(map(os.path.realpath, packages))))


def _start_up_modules(workspace: str) -> Iterator[str]:
    """The files of `workspace` that Python would import at its next start, before retinue.

    An editable install of the project puts a `.pth` file with the project's source folder into the
    `site-packages`, and Python looks for `sitecustomize` in that folder too.
    """
    with_user = bool(site.ENABLE_USER_SITE)
    modules = START_UP_MODULES if with_user else START_UP_MODULES[:1]
    places = [*site.getsitepackages(), *((site.getusersitepackages(),) if with_user else ())]
    for folder in dict.fromkeys(added for place in places for added in _added_folders(place)):
        # A link in the workspace counts, wherever it leads: an agent could put a folder in its
        # place.
        if any(is_below(part, workspace.rstrip("/")) for part in _links_and_target(folder)):
            for module in modules:
                yield from (os.path.join(folder, module + end) for end in ("", *all_suffixes()))


def _added_folders(site_packages: str) -> Iterator[str]:
    """The folders that the `.pth` files in `site_packages` add to `sys.path`, existing or not."""
    with suppress(OSError):
        for name in os.listdir(site_packages):
            if not name.endswith(".pth"):
                continue
            with suppress(OSError), open(os.path.join(site_packages, name), "rb") as file:
                for line in map(os.fsdecode, file.read().splitlines()):
                    if line.strip() and not line.startswith(("#", "import ", "import\t")):
                        yield os.path.join(site_packages, line.rstrip())


def _links_and_target(path: str) -> Iterator[str]:
    """The links on the way to `path`, and the path that they lead to."""
    here, pending, links = "/", os.path.abspath(path).split("/"), 0
    while pending:
        name = pending.pop(0)
        if name in ("", ".", ".."):
            here = os.path.dirname(here) if name == ".." else here
            continue
        at = os.path.join(here, name)
        try:
            target = os.readlink(at)
        except OSError:
            here = at
            continue
        yield at
        links += 1
        if links > _MAX_LINKS:
            return
        here = "/" if target.startswith("/") else here
        pending[:0] = target.split("/")
    yield here
