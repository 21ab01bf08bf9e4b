"""A Postgres server in a temporary directory, for tests; Postgres does not run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

VERSIONS = Path("/usr/lib/postgresql")


def programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`; None where Postgres is not installed."""
    found = [path.parent for path in sorted(VERSIONS.glob("*/bin/initdb"))]
    if named := shutil.which("initdb"):
        found.append(Path(named).resolve().parent)
    return found[-1] if found else None


class PostgresServer:
    """A server with one superuser, `postgres`, whose password is `secret`."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    @property
    def url(self) -> str:
        return f"postgresql://postgres:secret@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self.call("pg_ctl", "-o", options, "-l", str(self.folder / "log"), "-w", "start")

    def stop(self) -> None:
        """Stop it at once, as a crash would."""
        self.call("pg_ctl", "-m", "immediate", "-w", "stop")

    def call(self, program: str, *arguments: str) -> None:
        bin_folder = programs()
        assert bin_folder is not None
        user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        subprocess.run(
            [bin_folder / program, "-D", self.folder / "data", *arguments],
            check=True,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            user=user and user.pw_uid,
            group=user and user.pw_gid,
        )


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    folder = Path(mkdtemp(prefix="retinue-postgres-"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = PostgresServer(folder, port)
    try:
        (folder / "password").write_text("secret\n")
        if os.geteuid() == 0:
            for path in (folder, folder / "password"):
                shutil.chown(path, "postgres", "postgres")
        password = f"--pwfile={folder / 'password'}"
        server.call(
            *("initdb", "-U", "postgres", "-A", "scram-sha-256", password),
            *("-E", "UTF8", "--no-locale", "-N"),
        )
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
