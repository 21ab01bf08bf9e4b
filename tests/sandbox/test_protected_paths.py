"""Commands cannot write `.git` and `.retinue`, whatever their write scope."""

from __future__ import annotations

import os

import pytest

from retinue.domain.scope import ANYWHERE
from tests.sandbox.probe import SandboxProbe


@pytest.mark.parametrize(
    "command",
    [
        "echo x >.git/hooks/pre-commit",
        "mv .git .git2; mkdir -p .git/hooks; echo x >.git/hooks/pre-commit",
        "rm -rf .git; echo 'gitdir: open' >.git",
        "chmod 777 .git/hooks",
        "echo x >.GIT/hooks/pre-commit",
        "ln -sfn /tmp .git; ln -sfn /tmp .git/hooks",
        "ln -s .git open; echo x >open/hooks/pre-commit",
        "mkdir -p new/hooks; mv -T new .git",
    ],
)
async def test_git_dir_is_read_only_in_a_writable_root(probe: SandboxProbe, command: str) -> None:
    before = os.stat(probe.root / ".git/hooks").st_mode
    await probe.run(command, write=ANYWHERE)
    assert (probe.root / ".git").is_dir()
    assert not (probe.root / ".git").is_symlink()
    assert os.listdir(probe.root / ".git/hooks") == []
    if probe.full:  # See REDUCED_TIER_LEAKS.
        assert os.stat(probe.root / ".git/hooks").st_mode == before


async def test_git_dir_cannot_be_created(probe: SandboxProbe) -> None:
    (probe.root / ".git" / "hooks").rmdir()
    (probe.root / ".git").rmdir()
    (probe.root / ".retinue").mkdir()  # Retinue always makes one.
    done = await probe.run(
        "mkdir -p .git/hooks && echo x >.git/config; echo 'gitdir: src' >.git;"
        " ln -s src .git; echo x >src/b.py && echo written",
        write=ANYWHERE,
    )
    assert done.output.endswith("written\n")
    assert ".git" not in os.listdir(probe.root)


async def test_git_that_is_a_link_or_a_file_is_not_replaced(probe: SandboxProbe) -> None:
    (probe.root / ".git" / "hooks").rmdir()
    (probe.root / ".git").rmdir()
    command = "rm -f .git; echo x >.git; mv .git gone; ln -s src .git"
    (probe.root / ".git").symlink_to(probe.outside)
    await probe.run(command, write=ANYWHERE)
    assert os.readlink(probe.root / ".git") == str(probe.outside)
    (probe.root / ".git").unlink()
    (probe.root / ".git").write_text("gitdir: ../elsewhere\n")
    await probe.run(command, write=ANYWHERE)
    assert (probe.root / ".git").read_text() == "gitdir: ../elsewhere\n"
    assert probe.unchanged


async def test_state_folder_is_neither_read_nor_written(probe: SandboxProbe) -> None:
    state = probe.root / ".retinue"
    state.mkdir()
    (state / "retinue.db").write_text("the journal")
    done = await probe.run(
        "cat .retinue/retinue.db; echo x >.retinue/retinue.db; rm -rf .retinue", write=ANYWHERE
    )
    assert (state / "retinue.db").read_text() == "the journal"
    assert "the journal" not in done.output
