"""Recorded changes of the user's files, each a pair of small commits, for undo and redo.

The two trees of a pair hold only the changed paths, before and after. That is all that a three-way
merge needs to revert the change, or to apply it again, in a tree that has changed since. The pair
borrows no objects from the user's repository, so it survives any pruning there.

    refs/retinue/<run>/steps/<number>    applied, in this order
    refs/retinue/<run>/undone/<number>   undone since
    refs/retinue/<run>/kept/<agent>      never applied: the work of an agent that failed
    refs/retinue/<run>/made/<agent>      such work, applied later by the user

A file that is too large to be stored is a gitlink in these trees, with the id of its blob.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from retinue.errors import WorkspaceError
from retinue.ports.file_tree import RecordedChange
from retinue.workspace.file_names import quoted
from retinue.workspace.git import git_output
from retinue.workspace.merge import MergedTree, merge_trees
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.snapshot import MAX_FILE_BYTES
from retinue.workspace.tree_diff import GITLINK, DiffEntry, is_gitlink, read_blobs

ROOT = "refs/retinue"
_FILE, _NOT_STORED = b"100", b"160000"
_RETINUE = "retinue"
"""The committer where no agent is named."""


class FileState(msgspec.Struct, frozen=True):
    path: str
    mode: int
    data: bytes


def change_ref(run_id: str, number: int) -> str:
    return f"{ROOT}/{run_id}/steps/{number}"


def unmerged_ref(run_id: str, agent_id: str) -> str:
    return f"{ROOT}/{run_id}/kept/{agent_id}"


def ref_of(change: RecordedChange) -> str:
    return f"{ROOT}/{change.run_id}/{change.kind}/{change.name}"


def record_diff(
    private_git: PrivateGit,
    ref: str,
    changed: Sequence[DiffEntry],
    message: str,
    *,
    agent_id: str = "",
) -> str:
    """Record a difference between two trees under `ref`; returns the commit of the state after."""
    blobs = read_blobs(private_git, changed, max_bytes=MAX_FILE_BYTES)
    before = [_entry(c.path, c.old_mode, c.old_id, blobs) for c in changed if c.old_mode]
    after = [_entry(c.path, c.new_mode, c.new_id, blobs) for c in changed if c.new_mode]
    return record_files(private_git, ref, before, after, message, agent_id=agent_id)


def _entry(path: str, mode: int, blob: str, blobs: Mapping[str, bytes]) -> FileState:
    if blob in blobs:
        return FileState(path, mode, blobs[blob])
    return FileState(path, GITLINK, blob.encode())


def record_files(
    private_git: PrivateGit,
    ref: str,
    before: Sequence[FileState],
    after: Sequence[FileState],
    message: str,
    *,
    agent_id: str = "",
) -> str:
    """Record two states of some files under `ref`; returns the commit of the second."""
    stream = [
        f"feature done\nreset {ref}\n\n".encode(),
        _commit_command(ref, message, before),
        _commit_command(ref, message, after, mark=b"mark :1\n", by=agent_id),
        b"get-mark :1\ndone\n",
    ]
    # Without the user's objects: fast-import would not store what it finds there.
    with private_git.changing_refs([ref]):
        made = private_git.run(
            ["fast-import", "--quiet", "--force"], stdin=b"".join(stream), borrow=False
        )
    return made.decode().strip()


def list_changes(private_git: PrivateGit, run_id: str = "") -> list[RecordedChange]:
    """The recorded changes of a run, or of all runs, in the order in which they were applied."""
    under = f"{ROOT}/{run_id}/" if run_id else f"{ROOT}/"
    fields = "--format=%(objectname) %(refname) %(committername) %(contents:subject)"
    found = []
    listed = private_git.run(["for-each-ref", fields, under]).decode("utf-8", "replace")
    # Not `splitlines`: the command in a title may contain characters that end lines elsewhere.
    for line in listed.split("\n")[:-1]:
        commit, ref, by, title = line.split(" ", 3)
        run, kind, name = ref.removeprefix(f"{ROOT}/").split("/", 2)
        agent_id = "" if by == _RETINUE else by
        found.append(
            RecordedChange(
                run_id=run, kind=kind, name=name, commit=commit, title=title, agent_id=agent_id
            )
        )
    # Changes without a number were applied last, or never.
    return sorted(found, key=lambda one: (one.run_id, one.number or float("inf")))


def reapply(private_git: PrivateGit, commit: str, tree: str) -> MergedTree:
    """`tree` with the change that `commit` records."""
    before, after = _overlay(private_git, commit, tree, expected=0)
    return merge_trees(private_git, base=before, ours=tree, theirs=after)


def revert(private_git: PrivateGit, commit: str, tree: str) -> MergedTree:
    """`tree` without the change that `commit` records. Later edits stay, or conflict."""
    before, after = _overlay(private_git, commit, tree, expected=1)
    return merge_trees(private_git, base=after, ours=tree, theirs=before)


def _overlay(private_git: PrivateGit, commit: str, tree: str, *, expected: int) -> tuple[str, str]:
    """`tree` with the changed paths as they were before the change, and as they were after it.

    `expected` is the index of the one that `tree` should resemble, apart from later edits.

    The other files are the same in all three trees: a merge of only the small trees takes another
    file of the project for a renamed file of the change, and rewrites it.
    """
    states = [_tree_entries(private_git, name) for name in (f"{commit}^", commit)]
    changed = states[0] | states[1]
    for path, entry in changed.items():
        if entry.startswith(_NOT_STORED):
            raise WorkspaceError(
                f"{quoted(os.fsdecode(path))} was too large to be stored (more than"
                f" {MAX_FILE_BYTES // 2**20} MiB), or a repository: this change can neither be"
                " undone nor applied again."
            )
    # A file may be a folder in the other state, so all paths are removed first.
    gone = b"".join(b"0 %b\t%b\0" % (b"0" * len(tree), path) for path in changed)
    now, trees = _tree_entries(private_git, tree), []
    with private_git.temporary_folder() as folder:
        repository = private_git.repository(os.path.join(folder, "index"))
        git_output(repository, ["read-tree", tree])
        for path, entry in list(states[expected].items()):
            if _differ_by_line_ends(private_git, entry, now.get(path, b"")):
                for state in states:
                    if path in state:
                        state[path] = _with_plain_line_ends(private_git, state[path])
        for state in states:
            entries = [b"%b\t%b\0" % (about, path) for path, about in state.items()]
            update = ["update-index", "-z", "--replace", "--index-info"]
            git_output(repository, update, stdin=gone + b"".join(entries))
            trees.append(git_output(repository, ["write-tree", "--missing-ok"]).decode().strip())
    before, after = trees
    return before, after


def _differ_by_line_ends(private_git: PrivateGit, step: bytes, now: bytes) -> bool:
    """Whether a file tool wrote CRLF where git converts to LF; snapshots then have LF."""
    if step == now or not (step.startswith(_FILE) and now.startswith(_FILE)):
        return False
    return b"\r\n" in _blob(private_git, step) and b"\r\n" not in _blob(private_git, now)


def _with_plain_line_ends(private_git: PrivateGit, entry: bytes) -> bytes:
    text = _blob(private_git, entry).replace(b"\r\n", b"\n")
    made = private_git.run(["hash-object", "-w", "--stdin"], stdin=text)
    return entry.partition(b" ")[0] + b" " + made.strip()


def _blob(private_git: PrivateGit, entry: bytes) -> bytes:
    return private_git.run(["cat-file", "blob", entry.partition(b" ")[2].decode()])


def _tree_entries(private_git: PrivateGit, tree: str) -> dict[bytes, bytes]:
    """The files of a tree or a commit: mode and blob by path."""
    found = {}
    for line in private_git.run(["ls-tree", "-r", "-z", tree]).split(b"\0")[:-1]:
        about, path = line.split(b"\t", 1)
        mode, _, blob = about.split(b" ")
        found[path] = mode + b" " + blob
    return found


def move_refs(
    private_git: PrivateGit, kinds: Mapping[str, str], moved: Sequence[RecordedChange]
) -> None:
    """Move changes to another kind, all of them or none."""
    after = [ref_of(msgspec.structs.replace(one, kind=kinds[one.kind])) for one in moved]
    before = [ref_of(one) for one in moved]
    commands = [
        f"update {new} {one.commit}\ndelete {old}\n"
        for new, old, one in zip(after, before, moved, strict=True)
    ]
    with private_git.changing_refs([*before, *after]):
        private_git.run(["update-ref", "--stdin"], stdin="".join(commands).encode())


def delete_ref(private_git: PrivateGit, ref: str) -> None:
    with private_git.changing_refs([ref]):
        private_git.run(["update-ref", "-d", ref])


def unified_diff(private_git: PrivateGit, commit: str, base: str = "") -> bytes:
    """The change from `base`, by default the commit before, as a unified diff."""
    diff = ["diff-tree", "-p", "--no-ext-diff", "--no-textconv", "--no-color", "-M"]
    return private_git.run([*diff, base or f"{commit}^", commit])


def _commit_command(
    ref: str, message: str, files: Sequence[FileState], *, mark: bytes = b"", by: str = ""
) -> bytes:
    text, by = message.encode("utf-8", "replace"), by or _RETINUE
    parts = [
        f"commit {ref}\n".encode()
        + mark
        + f"committer {by} <retinue@localhost> 0 +0000\n".encode(),
        b"data %d\n%b\ndeleteall\n" % (len(text), text),
    ]
    for file in files:
        if is_gitlink(file.mode):
            parts.append(b"M %o %b %b\n" % (file.mode, file.data, _quote_path(file.path)))
            continue
        head = b"M %o inline %b\ndata %d\n" % (file.mode, _quote_path(file.path), len(file.data))
        parts += [head, file.data, b"\n"]
    return b"".join([*parts, b"\n"])


def _quote_path(path: str) -> bytes:
    signs = (
        b"%c" % sign if 32 < sign < 127 and sign not in b'"\\' else b"\\%03o" % sign
        for sign in os.fsencode(path)
    )
    return b'"%b"' % b"".join(signs)
