"""The files that this process runs, which no agent may write."""

from __future__ import annotations

import os
import site
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


def test_start_up_modules_in_folders_of_editable_installs_are_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python imports `sitecustomize` from each folder that a `.pth` file names, when it starts."""
    project, packages = tmp_path / "project", tmp_path / "site-packages"
    for folder in (project / "src", packages):
        folder.mkdir(parents=True)
    lines = ["# comment", "import sys", "", str(project / "src"), "../project/made later", "/else"]
    (packages / "__editable__.demo.pth").write_text("\n".join(lines))
    (packages / "broken.pth").symlink_to("missing")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages), str(tmp_path / "none")])
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    found = installation_paths(str(project))
    for source in ("src", "made later"):
        for name in ("sitecustomize", "sitecustomize.py", "sitecustomize.pyc", "sitecustomize.so"):
            refusal = found.refusal(str(project), f"{source}/{name}")
            assert "Python imports it when retinue starts" in refusal, name
        assert not found.refusal(str(project), f"{source}/main.py")
        assert not found.refusal(str(project), f"{source}/usercustomize.py")
    assert not found.refusal(str(project), "sitecustomize.py")
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    assert installation_paths(str(project)).refusal(str(project), "src/usercustomize.py")


def test_links_that_an_editable_install_names_are_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent could put a folder with a `sitecustomize` in the place of the link."""
    project, packages, elsewhere = (tmp_path / name for name in ("project", "packages", "other"))
    for folder in (project / "code", packages, elsewhere):
        folder.mkdir(parents=True)
    (project / "src").symlink_to("code")
    (project / "out").symlink_to(elsewhere)
    (packages / "__editable__.demo.pth").write_text(f"{project}/src\n{project}/out/lib\n")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages)])
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    found = installation_paths(str(project))
    for path in ("src", "src/sitecustomize.py", "out", "code/sitecustomize.py"):
        assert found.refusal(str(project), path), path
    assert not found.refusal(str(project), "code/main.py")
