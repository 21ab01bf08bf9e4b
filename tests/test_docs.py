"""The documentation: its reference has all there is, and it is built without a warning."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import msgspec
import pytest

import retinue
from retinue import errors, testing
from retinue.config.settings import Settings
from retinue.domain.events import Fact
from retinue.interfaces.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def reference() -> Mapping[str, str]:
    pages: Mapping[str, str] = runpy.run_path(str(ROOT / "docs" / "reference.py"))["pages"]()
    return pages


def _headings(text: str) -> set[str]:
    return set(re.findall(r"^## `?(?:retinue\.)?([\w.-]+)", text, re.MULTILINE))


def test_reference_has_every_command_event_setting_and_name(
    reference: Mapping[str, str],
) -> None:
    assert set(COMMANDS) <= _headings(reference["commands.md"])
    for fact in get_args(Fact):
        assert fact.__struct_config__.tag in _headings(reference["events.md"])
        assert f"`retinue.events.{fact.__name__}`" in reference["events.md"]
        for field in msgspec.structs.fields(fact):  # by its name in JSON
            assert f"| `{field.encode_name}` |" in reference["events.md"]
    for name in Settings.__struct_fields__:
        assert f"| `{name}` |" in reference["settings.md"]
    for setting in msgspec.structs.fields(Settings):
        if isinstance(setting.type, type) and issubclass(setting.type, msgspec.Struct):
            assert f"## `[{setting.name}]`" in reference["settings.md"]
    titles = set(re.findall(r"^## `(retinue[\w.]+)", reference["python.md"], re.MULTILINE))
    modules = {"retinue.errors", "retinue.events", "retinue.__version__"}
    titles.remove("retinue.testing.plugin")
    assert (
        titles
        == {
            f"{module.__name__}.{name}"
            for module in (retinue, errors, testing)
            for name in module.__all__
        }
        - modules
    )


def test_every_public_name_has_a_docstring(reference: Mapping[str, str]) -> None:
    page = reference["python.md"]
    without = re.findall(r"^##+ `(.*)`\s+(?:##|\||\Z|Values)", page, re.MULTILINE)
    assert without == []


def test_snapshot_of_the_public_api() -> None:
    """Say what changes in CHANGELOG.md, then: `python docs/reference.py --api docs/api.txt`."""
    made: str = runpy.run_path(str(ROOT / "docs" / "reference.py"))["api"]()
    assert (ROOT / "docs" / "api.txt").read_text("utf-8") == made


def test_snapshot_changes_together_with_the_changelog() -> None:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout

    if not (commit := git("log", "-1", "--format=%H", "--", "docs/api.txt").strip()):
        pytest.skip("this is no checkout of the repository")
    assert "CHANGELOG.md" in git("show", "--name-only", "--format=", commit).split()


def test_every_page_is_in_a_table_of_contents() -> None:
    docs = ROOT / "docs"
    for page in docs.rglob("*.md"):
        name = page.relative_to(docs).with_suffix("")
        index = page.parent / "index.md"
        if page == index or not index.exists():
            index = docs / "index.md"
        if page != docs / "index.md":
            entry = name.relative_to(index.parent.relative_to(docs))
            assert f"\n{entry}\n" in index.read_text(), f"{name} is in no table of contents"


def _developer_pages() -> list[Path]:
    docs = ROOT / "docs"
    return [docs / "architecture.md", ROOT / "CONTRIBUTING.md", *(docs / "internals").glob("*.md")]


@pytest.mark.parametrize("page", _developer_pages(), ids=lambda page: page.name)
def test_files_and_types_that_a_developer_page_names_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    sources = [path for top in ("src", "tests", "docs") for path in (ROOT / top).rglob("*.py")]
    files = [f"/{path.relative_to(ROOT)}" for path in sources]
    named = set(re.findall(r"`([\w/.-]+\.py)`", text))
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []
    source = "\n".join(path.read_text("utf-8") for path in sources)
    types = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)(?:\.\w+)?`", text))
    assert [name for name in types if not re.search(rf"\b{name}\b", source)] == []


def test_links_stay_inside_the_documentation(
    reference: Mapping[str, str],
) -> None:
    docs = ROOT / "docs"
    made = {docs / "reference" / name for name in reference}
    for page in docs.rglob("*.md"):
        for target in re.findall(r"\]\((?!\w+:)([^)#]+)", page.read_text("utf-8")):
            path = (page.parent / target).resolve()
            assert path.is_relative_to(docs), f"{page.name}: {target}"
            assert path in made or path.is_file(), f"{page.name}: {target}"


@pytest.mark.slow
def test_documentation_builds_without_warnings() -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    done = subprocess.run(
        [ROOT / "script" / "docs"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
