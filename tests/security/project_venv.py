"""A project with retinue installed in its own `.venv`, and a command that runs there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import retinue

TOOLS = ("bash", "cat", "cp", "git", "ln", "ls", "mkdir", "mv", "python3", "rm", "sh", "touch")
MAIN = "print('hello')\n"
COMMAND = "import sys\nfrom retinue.__main__ import main\nsys.exit(main())\n"


class ProjectVenv(msgspec.Struct, frozen=True):
    """`tier` is the sandbox tier that commands get."""

    root: Path
    home: Path
    tier: str

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def site_packages(self) -> Path:
        return next((self.venv / "lib").glob("python*/site-packages"))

    def environment(self) -> dict[str, str]:
        path = os.environ["PATH"]
        if self.tier == "reduced":
            # Without bubblewrap on the PATH, Landlock is used.
            tools = self.home / "tools"
            if not tools.exists():
                tools.mkdir()
                for name in TOOLS:
                    (tools / name).symlink_to(f"/usr/bin/{name}")
            path = str(tools)
        # Shared by all tests: the sandbox copies hundreds of files of `/etc` there.
        cache = self.root.parents[1] / "cache"
        return {
            "PATH": path,
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "XDG_CACHE_HOME": str(cache),
        }

    def run(
        self,
        calls: Sequence[tuple[str, Mapping[str, Any]]],
        *options: str,
        python: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Run an agent in dangerous mode that makes these calls; returns the answers to them."""
        steps: list[Any] = [{"call": name, "args": dict(args)} for name, args in calls]
        script = self.home / "script.json"
        script.write_text(json.dumps({"rules": [{"match": "", "steps": [*steps, {"say": "end"}]}]}))
        command = python or (str(self.venv / "bin" / "retinue"),)
        done = self.command(
            [
                *command,
                "run",
                "--mode",
                "dangerous",
                "-m",
                f"scripted:{script}",
                "--json",
                *options,
                "go",
            ],
            variables,
        )
        assert done.returncode == 0, done.stderr + done.stdout[-2000:]
        events = [json.loads(line) for line in done.stdout.splitlines()]
        answers = [
            event["payload"]["content"]
            for event in events
            if event["type"] in ("tool.finished", "tool.denied")
        ]
        assert len(answers) == len(calls), done.stdout + done.stderr
        return answers

    def command(
        self, argv: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.root,
            env={**self.environment(), **(variables or {})},
            capture_output=True,
            text=True,
            check=False,
        )

    def restore(self, state: Mapping[str, str]) -> bool:
        """Remove what a test has added. Whether the environment is as it was in `state` then."""
        for path in (*self.root.iterdir(), *self.home.iterdir()):
            if path.is_dir() and not path.is_symlink():
                if path != self.venv:
                    shutil.rmtree(path)
            else:
                path.unlink()
        (self.root / "main.py").write_text(MAIN)
        for added in self.state().keys() - state.keys():
            if os.path.isfile(added) or os.path.islink(added):
                os.unlink(added)
        return self.state() == state

    def state(self) -> dict[str, str]:
        """Every file and link of the environment with its content, without Python's own caches."""
        found = {}
        for folder, folders, files in os.walk(self.venv):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in (*files, *folders):
                path = Path(folder, name)
                if path.is_symlink():
                    found[str(path)] = f"link {os.readlink(path)}"
                elif path.is_file():
                    found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found


def make_project_venv(folder: Path, tier: str) -> ProjectVenv:
    """Install this retinue in `.venv` of a new project; its dependencies stay where they are.

    Its bytecode is copied too, as an installer would compile it, so that no process has to.
    """
    root, home = folder / "project", folder / "home"
    for path in (root, home):
        path.mkdir()
    venv.create(root / ".venv", symlinks=True, with_pip=False)
    made = ProjectVenv(root, home, tier)
    package = Path(retinue.__file__).parent
    shutil.copytree(package, made.site_packages / "retinue")
    (made.site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = made.venv / "bin" / "retinue"
    command.write_text(f"#!{made.venv}/bin/python\n{COMMAND}")
    command.chmod(0o755)
    (root / "main.py").write_text(MAIN)
    assert sys.prefix != str(made.venv)
    return made
