"""Repositories inside writable paths stay as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.domain.scope import ANYWHERE, scope
from tests.sandbox.probe import SandboxProbe


def repository(probe: SandboxProbe, where: str) -> Path:
    """Make a repository with a hook folder and settings."""
    made = probe.root / where / ".git"
    (made / "hooks").mkdir(parents=True)
    (made / "config").write_text("[core]\n")
    (probe.root / where / "code").write_text("as it was\n")
    return made


def intact(made: Path) -> bool:
    return (
        made.is_dir()
        and not made.is_symlink()
        and not made.parent.is_symlink()
        and os.listdir(made / "hooks") == []
        and (made / "config").read_text() == "[core]\n"
    )


PLANT = """
echo x >{git}/hooks/pre-commit
printf '[core]\\n fsmonitor = x\\n' >{git}/config
rm -rf {git} && mkdir -p {git}/hooks && echo x >{git}/hooks/pre-commit
mv {git} {git}2 && mkdir -p {git}/hooks && echo x >{git}/hooks/pre-commit
mv {top} {top}2 && mkdir -p {git}/hooks && echo x >{git}/hooks/pre-commit
ln -sfn /tmp {git}
mkdir -p evil/.git/hooks; echo x >evil/.git/hooks/pre-commit; mv -T evil {top}
python3 -c 'import os; os.rename("evil", "{top}")'
python3 -c 'import ctypes; ctypes.CDLL(None).renameat2(-100, b"evil", -100, b"{top}", 2)'
echo done
"""


@pytest.mark.parametrize(("where", "write"), [("lib", ("**",)), ("a/b/lib", ("a/**",))])
async def test_nested_repository_is_read_only(
    probe: SandboxProbe, where: str, write: tuple[str, ...]
) -> None:
    made = repository(probe, where)
    groups = ANYWHERE if write == ("**",) else scope(*write)
    top = where.split("/", maxsplit=1)[0]
    done = await probe.run(
        PLANT.format(git=f"{where}/.git", top=top) + f"echo changed >{where}/code", write=groups
    )
    assert "done" in done.output.splitlines()
    assert intact(made)
    assert (made.parent / "code").read_text() == "changed\n"


async def test_repository_at_the_top_of_a_scope_is_read_only(probe: SandboxProbe) -> None:
    made = repository(probe, "lib")
    await probe.run(PLANT.format(git="lib/.git", top="lib"), write=scope("lib/**"))
    assert intact(made)


async def test_git_file_of_a_submodule_is_read_only(probe: SandboxProbe) -> None:
    (probe.root / "sub").mkdir()
    pointer = probe.root / "sub" / ".git"
    pointer.write_text("gitdir: ../.git/modules/sub\n")
    await probe.run(
        "echo 'gitdir: evil' >sub/.git; rm -f sub/.git; mkdir sub/.git; mv sub sub2;"
        " mkdir -p sub/.git",
        write=ANYWHERE,
    )
    assert pointer.read_text() == "gitdir: ../.git/modules/sub\n"


async def test_repository_made_by_a_command_stays_writable(probe: SandboxProbe) -> None:
    (probe.root / "src" / "deps").mkdir()
    for command in ("git init -q src/deps/x", "git -C src/deps/x config core.bare false"):
        assert (await probe.run(command, write=scope("src/**"))).exit_code == 0
