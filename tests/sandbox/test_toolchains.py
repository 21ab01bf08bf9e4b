"""Compilers, interpreters and test runners work in every sandbox."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from retinue.domain.grant import Access
from retinue.domain.scope import ANYWHERE, scope
from retinue.ports.sandbox import ShellCommand
from tests.sandbox.probe import SandboxProbe, with_environment


async def test_pseudo_terminal_works_in_the_full_tier(probe: SandboxProbe) -> None:
    if not probe.full:
        pytest.skip("the reduced tier shows no terminals")
    done = await probe.python(
        """
import os, pty
parent, child = pty.openpty()
os.write(child, b"hi")
print(os.read(parent, 10), open("/dev/null", "w").write("x"), os.path.exists("/dev/shm"))
"""
    )
    assert done.output == "b'hi' 1 True\n"


async def test_copying_falls_back_when_calls_are_denied(probe: SandboxProbe) -> None:
    """Programs fall back where clones and file flags are reported as unsupported."""
    shutil.copy("/bin/sh", probe.root / "src" / "program")
    done = await probe.run(
        "cd src && cp -a program copy && install -m 755 program other && tar cf t copy && ls -l t"
        " >/dev/null && mv t u && cmp program copy && echo same",
        write=ANYWHERE,
    )
    assert done.output == "same\n"


PYTHON = os.path.realpath(sys.executable)


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on this machine")


async def test_compiler(probe: SandboxProbe) -> None:
    needs("gcc")
    (probe.root / "src" / "a.c").write_text('#include <stdio.h>\nint main(){puts("built");}\n')
    done = await probe.run("gcc -O2 -o src/a src/a.c && src/a", write=scope("src/**"))
    assert (done.exit_code, done.output) == (0, "built\n")


async def test_cargo(probe: SandboxProbe) -> None:
    needs("cargo")
    (probe.root / "Cargo.toml").write_text('[package]\nname = "a"\nversion = "0.1.0"\n')
    (probe.root / "src" / "main.rs").write_text('fn main() { println!("built"); }\n')
    (probe.root / "target").mkdir()
    (probe.root / "Cargo.lock").write_text("")
    done = await probe.run(
        "CARGO_HOME=$TMPDIR/cargo cargo run --offline -q", write=ANYWHERE, timeout_s=120
    )
    if "rustup" in done.output:
        pytest.skip("there is no toolchain behind it")
    assert done.output.endswith("built\n")


async def test_node(probe: SandboxProbe) -> None:
    needs("node")
    done = await probe.run("node -e 'console.log([1,2].map(x => x * 2).join())'")
    assert (done.exit_code, done.output) == (0, "2,4\n")


async def test_node_with_processes_and_a_server(probe: SandboxProbe) -> None:
    needs("node")
    if not probe.full:
        pytest.skip("the reduced tier has no sockets, and says so")
    (probe.root / "server.js").write_text(
        """
const http = require("http"), { fork } = require("child_process");
if (process.argv[2]) { process.send("from a child"); process.exit(); }
fork(__filename, ["child"]).on("message", (told) => {
  const server = http.createServer((_, answer) => answer.end(told));
  server.listen(0, "127.0.0.1", () => {
    http.get({ port: server.address().port }, (answer) => {
      answer.on("data", (data) => console.log(String(data))).on("end", () => server.close());
    });
  });
});
"""
    )
    done = await probe.run("node server.js")
    assert (done.exit_code, done.output) == (0, "from a child\n")


async def test_pytest(probe: SandboxProbe) -> None:
    (probe.root / "tests" / "test_a.py").write_text(
        """
import concurrent.futures, multiprocessing, socket, subprocess, sys, threading

def test_folder(tmp_path):
    (tmp_path / "a").write_text("x")

def test_processes():
    context = multiprocessing.get_context("forkserver")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(abs, -1).result() == 1

def test_server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].sendall(b"hi")).start()
        with socket.create_connection(server.getsockname()) as there:
            assert there.recv(10) == b"hi"

def test_program():
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\\n"
"""
    )
    chosen = "" if probe.full else "-k 'folder or program'"
    packages = tuple(path for path in sys.path if path.endswith("site-packages"))
    python = f"PYTHONPATH={':'.join(packages)} {PYTHON} -m pytest -q -p no:cacheprovider"
    done = await probe.sandbox.run(
        ShellCommand(
            f"{python} --disable-plugin-autoload tests {chosen}",
            access=Access(root=str(probe.root), write_scope=scope("tests/**"), readable=packages),
            timeout_s=60,
            max_output_bytes=20_000,
        )
    )
    assert done.exit_code == 0, done.output
    assert ("4 passed" if probe.full else "2 passed") in done.output


async def test_virtual_environment(probe: SandboxProbe) -> None:
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "venv", "--without-pip", str(probe.root / ".venv")
    )
    assert await made.wait() == 0
    (probe.root / "tests" / "test_a.py").write_text(
        "import unittest\nclass A(unittest.TestCase):\n def test(self): self.assertTrue(True)\n"
    )
    done = await probe.run(
        ".venv/bin/python -m unittest discover -s tests", write=scope("tests/**")
    )
    assert done.output.endswith("OK\n")


async def test_git_log_and_status_work(probe: SandboxProbe) -> None:
    (probe.root / ".git" / "hooks").rmdir()
    (probe.root / ".git").rmdir()
    made = await asyncio.create_subprocess_exec("git", "init", "-q", str(probe.root))
    assert await made.wait() == 0
    done = await probe.run("git status --short --untracked-files=all")
    assert (done.exit_code, done.output.splitlines()) == (0, ["?? src/a.py", "?? src/test_a.py"])


CREDENTIALS = (
    ".local/share/uv/credentials/credentials.toml",
    ".cargo/credentials.toml",
    ".nvm/versions/node/v22.1.0/etc/npmrc",
    ".asdf/installs/nodejs/22.1.0/etc/npmrc",
    ".volta/tools/image/node/22.1.0/etc/npmrc",
    ".fnm/node-versions/v22.1.0/installation/etc/npmrc",
    ".sdkman/candidates/maven/3.9.9/conf/settings.xml",
    ".rbenv/versions/3.4.1/etc/credentials",
    ".pyenv/versions/3.11.7/pip.conf",
    ".rustup/auth.json",
    "miniconda3/.condarc",
    ".conda/.condarc",
    ".local/share/mise/credentials.toml",
    ".local/share/pipx/pip.conf",
    ".bun/install/.npmrc",
    "go/pkg/.netrc",
    ".local/bin/.env",
    ".local/share/mise/installs/node/22.1.0/etc/npmrc",
    ".local/share/pipx/venvs/black/pipx_metadata.json",
    ".local/share/uv/tools/ruff/uv-receipt.toml",
    ".nvm/.git/config",
    ".asdf/plugins/nodejs/.git/config",
    ".conda/condarc.d/channels.yml",
    ".conda/envs/work/conda-meta/state",
    ".conda/envs/work/etc/conda/activate.d/env_vars.sh",
    ".conda/envs/work/conda-meta/history",
    ".conda/envs/work/conda-meta/tool-1.0.json",
    ".conda/pkgs/urls.txt",
    "miniconda3/pkgs/cache/channel.json",
    "go/pkg/mod/cache/vcs/0a1b/config",
    ".cargo/git/db/tool-1/config",
    ".cargo/git/db/tool-1/FETCH_HEAD",
    ".bun/install/global/package.json",
    ".sdkman/candidates/gradle/8.5/init.d/company.gradle",
    ".sdkman/candidates/gradle/8.5/init.gradle",
    ".sdkman/candidates/sbt/1.9/conf/sbtopts",
    ".sdkman/candidates/sbt/1.9/conf/repositories",
    ".rbenv/vars",
    ".rbenv/versions/3.4.1/etc/gemrc",
    ".rbenv/versions/3.4.1/lib/ruby/gems/3.4.0/cache/bundler/git/tool-1/config",
    ".nvm/versions/node/v22.1.0/lib/node_modules/npm/npmrc",
    ".asdf/installs/golang/1.22.0/packages/pkg/mod/cache/vcs/0a1b/config",
    ".asdf/installs/golang/1.22.0/go/go.env",
    ".asdf/installs/rust/1.83.0/.crates2.json",
    ".asdf/installs/rust/1.83.0/config.toml",
    ".bun/install/global/bun.lockb",
    ".local/lib/node_modules/npm/npmrc",
    ".local/share/uv/tools/ruff/lib/python3.12/site-packages/ruff-1.dist-info/direct_url.json",
    ".local/share/mise/installs/ruby/3.4.1/.bundle/config",
    ".sdkman/candidates/tomcat/9/conf/tomcat-users.xml",
    "micromamba/pkgs/urls.txt",
    "micromamba/envs/work/lib/R/etc/Renviron.site",
    "micromamba/envs/work/lib/R/etc/Rprofile.site",
    ".asdf/installs/java/8/jre/lib/management/jmxremote.password",
    ".cargo/env",
    ".local/lib/python3.12/site-packages/ruff-1.dist-info/direct_url.json",
    ".nvm/versions/node/v22.1.0/lib/node_modules/.package-lock.json",
    ".local/lib/node_modules/.package-lock.json",
)
# Settings by names of their own, which hold credentials in forms of their own.
SETTINGS = {
    ".local/share/mise/installs/tool/.mise.backend": "asdf:https://user:secret@git.example/plugin",
    ".local/share/mise/installs/.mise-installs.toml": 'full = "asdf:https://u:secret@git.example"',
    ".local/share/uv/python/cpython/lib/python3.12/distutils/distutils.cfg": (
        "[easy_install]\nindex_url = https://user:secret@packages.example/simple"
    ),
    ".nvm/versions/node/v22.1.0/lib/node_modules/tool/package.json": (
        '{"_resolved": "https://user:secret@packages.example/tool.tgz"}'
    ),
    ".nvm/default-packages": "git+https://secret@git.example/tool",
    ".pyenv/versions/3.11.7/etc/jupyter/jupyter_server_config.py": 'c.ServerApp.token = "secret"',
    ".pyenv/versions/3.11.7/etc/odbc.ini": "[db]\nPWD=secret",
    "micromamba/envs/work/etc/jupyter/jupyter_server_config.d/own.json": '{"token": "secret"}',
    "micromamba/envs/work/etc/conda/activate.d/own.sh": "export API_TOKEN=secret",
    "micromamba/envs/work/ssl/private/key.pem": "secret",
    "micromamba/envs/work/.pgpass": "secret",
    ".sdkman/candidates/tomcat/9/conf/server.xml": '<Connector keystorePass="secret"/>',
    ".sdkman/candidates/spark/3/conf/spark-defaults.conf": "spark.hadoop.fs.s3a.secret.key secret",
    ".sdkman/candidates/spark/3/conf/spark-env.sh": "export AWS_SECRET_ACCESS_KEY=secret",
    ".sdkman/candidates/hadoop/3/etc/hadoop/core-site.xml": (
        "<name>fs.s3a.secret.key</name>\n<value>secret</value>"
    ),
    ".sdkman/candidates/activemq/5/conf/users.properties": "admin=secret",
    ".rbenv/bundle/config": 'BUNDLE_GEMS__EXAMPLE: "user:secret"',
}
# What is beside them is needed.
OTHER_FILES = (
    ".sdkman/candidates/spark/3/conf/log4j.properties",
    ".rbenv/versions/3.4.1/lib/ruby/gems/3.4.0/gems/tool-1/lib/tool.rb",
    ".nvm/versions/node/v22.1.0/lib/node_modules/npm/package.json",
    "go/pkg/mod/cache/download/tool/@v/v1.0.0.zip",
    "go/pkg/mod/golang.org/x/tools@v1.0.0/go/vcs/vcs.go",
    "miniconda3/conda-meta/history",
    ".cargo/git/db/other-1/config",
    ".sdkman/candidates/gradle/8.5/lib/gradle.jar",
    ".asdf/installs/golang/1.22.0/packages/pkg/mod/golang.org/x/tools@v1.0.0/tools.go",
    ".local/share/uv/tools/ruff/lib/python3.12/site-packages/other-1.dist-info/direct_url.json",
    "micromamba/envs/work/conda-meta/history",
    ".asdf/installs/java/8/jre/lib/management/management.properties",
    ".local/lib/python3.12/site-packages/other-1.dist-info/direct_url.json",
)
# Managers make links to a version, by which its files have a second path.
VERSION_LINKS = {
    ".local/share/mise/installs/node/22": "./22.1.0",
    ".sdkman/candidates/maven/current": "3.9.9",
    ".nvm/current": "versions/node/v22.1.0",
}
CREDENTIALS_BEHIND_LINKS = (
    ".local/share/mise/installs/node/22/etc/npmrc",
    ".sdkman/candidates/maven/current/conf/settings.xml",
    ".nvm/current/etc/npmrc",
    ".nvm/elsewhere/notes",
    ".nvm/registry",
)
PROGRAMS = (
    ".local/bin",
    ".local/share/uv/tools/ruff/bin",
    ".cargo/bin",
    ".nvm/versions/node/v22.1.0/bin",
    ".asdf/installs/nodejs/22.1.0/bin",
    ".volta/tools/image/node/22.1.0/bin",
    ".fnm/node-versions/v22.1.0/installation/bin",
    ".sdkman/candidates/maven/3.9.9/bin",
    ".rbenv/versions/3.4.1/bin",
    ".pyenv/versions/3.11.7/bin",
    ".rustup/toolchains/stable/bin",
    "miniconda3/bin",
    "micromamba/envs/work/bin",
    ".conda/envs/work/bin",
    ".local/share/mise/installs/node/22.1.0/bin",
    ".local/share/pipx/venvs/black/bin",
    ".bun/bin",
    "go/bin",
    *(f"{link}/bin" for link in VERSION_LINKS),
)


@pytest.fixture
def homes() -> Iterator[Path]:
    """A folder for homes of users. Not in /tmp, which is another one inside bubblewrap."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


async def test_credentials_beside_tools_are_not_readable(probe: SandboxProbe, homes: Path) -> None:
    home = homes / "user"
    for name in CREDENTIALS:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        login = "packages.example/t/secret" if "conda" in name else "user:secret@packages.example"
        (home / name).write_text(f"url = https://{login}/simple\n")
    for name, text in SETTINGS.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    for name in OTHER_FILES:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("needed\n")
    for link, target in VERSION_LINKS.items():
        (home / link).symlink_to(target)
    (home / "private").mkdir()
    (home / "private" / "notes").write_text("a secret\n")
    (home / ".nvm" / "elsewhere").symlink_to(home / "private")
    (home / ".nvm" / "versions" / "above").symlink_to("..")
    (home / "private" / ".npmrc").write_text("a secret\n")
    (home / ".nvm" / "registry").symlink_to(home / "private" / ".npmrc")
    for number, folder in enumerate(PROGRAMS):
        (home / folder).mkdir(parents=True, exist_ok=True)
        (home / folder / f"tool{number}").write_text("#!/bin/sh\necho works\n")
        (home / folder / f"tool{number}").chmod(0o755)
    path = ":".join([*(str(home / folder) for folder in PROGRAMS), "/usr/bin", "/bin"])
    sandbox = with_environment(probe.sandbox, {"PATH": path, "HOME": str(home)})
    done = await msgspec.structs.replace(probe, sandbox=sandbox).run(
        "\n".join(
            [
                *(f"cat {home / name} 2>/dev/null" for name in (*CREDENTIALS, *SETTINGS)),
                *(f"cat {home / name} 2>/dev/null" for name in CREDENTIALS_BEHIND_LINKS),
                *(f"cat {home / name}" for name in OTHER_FILES),
                *(f"tool{number}" for number in range(len(PROGRAMS))),
            ]
        )
    )
    assert done.output == "needed\n" * len(OTHER_FILES) + "works\n" * len(PROGRAMS)


async def test_pyenv_of_another_home_works(probe: SandboxProbe, homes: Path) -> None:
    """With HOME elsewhere than the pyenv on PATH, a shim still finds its Python."""
    pyenv = homes / "other" / ".pyenv"
    for folder in ("shims", "versions/3.11.7/bin", "libexec"):
        (pyenv / folder).mkdir(parents=True)
    programs = {
        "shims/python3": f'exec "{pyenv}/libexec/pyenv" exec python3 "$@"',
        "libexec/pyenv": 'exec "$PYENV_ROOT/versions/$(cat $PYENV_ROOT/version)/bin/python3"',
        "versions/3.11.7/bin/python3": "echo python works",
    }
    for name, text in programs.items():
        (pyenv / name).write_text(f"#!/bin/sh\n{text}\n")
        (pyenv / name).chmod(0o755)
    (pyenv / "version").write_text("3.11.7\n")
    (homes / "user").mkdir()
    environment = {"PATH": f"{pyenv}/shims:/usr/bin:/bin", "HOME": str(homes / "user")}
    sandbox = with_environment(probe.sandbox, environment)
    done = await msgspec.structs.replace(probe, sandbox=sandbox).run("python3 --version")
    assert (done.exit_code, done.output) == (0, "python works\n")
