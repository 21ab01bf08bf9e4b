"""The index of a project, in a process of its own: answers, updates, copies and limits."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from retinue.domain.protected_paths import NOTHING_PROTECTED, ProtectedPaths
from retinue.errors import ToolFailure
from retinue.ports.workspace import CodeQuery
from retinue.workspace.code_index.client import CodeRequest, ask
from retinue.workspace.git import find_repository
from retinue.workspace.user_file_tree import UserFileTree

if TYPE_CHECKING:
    from tests.conftest import Repo

TreeAt = Callable[[Path], UserFileTree]

SHOP = '"""A shop."""\n\nclass Shop:\n    def sell(self): pass\n\ndef _hidden(): pass\n'
MAIN = "from shop import Shop\n\ndef main():\n    Shop().sell()\n    Shop()\n"


@pytest.fixture
def project(repo: Repo) -> Repo:
    return repo.init().commit(
        {"shop.py": SHOP, "main.py": MAIN, "lib/util.go": "package lib\n\nfunc Help() {}\n"}
    )


@pytest.fixture
def request_for(project: Repo) -> Callable[..., CodeRequest]:
    state = project.root / ".retinue"
    state.mkdir(exist_ok=True)

    def make(what: Any, protected: ProtectedPaths = NOTHING_PROTECTED, **query: Any) -> CodeRequest:
        return CodeRequest(
            query=CodeQuery(what=what, **query),
            root=str(project.root),
            named_root=str(project.root),
            repository=find_repository(str(project.root)),
            database=str(state / "code-index.db"),
            seal="mine",
            protected=protected,
        )

    return make


async def test_overview(request_for: Callable[..., CodeRequest]) -> None:
    assert await ask(request_for("overview")) == (
        "3 source files (python, go): top 2, lib/ 1\n"
        "entry points: main.py\n"
        "main.py\n"
        "  3: def main()\n"
        "shop.py\n"
        "  3: class Shop\n"
        "  4: def sell(self): pass\n"
        "  6: def _hidden(): pass\n"
        "lib/util.go\n"
        "  3: func Help()"
    )
    assert "shop.py" not in await ask(request_for("overview", path="lib"))


async def test_a_file_that_only_exports_names_of_others_is_an_entry_point(
    project: Repo, request_for: Callable[..., CodeRequest]
) -> None:
    (project.root / "main.py").unlink()
    project.write("packages/shop/src/index.ts", 'export * from "./goods";\n')
    project.write("shop/__init__.py", "from .goods import Apple as Apple\n")
    project.write("empty/__init__.py", "\n")
    text = await ask(request_for("overview"))
    assert "\nentry points: packages/shop/src/index.ts, shop/__init__.py\n" in text


async def test_overview_of_a_library_names_no_entry_point(
    project: Repo, request_for: Callable[..., CodeRequest]
) -> None:
    (project.root / "main.py").unlink()
    for path in ("tools/check.py", "setup.py", "test.py"):
        project.write(path, "def main(): pass\n")
    assert "\nno entry point: a library; the files" in await ask(request_for("overview"))


async def test_find_symbol(request_for: Callable[..., CodeRequest]) -> None:
    assert await ask(request_for("find_symbol", name="Shop")) == (
        "1 definition\n"
        "shop.py:3: class: class Shop\n"
        "uses\n"
        "main.py:1: import: from shop import Shop\n"
        "main.py:4: call: Shop().sell()\n"
        "main.py:5: call: Shop()"
    )
    assert "shop.py:4: method in Shop: def sell" in await ask(
        request_for("find_symbol", name="Shop.sell")
    )
    assert "definition" not in await ask(request_for("find_symbol", name="Other.sell"))
    assert await ask(request_for("find_symbol", name="sho")) == (
        "[No definition or use of 'sho'. Similar names: Shop.]"
    )


async def test_docs_coverage(request_for: Callable[..., CodeRequest]) -> None:
    assert await ask(request_for("docs_coverage")) == (
        "0 of 4 public symbols are documented (0 %).\n"
        "lib/util.go:3: function Help\n"
        "main.py:3: function main\n"
        "shop.py:3: class Shop\n"
        "shop.py:4: method Shop.sell"
    )


async def test_index_follows_the_files(
    project: Repo, request_for: Callable[..., CodeRequest]
) -> None:
    await ask(request_for("overview"))
    project.write("shop.py", SHOP.replace("Shop", "Store"))
    (project.root / "lib" / "util.go").unlink()
    project.write("new.rb", "class Fresh\nend\n")
    assert (await ask(request_for("find_symbol", name="Shop"))).startswith("[Not defined here.]")
    assert "shop.py:3" in await ask(request_for("find_symbol", name="Store"))
    assert "new.rb:1: class" in await ask(request_for("find_symbol", name="Fresh"))
    assert "No definition" in await ask(request_for("find_symbol", name="Help"))


async def test_only_changed_files_are_parsed(
    project: Repo, request_for: Callable[..., CodeRequest]
) -> None:
    def parsed() -> set[int]:
        with sqlite3.connect(project.root / ".retinue" / "code-index.db") as database:
            return {row[0] for row in database.execute("SELECT id FROM parsed")}

    await ask(request_for("overview"))
    before = parsed()
    project.write("shop.py", SHOP + "\nLATER = 1\n")
    await ask(request_for("overview"))
    assert len(parsed() & before) == 2
    assert len(parsed()) == 3


async def test_copy_shares_the_index_and_sees_its_own_files(
    project: Repo, file_tree_at: TreeAt
) -> None:
    tree = file_tree_at(project.root)
    users = tree.workspace(str(project.root))
    await users.code(CodeQuery(what="overview"))
    copy = await tree.copy(await tree.snapshot(None), name="c", directory=str(project.root))
    own = copy.workspace(str(project.root))
    own.write("shop.py", SHOP.replace("Shop", "Kiosk").encode())
    assert "shop.py:3" in await own.code(CodeQuery(what="find_symbol", name="Kiosk"))
    assert "No definition" in await users.code(CodeQuery(what="find_symbol", name="Kiosk"))
    with sqlite3.connect(project.root / ".retinue" / "code-index.db") as database:
        assert database.execute("SELECT count(*) FROM parsed").fetchone() == (4,)
    await copy.remove()


async def test_links_and_hidden_files_are_not_read(
    project: Repo, tmp_path: Path, request_for: Callable[..., CodeRequest]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "leak.py").write_text("class Leak: pass\n")
    (project.root / "link.py").symlink_to(outside / "leak.py")
    (project.root / "folder").symlink_to(outside)
    project.write("keys/k.py", "class Secret: pass\n")
    await ask(request_for("overview"))  # Indexed before the rule was made.
    rules = ProtectedPaths(project=str(project.root), unreadable=("keys/*",))
    assert "Similar" not in await ask(request_for("find_symbol", name="Leak"))
    assert "No definition" in await ask(request_for("find_symbol", rules, name="Secret"))
    assert "keys" not in await ask(request_for("overview", rules))


async def test_foreign_index_is_not_believed(
    project: Repo, tmp_path: Path, request_for: Callable[..., CodeRequest]
) -> None:
    await ask(request_for("overview"))
    database = project.root / ".retinue" / "code-index.db"
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE about SET value = 'theirs'")
        connection.execute("UPDATE files SET path = 'forged.py' WHERE path = 'shop.py'")
    assert "forged" not in await ask(request_for("overview"))
    database.unlink()
    database.write_bytes(b"no database at all" * 100)
    assert "shop.py" in await ask(request_for("overview"))
    for name in os.listdir(database.parent):
        if name.startswith("code-index.db"):
            (database.parent / name).unlink()
    target = tmp_path / "elsewhere"
    target.write_text("keep me")
    database.symlink_to(target)
    assert "shop.py" in await ask(request_for("overview"))
    assert target.read_text() == "keep me"


async def test_an_index_of_a_clone_deletes_no_file_and_runs_no_trigger(
    project: Repo, tmp_path: Path, request_for: Callable[..., CodeRequest]
) -> None:
    database = project.root / ".retinue" / "code-index.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    mine = tmp_path / "mine"
    mine.write_text("keep me")
    # The end of a rollback journal with the name of a "super-journal", which SQLite deletes.
    magic, name, page = bytes.fromhex("d9d505f920a163d7"), bytes(mine), 0x40000000 // 4096 + 1
    header = magic + struct.pack(">5I", 0, 1, 2, 512, 4096)
    named = struct.pack(">I", page) + name + struct.pack(">2I", len(name), sum(name)) + magic
    database.with_name("code-index.db-journal").write_bytes(header.ljust(512, b"\0") + named)
    assert "shop.py" in await ask(request_for("overview"))
    assert mine.read_text() == "keep me"
    # A database without rows, as one that was just made.
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(
            "DELETE FROM about; DELETE FROM parsed; DELETE FROM files; DELETE FROM defined;"
            " CREATE TRIGGER forge AFTER INSERT ON files BEGIN"
            " INSERT OR IGNORE INTO files VALUES (new.tree, 'forged.py', new.state, new.parsed);"
            " END"
        )
    assert "forged" not in await ask(request_for("overview"))
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'")
        assert found.fetchone() == (0,)


async def test_time_limit(request_for: Callable[..., CodeRequest]) -> None:
    late = msgspec.structs.replace(request_for("overview"), update_limit_s=-1.0)
    assert (await ask(late)).endswith(
        "[3 of 3 files are not indexed yet; make the same call again to index them]"
    )
    assert "not indexed" not in await ask(request_for("overview"))


async def test_large_and_binary_files_are_left_out(
    project: Repo, request_for: Callable[..., CodeRequest]
) -> None:
    project.write("big.py", "x = 1\n" * 200_000)
    project.write("binary.py", b"class Odd: pass\n\0")
    assert (await ask(request_for("overview"))).startswith("3 source files")


ASK = """
import asyncio, resource, sys, time
import msgspec
from retinue.workspace.code_index.client import CodeRequest, ask
request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=CodeRequest)
async def main():
    before = time.thread_time()
    answer = await ask(request)
    return answer, time.thread_time() - before
answer, of_loop_s = asyncio.run(main())
used = resource.getrusage(resource.RUSAGE_CHILDREN)
loaded = [name for name in sys.modules if name.startswith("retinue.workspace.code_index.")]
print(msgspec.json.encode((answer, of_loop_s, used.ru_utime + used.ru_stime, loaded)).decode())
"""


def test_event_loop_is_not_blocked(project: Repo, request_for: Callable[..., CodeRequest]) -> None:
    """By processor time of its thread, since other programs may be why it waits."""
    for number in range(200):
        project.write(f"many/m{number}.py", SHOP.replace("Shop", f"Shop{number}") * 5)
    asked = msgspec.msgpack.encode(request_for("overview"))
    done = subprocess.run([sys.executable, "-c", ASK], input=asked, capture_output=True, check=True)
    answer, of_loop_s, of_process_s, loaded = msgspec.json.decode(done.stdout)
    assert answer.startswith("203 source files")
    assert loaded == ["retinue.workspace.code_index.client"], "to load what parses takes long"
    assert of_loop_s < of_process_s / 4


async def test_questions_at_the_same_time(request_for: Callable[..., CodeRequest]) -> None:
    asked = [ask(request_for("overview")) for _ in range(4)]
    first, *others = await asyncio.gather(*asked)
    assert all(other == first for other in others)


async def test_missing_path(project: Repo, file_tree_at: TreeAt) -> None:
    workspace = file_tree_at(project.root).workspace(str(project.root))
    with pytest.raises(ToolFailure, match=r"No file 'shp\.py'\. Did you mean 'shop\.py'"):
        await workspace.code(CodeQuery(what="overview", path="shp.py"))
    with pytest.raises(ToolFailure, match="leads outside"):
        await workspace.code(CodeQuery(what="overview", path="../x"))
