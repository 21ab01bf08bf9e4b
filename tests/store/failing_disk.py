"""SQLite on a disk that fails: wraps the VFS that all databases of this process use.

Every call of SQLite that writes, syncs, truncates, deletes, opens or reads a file, or grows the
index of the write-ahead log, has a number. The call with a chosen number fails, with an error or
after half of its data. The wrapper uses the C interface of the library that the module `sqlite3` is
linked with, so the store under test is the real one.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

OK, IOERR, FULL = 0, 10, 13
IOERR_WRITE, IOERR_SHORT, IOERR_FSYNC = IOERR | 3 << 8, IOERR | 2 << 8, IOERR | 4 << 8

_p, _i, _l, _s = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_METHODS: dict[str, Any] = {
    "xClose": (_i, _p),
    "xRead": (_i, _p, _p, _i, _l),
    "xWrite": (_i, _p, _p, _i, _l),
    "xTruncate": (_i, _p, _l),
    "xSync": (_i, _p, _i),
    "xFileSize": (_i, _p, _p),
    "xLock": (_i, _p, _i),
    "xUnlock": (_i, _p, _i),
    "xCheckReservedLock": (_i, _p, _p),
    "xFileControl": (_i, _p, _i, _p),
    "xSectorSize": (_i, _p),
    "xDeviceCharacteristics": (_i, _p),
    "xShmMap": (_i, _p, _i, _i, _i, _p),
    "xShmLock": (_i, _p, _i, _i, _i),
    "xShmBarrier": (None, _p),
    "xShmUnmap": (_i, _p, _i),
    "xFetch": (_i, _p, _l, _i, _p),
    "xUnfetch": (_i, _p, _l, _p),
}
_TYPES = {name: ctypes.CFUNCTYPE(*signature) for name, signature in _METHODS.items()}
_OPEN = ctypes.CFUNCTYPE(_i, _p, _p, _p, _i, _p)
_DELETE = ctypes.CFUNCTYPE(_i, _p, _s, _i)


class Methods(ctypes.Structure):
    _fields_ = [("iVersion", _i), *_TYPES.items()]


class File(ctypes.Structure):
    _fields_ = [("pMethods", ctypes.POINTER(Methods))]


class Vfs(ctypes.Structure):
    _fields_ = [
        ("iVersion", _i),
        ("szOsFile", _i),
        ("mxPathname", _i),
        ("pNext", _p),
        ("zName", _s),
        ("pAppData", _p),
        ("xOpen", _OPEN),
        ("xDelete", _DELETE),
        ("rest", _p * 16),
    ]


class Disk:
    """Counts calls and fails the call with number `fails_at`; with `dies`, all later ones too.

    `kind` is "error" (nothing is written, and the call fails), "full" (the disk has no room) or
    "short" (half of the data is written, and the call fails).
    """

    def __init__(self, fails_at: int | None, kind: str, *, dies: bool = False) -> None:
        self.calls: list[str] = []
        self.failed = ""
        self._fails_at = fails_at
        self._kind = kind
        self._dies = dies

    def fails(self, call: str) -> bool:
        number = len(self.calls)
        self.calls.append(call)
        if self._fails_at is None or number < self._fails_at:
            return False
        if number == self._fails_at:
            self.failed = call
        return number == self._fails_at or self._dies

    def code(self, otherwise: int) -> int:
        return FULL if self._kind == "full" else otherwise

    @property
    def writes_half(self) -> bool:
        return self._kind == "short"


def reachable() -> bool:
    """Does the module `sqlite3` use the shared library, rather than a copy linked into it?"""
    if _library() is None:
        return False
    disk = Disk(None, "error")
    with (
        TemporaryDirectory() as folder,
        faulty(disk),
        closing(sqlite3.connect(Path(folder, "a.db"))) as connection,
    ):
        connection.execute("CREATE TABLE a (b)")
    return bool(disk.calls)


def _library() -> ctypes.CDLL | None:
    name = ctypes.util.find_library("sqlite3")
    if name is None:
        return None
    found = ctypes.CDLL(name)
    found.sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)
    return found


@contextmanager
def faulty(disk: Disk) -> Iterator[None]:
    """Databases that are opened inside this context are on `disk`."""
    lib = _library()
    assert lib is not None
    real = lib.sqlite3_vfs_find(None)
    vfs = Vfs.from_buffer_copy(real.contents)
    kept: list[Any] = []  # C still calls these: they must not be collected.
    patched: dict[int, Any] = {}
    original_open, original_delete = real.contents.xOpen, real.contents.xDelete

    def wrapped(methods: Any) -> Any:
        address = ctypes.addressof(methods.contents)
        if address not in patched:
            patched[address] = _wrapped(methods.contents, disk, kept)
        return patched[address]

    def opened(this: int, name: int, file: int, flags: int, out: int) -> int:
        if disk.fails("open"):
            File.from_address(file).pMethods = ctypes.POINTER(Methods)()
            return 14  # SQLITE_CANTOPEN
        code = original_open(ctypes.addressof(real.contents), name, file, flags, out)
        handle = File.from_address(file)
        if code == OK and handle.pMethods:
            handle.pMethods = ctypes.pointer(wrapped(handle.pMethods))
        return int(code)

    def deleted(this: int, name: bytes, sync: int) -> int:
        if disk.fails("delete"):
            return IOERR | 10 << 8
        return int(original_delete(ctypes.addressof(real.contents), name, sync))

    vfs.zName = b"faulty"
    vfs.xOpen, vfs.xDelete = _OPEN(opened), _DELETE(deleted)
    kept += [vfs, vfs.xOpen, vfs.xDelete]
    assert lib.sqlite3_vfs_register(ctypes.byref(vfs), 1) == OK
    try:
        yield
    finally:
        assert lib.sqlite3_vfs_unregister(ctypes.byref(vfs)) == OK
        assert lib.sqlite3_vfs_register(real, 1) == OK


def _wrapped(real: Any, disk: Disk, kept: list[Any]) -> Any:
    found = Methods.from_buffer_copy(real)

    def replace(name: str, make: Callable[[Any], Callable[..., int]]) -> None:
        function = _TYPES[name](make(getattr(real, name)))
        setattr(found, name, function)
        kept.append(function)

    def write(original: Any) -> Callable[..., int]:
        def call(file: int, data: int, size: int, offset: int) -> int:
            if not disk.fails("write"):
                return int(original(file, data, size, offset))
            if disk.writes_half:
                original(file, data, size // 2, offset)
            return disk.code(IOERR_WRITE)

        return call

    def read(original: Any) -> Callable[..., int]:
        def call(file: int, data: int, size: int, offset: int) -> int:
            if disk.fails("read"):
                return IOERR | 1 << 8
            return int(original(file, data, size, offset))

        return call

    def plain(name: str, code: int) -> Callable[[Any], Callable[..., int]]:
        def make(original: Any) -> Callable[..., int]:
            def call(*arguments: Any) -> int:
                return disk.code(code) if disk.fails(name) else int(original(*arguments))

            return call

        return make

    replace("xWrite", write)
    replace("xRead", read)
    replace("xSync", plain("sync", IOERR_FSYNC))
    replace("xTruncate", plain("truncate", IOERR | 6 << 8))
    if real.iVersion >= 2:
        replace("xShmMap", plain("index", IOERR | 19 << 8))
    kept.append(found)
    return found
