from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue.errors import ToolFailure, WorkspaceError
from retinue.ports.workspace import DirEntry, Workspace
from retinue.workspace.directory import DirectoryWorkspace
from retinue.workspace.safe_open import Opener

LIMIT = 1_000_000
ordinary = pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")


def refusal(tree: DirectoryWorkspace, path: str) -> str:
    with pytest.raises(ToolFailure) as caught:
        tree.read(path, max_bytes=LIMIT)
    return str(caught.value)


def write_refusal(tree: DirectoryWorkspace, path: str) -> str:
    with pytest.raises(ToolFailure) as caught:
        tree.write(path, b"new")
    return str(caught.value)


def test_implements_workspace(tree: DirectoryWorkspace, root: Path) -> None:
    workspace: Workspace = tree
    assert workspace.root == str(root)


def test_missing_root_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="cannot be a workspace: No such file or directory"):
        DirectoryWorkspace(tmp_path / "none")


def test_descriptor_is_closed_with_the_workspace(root: Path) -> None:
    gc.collect()  # Descriptors that other tests have left may not be closed meanwhile.
    before = sorted(os.listdir("/dev/fd"))
    tree = DirectoryWorkspace(root)
    assert tree.list(".") == []
    del tree
    assert sorted(os.listdir("/dev/fd")) == before


class TestReading:
    def test_all_spellings_of_a_path(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "src").mkdir()
        (root / "src/a.py").write_bytes(b"x\r\n\xff")
        for path in ("src/a.py", "./src/a.py", "src//a.py", "src/../src/a.py", f"{root}/src/a.py"):
            assert tree.read(path, max_bytes=LIMIT) == b"x\r\n\xff"

    def test_root_that_is_a_link(self, root: Path, opening: Opener) -> None:
        (root / "a").write_text("x")
        alias = root.parent / "alias"
        alias.symlink_to(root)
        tree = DirectoryWorkspace(alias, opener=opening)
        assert tree.read(f"{alias}/a", max_bytes=LIMIT) == b"x"
        assert tree.read(f"{root}/a", max_bytes=LIMIT) == b"x"

    def test_large_file(self, tree: DirectoryWorkspace, root: Path) -> None:
        data = os.urandom(300_000)
        (root / "a").write_bytes(data)
        assert tree.read("a", max_bytes=300_000) == data
        with pytest.raises(ToolFailure) as caught:
            tree.read("a", max_bytes=299_999)
        assert str(caught.value) == "'a' has 300,000 bytes; at most 299,999 can be read."

    def test_similar_name_is_suggested(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "src").mkdir()
        (root / "src/app.py").write_text("")
        assert refusal(tree, "src/ap.py") == "No file 'src/ap.py'. Did you mean 'src/app.py'?"
        (root / "alarms.md").write_text("")
        assert refusal(tree, "tariffs.md").endswith(
            "Use list_dir or find_files to see what is there."
        )
        assert refusal(tree, "scr/app.py") == (
            "No file 'scr/app.py': there is no 'scr'. Did you mean 'src'?"
        )
        assert refusal(tree, "zzz") == (
            "No file 'zzz'. Use list_dir or find_files to see what is there."
        )

    def test_special_files(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "src").mkdir()
        (root / "file").write_text("")
        os.mkfifo(root / "pipe")
        assert refusal(tree, "src") == "'src' is a directory; use list_dir."
        assert refusal(tree, ".") == "'.' is a directory; use list_dir."
        assert refusal(tree, "pipe") == "'pipe' is not a regular file."
        assert refusal(tree, "file/x") == "'file' is a file, so 'file/x' cannot exist."

    def test_paths_outside(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "zero").symlink_to("/dev/zero")
        (root / "up").symlink_to("..")
        for path in ("/etc/passwd", "../x", "a/../../x", f"{root}x/y"):
            assert refusal(tree, path) == (
                f"'{path}' leads outside the workspace. Use a path relative to it."
            )
        for path in ("zero", "up", "up/root/zero"):
            assert refusal(tree, path) == f"'{path}' leads outside the workspace."

    def test_links_inside_are_fine(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "src").mkdir()
        (root / "src/a").write_text("x")
        (root / "b").symlink_to("src/a")
        (root / "lib").symlink_to("./src")
        assert tree.read("b", max_bytes=LIMIT) == b"x"
        assert tree.read("lib/a", max_bytes=LIMIT) == b"x"

    def test_dangling_link(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "a").symlink_to("b")
        assert refusal(tree, "a") == "No file 'a': it is a link to nothing, or was just removed."

    @pytest.mark.parametrize(
        "path", [".git/config", "sub/../.git/config", ".GIT/config", "sub/.git/x", ".retinue/db"]
    )
    def test_protected_names(self, tree: DirectoryWorkspace, path: str) -> None:
        assert "is off limits: file tools do not enter '." in refusal(tree, path)
        assert "is off limits: file tools do not enter '." in write_refusal(tree, path)

    def test_protected_name_through_a_link(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / ".git").mkdir()
        (root / ".git/config").write_text("token")
        (root / "innocent").symlink_to(".git")
        (root / "deep").symlink_to("innocent/config")
        for path in ("innocent/config", "deep"):
            assert refusal(tree, path) == "'.git' is off limits: file tools do not enter '.git'."
        assert "off limits" in write_refusal(tree, "innocent/config")
        assert write_refusal(tree, "deep") == "'deep' is a link; use 'innocent/config' instead."
        with pytest.raises(ToolFailure, match="off limits"):
            tree.list("innocent")

    def test_huge_sparse_file(self, tree: DirectoryWorkspace, root: Path) -> None:
        try:
            with (root / "holes").open("wb") as file:
                file.truncate(2**40)
        except OSError:
            pytest.skip("the file system has no such files")
        assert refusal(tree, "holes").startswith("'holes' has 1,099,511,627,776 bytes;")
        assert "too many to replace" in write_refusal(tree, "holes")
        assert tree.find("*", under=".", limit=10) == (["holes"], False)
        assert tree.search("x", under=".", glob=None, limit=10) == ([], False)

    @pytest.mark.parametrize(
        ("path", "said"),
        [
            ("a\0b", "'a\\x00b' contains a NUL character, which no file name can."),
            ("\ud800", "'\\ud800' is not valid Unicode."),
            ("d/" * 3000, "is too long for a path."),
            ("x" * 300, "is too long for a path."),
        ],
    )
    def test_impossible_names(self, tree: DirectoryWorkspace, path: str, said: str) -> None:
        assert refusal(tree, path).endswith(said)
        assert write_refusal(tree, path).endswith(said)

    @ordinary
    def test_no_permission(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "a").write_text("")
        (root / "a").chmod(0)
        assert refusal(tree, "a") == "No permission for 'a'."
        assert write_refusal(tree, "a") == "No permission for 'a'."

    def test_deep_path(self, tree: DirectoryWorkspace) -> None:
        path = "d/" * 500 + "file"
        tree.write(path, b"x")
        assert tree.read(path, max_bytes=LIMIT) == b"x"
        assert tree.find("*", under=".", limit=5) == ([path], False)


class TestListing:
    def test_sorted_with_kinds(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "b").mkdir()
        (root / "a.txt").write_text("12345")
        (root / "c").symlink_to("b")
        os.mkfifo(root / "d")
        (root / ".git").mkdir()
        (root / ".retinue").mkdir()
        (root / ".hidden").write_text("")
        assert tree.list(".") == [
            DirEntry(".hidden", "file", 0),
            DirEntry("a.txt", "file", 5),
            DirEntry("b", "dir"),
            DirEntry("c", "link"),
            DirEntry("d", "other"),
        ]
        assert tree.list("c") == []

    def test_names_that_are_not_utf8(self, tree: DirectoryWorkspace, root: Path) -> None:
        try:
            for name in (b"bad\xff.txt", b"two\nlines"):
                with open(os.path.join(os.fsencode(root), name), "wb") as file:
                    file.write(b"needle\n")
        except OSError:
            pytest.skip("the file system takes only UTF-8")
        names = ["bad\\xff.txt", "two\\nlines"]
        assert [entry.name for entry in tree.list(".")] == names
        assert tree.find("*", under=".", limit=9) == (names, False)
        found, _ = tree.search("needle", under=".", glob=None, limit=9)
        assert [match.path for match in found] == names

    def test_file_is_not_a_directory(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "a").write_text("")
        with pytest.raises(ToolFailure) as caught:
            tree.list("a")
        assert str(caught.value) == "'a' is a file; use read_file."

    def test_missing_directory(self, tree: DirectoryWorkspace) -> None:
        with pytest.raises(ToolFailure, match="No file 'a'"):
            tree.list("a")


class TestWriting:
    def test_new_file(self, tree: DirectoryWorkspace, root: Path) -> None:
        written = tree.write("x/y/../z/a.py", b"one\ntwo\n")
        assert (root / "x/z/a.py").read_bytes() == b"one\ntwo\n"
        assert str(written) == "x/z/a.py (+2 lines, new file)"
        assert written.before_sha256 is None
        assert written.after_sha256 == (hashlib.sha256(b"one\ntwo\n").hexdigest())

    def test_replaced_file(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "a").write_bytes(b"one\ntwo\nthree\n")
        (root / "a").chmod(0o751)
        first = tree.write("a", b"one\n2\nthree\nfour\n")
        assert str(first) == "a (+2/-1 lines)"
        assert stat.S_IMODE((root / "a").stat().st_mode) == 0o751
        second = tree.write("a", b"")
        assert second.before_sha256 == first.after_sha256
        assert (second.added, second.removed) == (0, 4)
        assert os.listdir(root) == ["a"]

    def test_set_uid_bit_is_removed(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "a").write_bytes(b"")
        (root / "a").chmod(0o4755)
        tree.write("a", b"x")
        assert stat.S_IMODE((root / "a").stat().st_mode) == 0o755

    def test_same_content_is_not_written(self, tree: DirectoryWorkspace, root: Path) -> None:
        tree.write("a", b"x\n")
        before = (root / "a").stat()
        assert str(tree.write("a", b"x\n")) == "a (+0 lines)"
        after = (root / "a").stat()
        # Not the access time, which reading may change.
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    def test_links_are_not_followed(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "tests").mkdir()
        (root / "tests/x").write_text("old")
        (root / "src").mkdir()
        (root / "src/d").symlink_to("../tests")
        (root / "src/f").symlink_to("../tests/x")
        assert write_refusal(tree, "src/d/x") == "'src/d' is a link; use 'tests/x' instead."
        assert write_refusal(tree, "src/d/n/x") == "'src/d' is a link; use 'tests/n/x' instead."
        assert write_refusal(tree, "src/f") == "'src/f' is a link; use 'tests/x' instead."
        assert (root / "tests/x").read_text() == "old"
        assert os.listdir(root / "tests") == ["x"]

    def test_links_that_lead_outside(self, tree: DirectoryWorkspace, root: Path) -> None:
        outside = root.parent / "outside"
        outside.mkdir()
        (root / "d").symlink_to(outside)
        (root / "e").symlink_to("../outside")
        (root / "f").symlink_to(outside / "f")
        (root / "self").symlink_to("self")
        for path in ("d/x", "e/x", "e/new/x", "f"):
            assert write_refusal(tree, path) == f"'{path}' leads outside the workspace."
        assert write_refusal(tree, "self") == "'self' is a link to itself."
        assert os.listdir(outside) == []

    def test_special_files(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "d").mkdir()
        os.mkfifo(root / "pipe")
        (root / "file").write_text("")
        assert write_refusal(tree, "d") == "'d' is a directory; use list_dir."
        assert write_refusal(tree, ".") == "'.' is a directory; use list_dir."
        assert write_refusal(tree, "pipe") == "'pipe' is not a regular file."
        assert write_refusal(tree, "file/x") == "'file' is a file, so 'file/x' cannot exist."

    @ordinary
    def test_read_only(self, tree: DirectoryWorkspace, root: Path) -> None:
        (root / "a").write_text("old")
        (root / "a").chmod(0o444)
        assert write_refusal(tree, "a") == "No permission for 'a'."
        (root / "d").mkdir(mode=0o555)
        assert write_refusal(tree, "d/a") == "No permission for 'd/a'."
        assert (root / "a").read_text() == "old"

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
    @given(before=st.binary(max_size=60), after=st.binary(max_size=60))
    def test_written_content_is_read_back(
        self, tree: DirectoryWorkspace, before: bytes, after: bytes
    ) -> None:
        tree.write("a", before)
        change = tree.write("a", after)
        assert tree.read("a", max_bytes=LIMIT) == after
        lines = len(before.splitlines()) + change.added - change.removed
        assert lines == len(after.splitlines())


class Swapper:
    """Swaps a folder for a link to the outside and back, until it is stopped."""

    def __init__(self, folder: Path, outside: Path) -> None:
        self._folder, self._outside = folder, outside
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._swap)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _swap(self) -> None:
        real = self._folder.with_name("real")
        while not self._stop.is_set():
            self._folder.rename(real)
            # A writer may make the folder again in between.
            with contextlib.suppress(OSError):
                self._folder.symlink_to(self._outside)
                self._folder.unlink()
            while real.exists():
                try:
                    real.rename(self._folder)
                except OSError:
                    shutil.rmtree(self._folder, ignore_errors=True)


class TestRaces:
    @pytest.fixture
    def outside(self, root: Path) -> Path:
        outside = root.parent / "outside"
        outside.mkdir()
        (outside / "file").write_text("secret\n")
        (root / "d").mkdir()
        (root / "d/file").write_text("public\n")
        return outside

    def test_reading(self, tree: DirectoryWorkspace, root: Path, outside: Path) -> None:
        seen = set()
        with Swapper(root / "d", outside):
            for _ in range(2000):
                try:
                    seen.add(tree.read("d/file", max_bytes=LIMIT))
                except ToolFailure as refused:
                    seen.add(str(refused).encode())
        assert not [text for text in seen if b"secret" in text]

    def test_listing(self, tree: DirectoryWorkspace, root: Path, outside: Path) -> None:
        (outside / "only outside").write_text("")
        with Swapper(root / "d", outside):
            for _ in range(500):
                try:
                    assert tree.list("d") == [DirEntry("file", "file", 7)]
                except ToolFailure:
                    continue

    def test_writing(self, tree: DirectoryWorkspace, root: Path, outside: Path) -> None:
        with Swapper(root / "d", outside):
            for i in range(500):
                try:
                    tree.write("d/file", b"mine %d\n" % i)
                    tree.write("d/new/file", b"mine\n")
                except ToolFailure:
                    continue
        assert os.listdir(outside) == ["file"]
        assert (outside / "file").read_text() == "secret\n"

    def test_searching(self, searched: DirectoryWorkspace, root: Path, outside: Path) -> None:
        with Swapper(root / "d", outside):
            for _ in range(40):
                found, _ = searched.search("secret|public", under=".", glob=None, limit=9)
                assert {match.text for match in found} <= {"public"}
