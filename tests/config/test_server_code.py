"""The hash of a server's code changes with the code, or with each write if the code is unknown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.config.server_code import MAX_FILES, code_digest
from retinue.config.trust import TrustStore
from retinue.domain.mcp_server import McpServerSpec, Transport

Digest = Callable[..., str]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for folder in ("tools", "lib", "node_modules/.bin", ".venv/bin", "bin"):
        (root / folder).mkdir(parents=True)
    (root / ".venv" / "pyvenv.cfg").write_text("")
    for name in ("node_modules/.bin/srv", ".venv/bin/python3", "bin/python3", "tools/run"):
        (root / name).write_text("#!/bin/sh\n")
        (root / name).chmod(0o755)
    for name in ("tools/srv.py", "tools/helper.py", "lib/x.mjs", "conf.json"):
        (root / name).write_text("1")
    return root


@pytest.fixture
def trust(tmp_path: Path) -> TrustStore:
    return TrustStore(tmp_path / "trust")


@pytest.fixture
def digest(project: Path, trust: TrustStore) -> Digest:
    def digest(*command: str, path: str = "/usr/bin:/bin", **variables: str) -> str:
        server = McpServerSpec(
            name="s",
            source="x",
            transport=Transport.STDIO,
            command=command,
            environment={"PATH": path, **variables},
            directory=str(project),
        )
        return code_digest(server, project, trust)

    return digest


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "tools/srv.py"],
        ["/bin/sh", "-e", "tools/srv.py", "--port", "80"],
        ["tools/run"],
        ["./tools/run", "--port=80"],
        ["env", "lib/x.mjs", "tools/srv.py"],
    ],
)
def test_code_in_the_folders_of_named_files_counts(
    digest: Digest, project: Path, trust: TrustStore, command: list[str]
) -> None:
    before = digest(*command)
    trust.last_agent_write(project)
    trust.record_agent_write(project)
    (project / "bin" / "unrelated").write_text("x")
    assert digest(*command) == before
    (project / "tools" / "helper.py").write_text("2")
    assert (changed := digest(*command)) != before
    (project / "tools" / "new.py").write_text("")
    assert (with_new := digest(*command)) != changed
    (project / "tools" / "__pycache__").mkdir()
    (project / "tools" / "__pycache__" / "helper.cpython-311.pyc").write_text("x")
    assert (cached := digest(*command)) != with_new
    (project / "tools" / "linked").symlink_to(project / "bin")
    assert (linked := digest(*command)) != cached
    (project / "bin" / "unrelated").write_text("y")
    assert (behind := digest(*command)) != linked
    (project / "tools" / "helper.py").chmod(0o700)
    assert digest(*command) != behind


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "-m", "tools"],
        ["python3", "-m", "pkg", "conf.json"],
        ["npm", "run", "x"],
        ["npx", "-y", "server", "tools/srv.py"],
        ["node_modules/.bin/srv"],
        [".venv/bin/python3", "tools/srv.py"],
        ["no-such-program"],
        ["sh", "-c", "python3 tools/srv.py"],
        ["env", "X=1", "python3", "tools/srv.py"],
        ["sh", "/etc/passwd"],
        ["sh", "-Ilib", "tools/srv.py"],
        ["sh", "--require=./lib/x.mjs", "tools/srv.py"],
    ],
)
def test_unknown_code_changes_with_each_write(
    digest: Digest, project: Path, trust: TrustStore, command: list[str]
) -> None:
    before = digest(*command)
    assert digest(*command) == before
    trust.record_agent_write(project)
    after = digest(*command)
    assert after != before
    trust.record_agent_write(project)
    assert digest(*command) not in (before, after)


def test_interpreter_of_the_project_makes_the_code_unknown(digest: Digest, project: Path) -> None:
    path = f"{project}/.venv/bin:/usr/bin"
    assert digest("python3", "tools/srv.py", path=path).startswith("writes ")
    assert not digest("python3", "tools/srv.py").startswith("writes ")


def test_linked_interpreter_of_the_project_makes_the_code_unknown(
    digest: Digest, project: Path
) -> None:
    """It imports packages of the virtual environment."""
    (project / ".venv" / "bin" / "python3").unlink()
    (project / ".venv" / "bin" / "python3").symlink_to("/bin/sh")
    assert digest(".venv/bin/python3", "tools/srv.py").startswith("writes ")
    path = f"{project}/.venv/bin:/usr/bin"
    assert digest("python3", "tools/srv.py", path=path).startswith("writes ")


@pytest.mark.parametrize(
    "command", [["sh", "tools/srv.js"], ["node", "tools/srv"], ["tools/srv-node"]]
)
def test_node_imports_from_the_folders_above(
    digest: Digest, project: Path, trust: TrustStore, tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "node").symlink_to("/bin/sh")
    for name, line in (("srv.js", ""), ("srv", ""), ("srv-node", "#!/usr/bin/env node\n")):
        (project / "tools" / name).write_text(line)
        (project / "tools" / name).chmod(0o755)

    def current() -> str:
        return digest(*command, path=f"{tmp_path}/bin:/usr/bin:/bin")

    before = current()
    trust.record_agent_write(project)
    (project / "lib" / "x.mjs").write_text("2")
    assert current() == before
    (project / "node_modules" / "left-pad").mkdir()
    assert current() == before
    (project / "node_modules" / "left-pad" / "index.js").write_text("1")
    assert (installed := current()) != before
    (project / "package.json").write_text('{"imports": {"#x": "./lib/x.mjs"}}')
    assert (mapped := current()) != installed
    (project / "node_modules" / "left-pad" / "index.js").write_text("2")
    assert current() != mapped
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "x.js").write_text("")
    (project / "node_modules" / "left-pad" / "index.js").write_text("1")
    assert current() == mapped, "no agent writes above the project"


@pytest.mark.parametrize("script", ["srv.ts", "srv-deno"])
def test_other_runtimes_take_code_from_anywhere(digest: Digest, project: Path, script: str) -> None:
    (project / "tools" / script).write_text("#!/usr/bin/env -S deno run\n")
    assert digest("sh", f"tools/{script}").startswith("writes ")


@pytest.mark.parametrize("name", ["PYTHONPATH", "NODE_OPTIONS", "BASH_ENV", "LD_PRELOAD"])
def test_variable_that_names_code_makes_the_code_unknown(digest: Digest, name: str) -> None:
    assert digest("sh", "tools/srv.py", **{name: "lib"}).startswith("writes ")
    assert not digest("sh", "tools/srv.py", TOKEN="lib").startswith("writes ")


def test_too_much_code_is_unknown(digest: Digest, project: Path) -> None:
    for number in range(MAX_FILES + 1):
        (project / "tools" / str(number)).touch()
    assert digest("sh", "tools/srv.py").startswith("writes ")


def test_pipe_does_not_block(digest: Digest, project: Path) -> None:
    os.mkfifo(project / "tools" / "pipe")
    assert digest("sh", "tools/srv.py")


def test_link_to_itself_makes_the_code_unknown(digest: Digest, project: Path) -> None:
    (project / "tools" / ".a").symlink_to(".a")
    assert digest("python3", "tools/srv.py").startswith("writes ")
