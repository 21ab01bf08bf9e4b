"""Repeats the commands of a recording in a copy of the project, and compares what happens."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec

from retinue.config.environment import Environment
from retinue.config.project_seal import ProjectSeal
from retinue.config.trust import TrustStore
from retinue.errors import RetinueError, UsageError
from retinue.interfaces.cli.main import cli
from retinue.interfaces.cli.recorded_command import RepeatedCommand, permissions_of
from retinue.model_registry import redaction_of
from retinue.models.replay.model import ReplayModel
from retinue.models.replay.recorder import Recorder, append_command
from retinue.models.replay.recording import CommandLine, Recording, read_recording
from retinue.ports.model import Model
from retinue.project import SHARED_DIRS, STATE_DIR
from retinue.runtime.core.clock import SystemClock
from retinue.workspace.git import find_repository, git_output, split_paths

_SKIPPED_FOLDERS = (".git", STATE_DIR, "node_modules", ".venv", "__pycache__")


class Difference(msgspec.Struct, frozen=True):
    """The first thing that differs from a recording, and the lines that differ."""

    reason: str
    diff: tuple[str, ...] = ()


def read_test(file: Path, *, trusted: bool) -> Recording:
    """Read a recording whose commands can be repeated. Raises ConfigError and UsageError.

    Only a trusted one may have options that let agents do more.
    """
    recording = read_recording(file)
    if not recording.commands:
        raise UsageError(
            f"{str(file)!r} has no command to repeat. Record one with `retinue run`, `spawn`,"
            " `fan-out` or `plan` and --record, without a session and without piped text."
        )
    for command in recording.commands:
        try:
            options = permissions_of(command, cli)
        except UsageError as error:
            raise UsageError(f"{str(file)!r}: {error} Record it again.") from None
        if options and not trusted:
            raise UsageError(
                f"{str(file)!r} repeats `retinue {command.arguments[0]}` with {', '.join(options)},"
                " which lets its agents do more. If you trust the recording, add"
                " --trust-recordings."
            )
    return recording


@contextmanager
def project_copy(root: Path, leave_out: Collection[Path]) -> Iterator[Path]:
    """A copy of the project's files, with its repository and the trust that it has.

    Files that git ignores are not copied, and neither is the repository of a linked worktree.
    """
    environment = Environment.current()
    trust = TrustStore(environment.trust_dir)
    with tempfile.TemporaryDirectory(prefix="retinue-test-") as folder:
        copy = Path(os.path.realpath(folder)) / root.name
        copy.mkdir()
        repository = find_repository(str(root))
        if repository is None:
            paths = list(_walk(root, root))
        else:
            listed = git_output(repository, ["ls-files", "-zco", "--exclude-standard"])
            paths = split_paths(listed)
            # In a linked worktree it is a file, and the repository belongs to another folder.
            if (root / ".git").is_dir():
                no_sockets = shutil.ignore_patterns("*.ipc")
                shutil.copytree(root / ".git", copy / ".git", symlinks=True, ignore=no_sockets)
        for name in SHARED_DIRS:
            paths += _walk(root / STATE_DIR / name, root)
        for path in dict.fromkeys(paths):
            source = root / path
            if source not in leave_out and (source.is_file() or source.is_symlink()):
                (copy / path).parent.mkdir(parents=True, exist_ok=True)
                # A link may lead to the user's own files, which agents must not find in the copy.
                shutil.copy2(source, copy / path, follow_symlinks=False)
        trust.extend_to_copy(root, copy)
        try:
            yield copy
        finally:
            trust.revoke(copy)
            ProjectSeal(copy / STATE_DIR, environment, register=False).forget()


def repeat(command: CommandLine, directory: Path, model: str | Model) -> tuple[int, str]:
    """Run a command with another model and directory. Returns its exit code and error output."""
    arguments = {"directory": str(directory), "model": model, "cache": False}
    redaction = redaction_of(directory, Environment.current())
    words = redaction.restore(list(command.arguments))
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        try:
            code = cli.main(words, "retinue", standalone_mode=False, obj=RepeatedCommand(arguments))
        except RetinueError as error:
            return 1, str(error)
    return code, errors.getvalue()


def replay(recording: Recording, directory: Path) -> Difference | None:
    """Repeat the recorded commands with the recorded replies; returns the first difference."""
    model = _replay_model(recording, directory)
    done = [repeat(command, directory, model)[0] for command in recording.commands]
    return _difference(recording, model, done)


def update(file: Path, recording: Recording, directory: Path) -> None:
    """Record what agents ask now, with the recorded replies. Raises UsageError."""
    model = _replay_model(recording, directory, accept_differences=True)
    done = [repeat(command, directory, model)[0] for command in recording.commands]
    if model.out_of_replies:
        raise UsageError(
            f"{str(file)!r} cannot be updated: an agent now asks for more replies than it has."
            " Record it again."
        )
    redaction = redaction_of(directory, Environment.current())
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    recorder = Recorder(draft, redaction=redaction, clock=SystemClock())
    try:
        for name, served in recording.served.items():
            recorder.add_served(name, served)
        for exchange, request in model.answered:
            recorder.add_exchange(exchange, request)
        recorder.close()
        for command, code in zip(recording.commands, done, strict=True):
            line = msgspec.structs.replace(command, exit_code=code)
            append_command(draft, line, redaction)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _replay_model(
    recording: Recording, directory: Path, *, accept_differences: bool = False
) -> ReplayModel:
    return ReplayModel(
        recording,
        redaction=redaction_of(directory, Environment.current()),
        accept_differences=accept_differences,
    )


def _difference(recording: Recording, model: ReplayModel, codes: list[int]) -> Difference | None:
    if model.first_mismatch is not None:
        return Difference(model.first_mismatch.reason, model.first_mismatch.diff)
    if leftovers := model.leftovers():
        return Difference(f"the request in {leftovers[0]}, was recorded and is not sent")
    for command, code in zip(recording.commands, codes, strict=True):
        if code != command.exit_code:
            name = f"`retinue {command.arguments[0]}`"
            return Difference(f"{name} exits with {code}; recorded is {command.exit_code}")
    return None


def _walk(top: Path, root: Path) -> Iterator[str]:
    """Paths relative to `root` of the files and links below `top`. No link is followed."""
    if top.parent.is_symlink() or top.is_symlink():
        return
    for folder, folders, names in os.walk(top):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        for name in (*names, *links):
            yield os.path.relpath(os.path.join(folder, name), root)
