"""The files that this process runs, which no agent may write."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import retinue
from retinue.import_path import leave_out_of_imports
from retinue.installation import installation_paths


def test_everything_that_python_runs_is_listed(tmp_path: Path) -> None:
    found = installation_paths(str(tmp_path)).paths
    package = os.path.dirname(retinue.__file__)
    for path in (package, os.path.realpath(sys.executable), os.path.dirname(os.__file__)):
        assert any(path == one or path.startswith(f"{one}/") for one in found), path


def test_nothing_is_protected_in_an_ordinary_project(tmp_path: Path) -> None:
    assert installation_paths(str(tmp_path)).within(str(tmp_path)) == ()


def test_environment_in_the_project_is_protected_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "envs" / "main" / "bin").mkdir(parents=True)
    (tmp_path / ".venv").symlink_to("envs/main")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    found = installation_paths(str(tmp_path)).within(str(tmp_path))
    assert found == (".venv", "envs/main")


def test_environment_that_is_the_project_leaves_the_rest_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert installation_paths(str(tmp_path)).within(str(tmp_path)) == ("bin", "pyvenv.cfg")


def test_only_folders_of_the_workspace_leave_the_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / ".venv" / "lib" / "site-packages").mkdir(parents=True)
    (tmp_path / "link").symlink_to(project / ".venv")
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "prefix", str(project / ".venv"))
    own = [str(project / ".venv" / "lib" / "site-packages"), *filter(None, sys.path)]
    theirs = ["", str(project), "src", str(project / "src"), str(tmp_path / "link" / ".." / "x")]
    monkeypatch.setattr(sys, "path", [*theirs, str(tmp_path), *own])
    leave_out_of_imports(".")
    assert sys.path == [str(tmp_path), *own]


def test_packages_stay_on_the_import_path_in_the_root_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "path", ["", "/", str(tmp_path)])
    leave_out_of_imports(".")
    assert sys.path == [str(tmp_path)]
