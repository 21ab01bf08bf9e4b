"""Git bundles: commits in a file, for the repository of a machine that does not see this disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from retinue.errors import GitError, WorkspaceError
from retinue.workspace.git import git_output, git_to_file, run_git
from retinue.workspace.private_git import PrivateGit

MAX_LOOSE_OBJECTS = 200
"""A bundle with more is stored as a pack, whose reading costs more than that of a few objects."""
_HEADS = {"sha1": b"# v2 git bundle\n", "sha256": b"# v3 git bundle\n@object-format=sha256\n"}
_MAX_HEAD_BYTES = 16 * 1024 * 1024
_DAMAGED = "The bundle is damaged"
_COMMIT = re.compile("[0-9a-f]{40,64}")
_USERS_REFS = ("HEAD", "refs/heads/", "refs/tags/", "refs/remotes/")


def write_bundle(
    private_git: PrivateGit, path: str, refs: Mapping[str, str], *, have: Iterable[str] = ()
) -> None:
    """Write commits, by the names they shall have, to the new file `path`.

    Objects that a repository with the commits `have` has are left out. Raises WorkspaceError.
    """
    user = private_git.user_repository
    known = sorted(set(commits_here(private_git, have)))
    lines = [_HEADS[user.object_format]]
    lines += [f"-{commit} \n".encode() for commit in known]
    lines += [os.fsencode(f"{commit} {name}\n") for name, commit in refs.items()]
    wanted = "".join([*(f"{one}\n" for one in refs.values()), *(f"^{one}\n" for one in known)])
    # Snapshots have no parents: with `--shallow`, git looks at the trees of all commits that the
    # other repository has, and not only at those of ancestors.
    pack = ["pack-objects", "--revs", "--thin", "--shallow", "--delta-base-offset"]
    pack += ["--stdout", "--quiet"]
    repository = private_git.repository(shallow=True)
    try:
        with open(path, "xb") as file:
            file.write(b"".join([*lines, b"\n"]))
            file.flush()
            git_to_file(repository, pack, file, stdin=wanted.encode())
    except OSError as error:
        raise WorkspaceError(f"{path} cannot be written ({error.strerror}).") from error


def read_bundle(private_git: PrivateGit, path: str) -> dict[str, str]:
    """Store the commits of a bundle; returns them by their names. Raises WorkspaceError.

    All that they refer to is there afterwards, or an error says that it is not.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            needed, refs, start = _read_head(file.read(_MAX_HEAD_BYTES), private_git)
            file.seek(start)
            count = int.from_bytes(file.read(12)[8:], "big")
            file.seek(start)
            store = ["index-pack", "--stdin", "--fix-thin"]
            if count <= MAX_LOOSE_OBJECTS:
                store = ["unpack-objects", "-q"]
            if missing := set(needed).difference(commits_here(private_git, needed)):
                raise WorkspaceError(f"The bundle needs {min(missing)}, which is not here.")
            try:
                git_output(private_git.repository(), store, stdin=file)
                check = ["rev-list", "--objects", "--quiet", "--stdin"]
                listed = "".join([*(f"{c}\n" for c in refs.values()), *(f"^{c}\n" for c in needed)])
                git_output(private_git.repository(shallow=True), check, stdin=listed.encode())
            except GitError as error:
                raise WorkspaceError(f"{_DAMAGED}, or the disk is full: {error}") from error
    except OSError as error:
        raise WorkspaceError(f"{path} cannot be read ({error.strerror}).") from error
    return refs


def _read_head(data: bytes, private_git: PrivateGit) -> tuple[list[str], dict[str, str], int]:
    """The commits that a bundle needs, its commits by name, and where its pack begins."""
    head = _HEADS[private_git.user_repository.object_format]
    end = data.find(b"\n\n")
    if not data.startswith(head) or end < 0:
        raise WorkspaceError(f"{_DAMAGED}: it has no head.")
    needed, refs = [], {}
    # Not `splitlines`: names may contain characters that end lines elsewhere.
    for line in os.fsdecode(data[len(head) : end]).split("\n"):
        commit, _, name = line.partition(" ")
        check_commit_ids(commit.removeprefix("-"))
        if commit.startswith("-"):
            needed.append(commit[1:])
        else:
            refs[name] = commit
    return needed, refs, end + 2


def check_commit_ids(*commits: str) -> None:
    """Raise WorkspaceError unless these are ids of commits: git takes other texts for options."""
    for commit in commits:
        if not _COMMIT.fullmatch(commit):
            raise WorkspaceError(f"{commit[:80]!r} is no id of a commit.")


def commits_here(private_git: PrivateGit, commits: Iterable[str]) -> list[str]:
    """The commits, or their tags, that this repository has."""
    asked = "".join(f"{commit}\n" for commit in commits if _COMMIT.fullmatch(commit))
    if not asked:
        return []
    check = ["cat-file", "--batch-check=%(objectname) %(objecttype)"]
    lines = private_git.run(check, stdin=asked.encode()).decode("utf-8", "replace").splitlines()
    return [line.split()[0] for line in lines if line.endswith((" commit", " tag"))]


def users_refs(private_git: PrivateGit) -> dict[str, str]:
    """The user's commits by their names; without those that only the user's machine knows."""
    repository = private_git.users_repository
    if repository is None:
        return {}
    # show-ref fails if there is no commit yet.
    listed = os.fsdecode(run_git(repository, ["show-ref", "--head"]).stdout)
    named = (line.partition(" ") for line in listed.split("\n"))
    return {name: commit for commit, _, name in named if name.startswith(_USERS_REFS)}
