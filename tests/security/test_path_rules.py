"""A rule that denies a path holds for every way to write it, in both sandbox tiers."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.config.environment import Environment
from retinue.domain.messages import ToolMessage
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, call, say
from retinue.runtime.runtime import Runtime
from retinue.sandbox.selection import select_sandbox
from tests.conftest import Repo
from tests.security.project_venv import TOOLS


class Project(msgspec.Struct, frozen=True):
    """A repository, and a user whose rules deny paths in it."""

    repo: Repo
    environment: Environment
    open: Callable[..., AbstractAsyncContextManager[Runtime]]

    @property
    def root(self) -> Path:
        return self.repo.root

    def deny(self, *rules: str) -> None:
        path = self.repo.config / "retinue" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"deny = {list(rules)!r}\n")

    async def run(self, *steps: ScriptedReply, write: tuple[str, ...] = ()) -> list[str]:
        """The answers to these calls of a root, in place; of a child in place with `write`."""
        model = ScriptedModel([*steps, say("Done.")])
        options = {"model": model, "mode": "dangerous", "environment": self.environment}
        async with self.open(self.root, **options) as rt:
            if write:
                await rt.spawn("executor", "go", write=write, workspace="shared")
            else:
                await rt.run("go")
        messages = model.requests[-1].messages
        return [m.content for m in messages if isinstance(m, ToolMessage)]

    async def child(self, *steps: ScriptedReply, **options: Any) -> None:
        """A child that works in a copy, whose work is merged."""
        model = ScriptedModel([*steps, say("Done.")])
        async with self.open(
            self.root, model=model, mode="dangerous", environment=self.environment
        ) as rt:
            await rt.spawn("executor", "go", **options)


def shell(command: str) -> ScriptedReply:
    return call("run_command", command=command)


@pytest.fixture(params=["full", "reduced"])
async def project(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    repo: Repo,
    open_project: Callable[..., AbstractAsyncContextManager[Runtime]],
) -> Project:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(f"/usr/bin/{name}")
    # Without bubblewrap on the PATH, Landlock is used.
    path = "/usr/bin:/bin" if request.param == "full" else str(tools)
    environment = Environment(variables={"HOME": str(repo.home), "PATH": path})
    if (await select_sandbox(environment.for_commands())).tier != request.param:
        pytest.skip(f"there is no sandbox of tier {request.param} here")
    repo.init().commit({"secrets/key": "old", "src/a.py": "1", "src/secrets/b": "old"})
    return Project(repo, environment, open_project)


ATTACKS = (
    "echo x > secrets/key",
    "echo x >> secrets/key",
    "echo x > secrets/new",
    "mkdir -p secrets/deep && echo x > secrets/deep/new",
    "rm -rf secrets",
    "mv secrets gone",
    "mv secrets gone; mkdir secrets; echo x > secrets/key",
    "ln -sfn src secrets",
    "ln -s secrets link; echo x > link/new",
    "d=sec; d=${d}rets; python3 -c \"open('$d/key', 'w')\"",
)


async def test_folder_is_denied_to_every_tool(project: Project) -> None:
    project.deny("write_file(secrets/*)")
    answers = await project.run(
        call("write_file", path="secrets/key", content="x"),
        call("edit_file", path="secrets/key", old_text="old", new_text="x"),
        call("write_file", path="src/../secrets/new", content="x"),
        call("edit_file", path="SECRETS/key", old_text="old", new_text="x"),
        *map(shell, ATTACKS),
        shell("echo fine > src/a.py; cat src/a.py"),
    )
    assert "The user's rules forbid" in answers[0]
    assert "The user's rules forbid" in answers[1]
    assert answers[-1] == "Exit code 0\nfine\n"
    assert (project.root / "secrets" / "key").read_text() == "old"
    assert os.listdir(project.root / "secrets") == ["key"]
    assert not (project.root / "gone").exists()


async def test_hard_links_to_denied_files_are_denied_to_commands(project: Project) -> None:
    """Whatever name they had before the run, in whatever workspace."""
    project.deny("write_file(secrets/*)", "write_file(.env)")
    (project.root / ".env").write_text("old")
    os.link(project.root / ".env", project.root / "settings")
    os.link(project.root / "secrets" / "key", project.root / "top")
    os.link(project.root / "secrets" / "key", project.root / "src" / "alias")
    (project.root / "src" / "deep").mkdir()
    os.link(project.root / "secrets" / "key", project.root / "src" / "deep" / "alias")
    attack = "echo x > {0}; echo x >> {0}; ln {0} {0}2; echo x > {0}2; true"
    await project.run(*(shell(attack.format(path)) for path in ("settings", "top", "src/alias")))
    await project.run(shell(attack.format("top")), write=("top", "top2"))
    moved = shell("mv src/deep src/moved"), shell("echo x > src/moved/alias")
    await project.run(*moved, shell("mv src moved"), shell("echo x > moved/deep/alias"))
    child = {"directory": "src", "workspace": "shared"}
    await project.child(shell(attack.format("alias")), shell("echo fine > a.py"), **child)
    assert (project.root / ".env").read_text() == "old"
    assert (project.root / "secrets" / "key").read_text() == "old"
    assert (project.root / "src" / "a.py").read_text() == "fine\n"


@pytest.mark.parametrize(
    "rule", ["edit_file(secrets/*)", "*_file(secrets/*)", "write_file(secrets)"]
)
async def test_rule_may_name_any_tool_that_writes(project: Project, rule: str) -> None:
    project.deny(rule)
    path = "secrets" if rule.endswith("(secrets)") else "secrets/new"
    (answer,) = await project.run(call("write_file", path=path, content="x"))
    assert "rules forbid" in answer
    assert os.listdir(project.root / "secrets") == ["key"]


async def test_denied_path_that_does_not_exist_cannot_be_made(project: Project) -> None:
    project.deny("write_file(.env)", "write_file(private/*)")
    await project.run(
        shell("echo x > .env"),
        shell("mkdir -p private; echo x > private/key"),
        shell("echo x > src/.env; mv src/.env .env"),
        shell("mkdir src/p; echo x > src/p/key; mv src/p private"),
        shell("echo new > src/new.py"),
    )
    assert not (project.root / ".env").exists()
    assert not (project.root / "private").exists()
    assert (project.root / "src" / "new.py").read_text() == "new\n"


async def test_rule_about_names_holds_for_new_files(project: Project) -> None:
    """No sandbox can enforce it in place, so commands work in a copy."""
    project.deny("write_file(*.pem)")
    project.repo.commit({"a.pem": "old", "src/b.pem": "old"})
    answers = await project.run(
        shell("echo x > src/new.pem; echo x > src/a.py"),
        shell("echo x > src/b.pem"),
        shell("rm a.pem"),
        shell("echo fine > src/a.py"),
        call("write_file", path="src/c.pem", content="x"),
    )
    assert "Nothing that the command changed was kept" in answers[0]
    assert "The user's rules forbid to change 'src/new.pem'" in answers[0]
    assert sorted(path.name for path in project.root.rglob("*.pem")) == ["a.pem", "b.pem"]
    assert (project.root / "src" / "b.pem").read_text() == "old"
    assert (project.root / "src" / "a.py").read_text() == "fine\n"


async def test_merge_of_a_child_is_refused(project: Project) -> None:
    project.deny("write_file(secrets/*)", "write_file(*.pem)")
    await project.child(shell("echo x > secrets/key; echo x > src/a.py"))
    await project.child(shell("echo x > new.pem"))
    await project.child(shell("git mv secrets src/moved 2>/dev/null || mv secrets src/moved"))
    assert (project.root / "secrets" / "key").read_text() == "old"
    assert (project.root / "src" / "a.py").read_text() == "1"
    assert not (project.root / "new.pem").exists()
    await project.child(shell("echo fine > src/a.py"))
    assert (project.root / "src" / "a.py").read_text() == "fine\n"


async def test_rule_is_relative_to_the_project(project: Project) -> None:
    """Also for a child that works in a folder of it."""
    project.deny("write_file(src/secrets/*)")
    write = call("write_file", path="secrets/b", content="x")
    for workspace in ("shared", "worktree"):
        await project.child(
            write, shell("echo x > secrets/b"), directory="src", workspace=workspace
        )
    assert (project.root / "src" / "secrets" / "b").read_text() == "old"


async def test_command_makes_a_scoped_path_that_does_not_exist(project: Project) -> None:
    scope = ("docs/**", "a/b/c/", "notes.md", "Makefile")
    answers = await project.run(
        shell("echo x > docs/index.md && mkdir docs/deep && echo x > docs/deep/x"),
        shell("echo x > a/b/c/file"),
        shell("echo x > notes.md && echo x > Makefile"),
        shell("echo x > a/other"),
        shell("echo x > elsewhere"),
        write=scope,
    )
    assert [answer.startswith("Exit code 0") for answer in answers] == [True] * 3 + [False] * 2
    for path in ("docs/index.md", "docs/deep/x", "a/b/c/file", "notes.md", "Makefile"):
        assert (project.root / path).read_text() == "x\n", path
    assert not (project.root / "a" / "other").exists()


async def test_scoped_path_that_is_not_used_leaves_no_trace(project: Project) -> None:
    before = project.repo.files()
    await project.run(shell("ls"), shell("false"), write=("docs/**", "a/b/", "notes.md"))
    assert project.repo.files() == before
    assert not (project.root / "docs").exists()
    assert not (project.root / "a").exists()


async def test_a_path_denied_to_read_file_cannot_be_read_in_other_ways(project: Project) -> None:
    """Through a link of the repository, as context of a child, or from a folder inside."""
    project.deny("read_file(src/secrets/*)")
    (project.root / "link").symlink_to("src/secrets/b")
    (project.root / "folder").symlink_to("src/secrets")
    answers = await project.run(
        call("read_file", path="src/secrets/b"),
        call("read_file", path="link"),
        call("read_file", path="folder/b"),
        call("edit_file", path="link", old_text="nothing", new_text="x"),
        call("read_file", path="src/a.py"),
    )
    assert "The user's rules forbid" in answers[0]
    for answer in answers[1:4]:
        assert answer == "[ERROR] The user's rules forbid to read 'src/secrets/b'."
    assert answers[4].endswith("1")
    model = ScriptedModel(
        [
            call("spawn_agent", task="look", role="researcher", context_files="src/secrets/b"),
            say("nothing"),
            say("Done."),
            call("read_file", path="secrets/b"),
            say("Done."),
        ]
    )
    options = {"model": model, "mode": "dangerous", "environment": project.environment}
    async with project.open(project.root, **options) as rt:
        await rt.run("go")
        await rt.spawn("researcher", "go", directory="src")
    sent = [str(message) for request in model.requests for message in request.messages]
    assert not any("old" in text for text in sent)
    assert any("forbid to read 'secrets/b'" in text for text in sent)
