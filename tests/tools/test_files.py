from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.result import FileChange
from retinue.errors import ToolFailure
from retinue.ports.tool import Tool, ToolContext, ToolOutcome
from retinue.tools.files import (
    edit_file,
    find_files,
    list_dir,
    read_file,
    search_files,
    write_file,
)


async def refusal(tool: Tool, ctx: ToolContext, **arguments: Any) -> str:
    with pytest.raises(ToolFailure) as caught:
        await tool.run(arguments, ctx)
    return str(caught.value)


async def text(tool: Tool, ctx: ToolContext, **arguments: Any) -> str:
    return (await tool.run(arguments, ctx)).content


async def test_read_file(ctx: ToolContext, root: Path) -> None:
    (root / "a.py").write_text("one\ntwo\n")
    assert await read_file.run({"path": f"{root}/a.py"}, ctx) == ToolOutcome(
        content="one\ntwo\n",
        read=("a.py",),
        before_sha256=hashlib.sha256(b"one\ntwo\n").hexdigest(),
    )
    assert await text(read_file, ctx, path="a.py", start="2") == "two\n[lines 2-2 of 2]"
    assert await refusal(read_file, ctx, path="b.py") == "No file 'b.py'. Did you mean 'a.py'?"
    assert await refusal(read_file, ctx) == (
        'read_file: missing \'path\'. Send {"path": string, "start"?: integer, "end"?: integer}.'
    )


async def test_list_dir(ctx: ToolContext, root: Path) -> None:
    assert await text(list_dir, ctx) == "[The directory is empty.]"
    (root / "src").mkdir()
    (root / "a.py").write_text("x" * 1234)
    (root / "b.py").write_text("x")
    (root / "link").symlink_to("src")
    assert await text(list_dir, ctx) == "a.py (1,234 bytes)\nb.py (1 byte)\nlink (link)\nsrc/"
    for i in range(1000):
        (root / f"src/a-rather-long-name-{i:04}").touch()
    shown = await text(list_dir, ctx, path="src")
    assert shown.endswith("[470 of 1,000 entries; find_files finds the others]")


async def test_find_files(ctx: ToolContext, root: Path) -> None:
    (root / "src").mkdir()
    for i in range(201):
        (root / f"src/{i:03}.py").touch()
    assert await text(find_files, ctx, pattern="00?.py") == "\n".join(
        f"src/00{i}.py" for i in range(10)
    )
    assert await text(find_files, ctx, pattern="*.md") == "[No file matches '*.md'.]"
    assert (await text(find_files, ctx, pattern="*.py", path="src")).endswith(
        "src/199.py\n[the first 200; there are more: narrow the pattern or the path]"
    )


async def test_search_files(ctx: ToolContext, root: Path) -> None:
    (root / "a.py").write_text("one\n  two\n")
    (root / "b.md").write_text("two\n" * 101)
    assert await text(search_files, ctx, pattern="t.o", glob="*.py") == "a.py:2:   two"
    assert await text(search_files, ctx, pattern="five") == "[No line matches 'five'.]"
    assert (await text(search_files, ctx, pattern="two")).endswith(
        "b.md:99: two\n[the first 100; there are more: narrow the pattern, path or glob]"
    )
    (root / "a.py").write_text("x" * 1000)
    assert await text(search_files, ctx, pattern="x", path="a.py") == f"a.py:1: {'x' * 300}…"


async def test_write_file(ctx: ToolContext, root: Path) -> None:
    done = await write_file.run({"path": "new/a.py", "content": "é\n"}, ctx)
    digest = hashlib.sha256("é\n".encode()).hexdigest()
    assert done == ToolOutcome(
        content="Wrote new/a.py (+1 line, new file).",
        changed=(FileChange(path="new/a.py", added=1, new=True, after_sha256=digest),),
        after_sha256=digest,
    )
    assert (root / "new/a.py").read_text() == "é\n"
    assert await refusal(write_file, ctx, path="a", content="\ud800") == (
        "'content' is not valid Unicode: it has half a surrogate pair."
    )


async def test_edit_file(ctx: ToolContext, root: Path) -> None:
    (root / "a.py").write_bytes(b"one\r\ntwo\r\n")
    done = await edit_file.run(
        {"path": "./a.py", "old_text": "one\ntwo", "new_text": "1\ntwo"}, ctx
    )
    assert done.content == "Edited a.py (+1/-1 lines)."
    assert (root / "a.py").read_bytes() == b"1\r\ntwo\r\n"
    assert done.before_sha256 == hashlib.sha256(b"one\r\ntwo\r\n").hexdigest()
    assert done.after_sha256 == hashlib.sha256(b"1\r\ntwo\r\n").hexdigest()
    assert await refusal(edit_file, ctx, path="b", old_text="a", new_text="b") == (
        "No file 'b'. Use list_dir or find_files to see what is there."
    )
    await edit_file.run({"path": "a.py", "old_text": "\n", "new_text": "!\n", "all": True}, ctx)
    assert (root / "a.py").read_bytes() == b"1!\r\ntwo!\r\n"


@pytest.mark.parametrize("path", ["docs/a.md", "src/../docs/a.md", "./docs//a.md", "docs/./a.md"])
async def test_write_scope_is_enforced(ctx: ToolContext, root: Path, path: str) -> None:
    (root / "docs").mkdir()
    (root / "docs/a.md").write_text("old")
    said = "The contract does not let you write 'docs/a.md'."
    assert await refusal(write_file, ctx, path=path, content="x") == said
    assert await refusal(edit_file, ctx, path=path, old_text="old", new_text="new") == said
    assert await refusal(write_file, ctx, path=f"{root}/{path}", content="x") == said
    assert (root / "docs/a.md").read_text() == "old"


async def test_link_does_not_bypass_the_write_scope(ctx: ToolContext, root: Path) -> None:
    (root / "docs").mkdir()
    (root / "docs/a.md").write_text("old")
    (root / "open").symlink_to("docs")
    said = "'open' is a link; use 'docs/a.md' instead."
    assert await refusal(write_file, ctx, path="open/a.md", content="x") == said
    assert await refusal(edit_file, ctx, path="open/a.md", old_text="old", new_text="x") == said
    assert (root / "docs/a.md").read_text() == "old"


async def test_paths_outside_the_workspace(ctx: ToolContext) -> None:
    for path in ("../x", "/etc/x"):
        said = f"'{path}' leads outside the workspace. Use a path relative to it."
        assert await refusal(write_file, ctx, path=path, content="x") == said
        assert await refusal(read_file, ctx, path=path) == said


async def test_preview_is_the_change_that_a_call_would_make(ctx: ToolContext, root: Path) -> None:
    (root / "a.py").write_text("".join(f"line {n}\n" for n in range(1, 151)))
    after = (root / "a.py").read_text().replace("line 75\n", "line seventy-five\n")
    patch = await write_file.preview({"path": "a.py", "content": after}, ctx)
    assert patch.startswith("--- a/a.py\n+++ b/a.py\n@@ -72,7 +72,7 @@\n line 72\n")
    assert [line for line in patch.splitlines()[3:] if line[0] != " "] == [
        "-line 75",
        "+line seventy-five",
    ]
    edit = {"path": "a.py", "old_text": "line 75\n", "new_text": "line seventy-five\n"}
    assert await edit_file.preview(edit, ctx) == patch
    new = await write_file.preview({"path": "b.py", "content": "x\n"}, ctx)
    assert new == "--- /dev/null\n+++ b/b.py\n@@ -0,0 +1 @@\n+x"
    assert await write_file.preview({"path": "c.py", "content": ""}, ctx) == (
        "--- /dev/null\n+++ b/c.py"
    )
    with pytest.raises(ToolFailure):
        await edit_file.preview({**edit, "old_text": "nowhere"}, ctx)
    assert await read_file.preview({"path": "a.py"}, ctx) == ""
    assert not (root / "b.py").exists()
