"""The user's repository: where it is, and the settings that git needs to read its files.

The user's settings are never given to git as a whole, since filters, hooks and monitors run
programs. Only a short list of values that say how files are read is copied.
"""

from __future__ import annotations

import os
import stat
from functools import partial

import msgspec

from retinue.errors import WorkspaceError
from retinue.workspace.git import (
    Repository,
    find_repository,
    git_version,
    open_at_once,
    run_git,
    split_paths,
)

# The first version with `merge-tree --write-tree`, which merges without a work tree.
MIN_GIT_VERSION = (2, 38)
_READING_SETTINGS = (
    "core.autocrlf", "core.checkstat", "core.eol", "core.filemode", "core.ignorecase",
    "core.precomposeunicode", "core.symlinks", "core.trustctime",
)  # fmt: skip
# Projects without a repository have no .gitignore; these folders are ignored there.
_DEFAULT_EXCLUDES = b"node_modules\n.venv\n__pycache__\n"


class UserRepository(msgspec.Struct, frozen=True, kw_only=True):
    """`top` is the top of the work tree, which may be above the project.

    Without a repository, `index_file` is None and `why_no_copies` tells the user the reason.
    """

    top: str
    index_file: str | None = None
    objects_folder: str | None = None
    shallow_file: str = ""
    """Exists if the user's clone is shallow."""
    object_format: str = "sha1"
    settings: tuple[str, ...] = ()
    exclude_patterns: bytes = _DEFAULT_EXCLUDES
    """Patterns of `.git/info/exclude`, which add to those of the .gitignore files."""
    excludes_file: str = ""
    """The user's own file of such patterns; "" if the repository's settings name another."""
    is_sparse: bool = False
    is_partial: bool = False
    """Whether objects were left out when it was cloned."""
    why_no_copies: str = ""


def find_user_repository(root: str, *, home: str, config_home: str) -> UserRepository:
    """The repository that `root` belongs to. `home` and `config_home` have the user's settings."""
    installed = git_version()
    if installed is None:
        return UserRepository(top=root, why_no_copies="git is not installed")
    found = _enclosing_repository(root)
    if found is None:
        return UserRepository(top=root, why_no_copies="the project is no git repository")
    if installed < MIN_GIT_VERSION:
        needed, have = (".".join(map(str, v)) for v in (MIN_GIT_VERSION, installed))
        return UserRepository(
            top=root, why_no_copies=f"git {needed} or newer is needed, and this is {have}"
        )
    top, common = found.work_tree, _common_git_dir(found.git_dir)
    prefix = "" if top == root else os.path.relpath(root, top)
    if prefix and _ignores(found, prefix):
        return UserRepository(
            top=root, why_no_copies="the repository around the project ignores it"
        )
    settings, own = _read_settings(found, home, config_home)
    ignored = settings.get("core.excludesfile") or os.path.join(config_home, "git", "ignore")
    ignored = _expand_home(ignored, home)
    return UserRepository(
        top=top,
        index_file=found.index_file,
        objects_folder=os.path.join(common, "objects"),
        shallow_file=_file_or_none(os.path.join(common, "shallow")),
        object_format=settings.get("extensions.objectformat", "sha1"),
        settings=(
            *(f"{name}={settings[name]}" for name in _READING_SETTINGS if name in settings),
            f"core.excludesFile={ignored}",
        ),
        excludes_file="" if "core.excludesfile" in own else ignored,
        exclude_patterns=read_or_empty(os.path.join(common, "info", "exclude")),
        is_sparse=settings.get("core.sparsecheckout") == "true",
        is_partial="extensions.partialclone" in settings,
    )


def _enclosing_repository(root: str) -> Repository | None:
    """The repository at `root`, or the nearest enclosing one of the same owner."""
    folder = root
    while True:
        found = find_repository(folder)
        if found is not None:
            # The project may lie in a folder that others can write, such as /tmp.
            ours = folder == root or _owner(found.git_dir) in (os.geteuid(), _owner(root))
            return found if ours and _is_git_dir(found.git_dir) else None
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def _is_git_dir(path: str) -> bool:
    """Git's own test: a folder that is only called `.git` is not enough."""
    objects = os.path.join(_common_git_dir(path), "objects")
    return os.path.lexists(os.path.join(path, "HEAD")) and os.path.isdir(objects)


def _ignores(repository: Repository, prefix: str) -> bool:
    listing = ["ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory"]
    listed = split_paths(run_git(repository, [*listing, "--", prefix]).stdout)
    return any(f"{prefix}/".startswith(path) for path in listed)


def _owner(path: str) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def _common_git_dir(git_dir: str) -> str:
    """The git dir with the objects: for a linked worktree, that of the main repository."""
    pointer = read_or_empty(os.path.join(git_dir, "commondir")).strip()
    return os.path.normpath(os.path.join(git_dir, os.fsdecode(pointer))) if pointer else git_dir


def _read_settings(
    repository: Repository, home: str, config_home: str
) -> tuple[dict[str, str], set[str]]:
    """All settings by lower-case name, and the names of those that the repository sets itself.

    Listing them runs no program.
    """
    listed = run_git(
        repository,
        ["config", "--list", "--show-scope", "-z"],
        users_settings={"HOME": home, "XDG_CONFIG_HOME": config_home},
    )
    if not listed.ok:
        raise WorkspaceError(f"The settings of {repository.git_dir} cannot be read: {listed.error}")
    found, own = dict[str, str](), set[str]()
    parts = iter(split_paths(listed.stdout))
    for scope, setting in zip(parts, parts, strict=True):
        # A name without a value means true.
        name, equals, value = setting.partition("\n")
        found[name] = value if equals else "true"
        if scope in ("local", "worktree"):
            own.add(name)
    return found, own


def _expand_home(path: str, home: str) -> str:
    return os.path.join(home, path[2:]) if path.startswith("~/") else path


def _file_or_none(path: str) -> str:
    """`path`; "" if a link or a pipe is there.

    Git quotes a line that it cannot read, and agents see what git says.
    """
    try:
        return path if stat.S_ISREG(os.lstat(path).st_mode) else ""
    except OSError:
        return path


def read_or_empty(path: str) -> bytes:
    """The content of a file of a git dir; nothing if it is a link, a pipe, or cannot be read.

    Agents can read the content in their copies, so a link could give them any file of the user.
    """
    try:
        with open(path, "rb", opener=partial(open_at_once, more=os.O_NOFOLLOW)) as file:
            return file.read()
    except OSError:
        return b""
