"""Shims of asdf and mise become the programs that they run, for the versions of the project."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from retinue.sandbox.shims import resolve_shims
from tests.sandbox.probe import SandboxProbe, with_environment

ASDF_SHIM = """#!/usr/bin/env bash
# asdf-plugin: {tool} 1.9.0
# asdf-plugin: {tool} 1.10.0
exec {home}/.asdf/bin/asdf exec "{name}" "$@"
"""


class Home(msgspec.Struct, frozen=True):
    """A home with a manager of tools in `data`."""

    path: Path
    data: Path

    def program(self, name: str, text: str) -> None:
        file = self.data / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def install(self, tool: str, version: str, program: str) -> None:
        """Install a version; `program` is its path, as in `bin/python3`."""
        self.program(f"installs/{tool}/{version}/{program}", f"echo {tool} {version}")

    @property
    def search_path(self) -> str:
        return f"{self.data}/shims:/usr/bin:/bin"

    def resolved(self, directory: Path, home: Path | None = None) -> list[str]:
        """The folders of tools on the PATH, relative to those of all tools."""
        found = resolve_shims(self.search_path, str(directory), str(home or self.path))
        *folders, usr, bin = found.split(":")
        assert (usr, bin) == ("/usr/bin", "/bin")
        return [os.path.relpath(folder, self.data / "installs") for folder in folders]


@pytest.fixture(params=[".asdf", ".local/share/mise"])
def home(request: pytest.FixtureRequest) -> Iterator[Home]:
    """Not in /tmp, which is another one inside bubblewrap."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        made = Home(Path(folder), Path(folder, request.param))
        made.install("python", "1.9.0", "bin/python9")
        made.install("python", "1.10.0", "bin/python9")
        made.install("golang", "1.2.3", "go/bin/gopher")
        made.install("jq", "1.7", "jq7")
        (made.data / "shims").mkdir()
        if request.param == ".asdf":
            made.program("bin/asdf", 'echo "No version is set for command $2"; exit 126')
            for tool, name in (("python", "python9"), ("golang", "gopher"), ("jq", "jq7")):
                shim = made.data / "shims" / name
                shim.write_text(ASDF_SHIM.format(tool=tool, home=folder, name=name))
                shim.chmod(0o755)
        else:
            made.program("bin/mise", "echo mise ERROR No version is set for shim; exit 1")
            for name in ("python9", "gopher", "jq7"):
                (made.data / "shims" / name).symlink_to("../bin/mise")
        yield made


async def test_programs_work_in_the_sandbox(probe: SandboxProbe, home: Home) -> None:
    (probe.root / ".tool-versions").write_text("python 1.9.0\n")
    commands = "python9; gopher; jq7"
    expected = "python 1.9.0\ngolang 1.2.3\njq 1.7\n"
    for user in (home.path, home.path / "elsewhere"):
        user.mkdir(exist_ok=True)
        environment = {"PATH": home.search_path, "HOME": str(user)}
        sandbox = with_environment(probe.sandbox, environment)
        done = await msgspec.structs.replace(probe, sandbox=sandbox).run(commands)
        assert (done.exit_code, done.output) == (0, expected)


def test_nearest_file_chooses_the_version(home: Home, tmp_path: Path) -> None:
    project = tmp_path / "work" / "project"
    project.mkdir(parents=True)
    others = ["golang/1.2.3/go/bin", "jq/1.7"]
    assert home.resolved(project) == [*others, "python/1.10.0/bin"]
    (home.path / ".tool-versions").write_text("# tools\npython 1.9.0 # old\n")
    assert home.resolved(project) == [*others, "python/1.9.0/bin"]
    assert home.resolved(project, home=tmp_path) == [*others, "python/1.9.0/bin"]
    (tmp_path / "work" / ".tool-versions").write_text("python 1.10.0\n")
    assert home.resolved(project) == [*others, "python/1.10.0/bin"]
    (project / "mise.toml").write_text('[tools]\npython = ["1.9", "latest"]\njq = "system"\n')
    chosen = ["golang/1.2.3/go/bin", "python/1.9.0/bin", "python/1.10.0/bin"]
    assert home.resolved(project) == chosen
    (project / "mise.toml").write_text('[tools]\npython = { version = "1.10.0" }\n')
    assert home.resolved(project) == [*others, "python/1.10.0/bin"]


@pytest.mark.parametrize("text", ["python ../../..", "python /etc", "python", "\0\xff", "python ."])
def test_project_cannot_lead_elsewhere(home: Home, tmp_path: Path, text: str) -> None:
    (tmp_path / ".tool-versions").write_text(text)
    (tmp_path / "mise.toml").write_text("[tools\npython = 3")
    found = home.resolved(tmp_path)
    assert set(found) <= {"golang/1.2.3/go/bin", "jq/1.7", "python/1.10.0/bin"}


def test_pipe_does_not_block(home: Home, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".tool-versions")
    assert home.resolved(tmp_path)


def test_other_folders_stay(tmp_path: Path) -> None:
    (tmp_path / ".pyenv" / "shims").mkdir(parents=True)
    path = f"/usr/bin:{tmp_path}/.pyenv/shims:relative:"
    assert resolve_shims(path, str(tmp_path), str(tmp_path)) == path
