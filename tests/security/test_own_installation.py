"""No agent can change retinue itself, though it is installed in the project's own `.venv`."""

from __future__ import annotations

import importlib.machinery
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.project_venv import ProjectVenv, make_project_venv

AUDIT = """
import os, sys
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
def hook(event, arguments):
    found = ()
    if event == "open" and arguments[1] in (None, "r", "rb") and isinstance(arguments[0], str):
        found = [arguments[0]] if arguments[0].endswith((".py", ".pyc", ".so", ".pth")) else ()
    elif event == "import" and arguments[1]:
        found = [arguments[1]]
    elif event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
        found = [word for word in (arguments[0], *arguments[1]) if isinstance(word, str)]
        found = [word for word in found if word.startswith("/")]
    elif event == "ctypes.dlopen" and arguments[0]:
        found = [arguments[0]]
    for path in found:
        os.write(log, (os.path.abspath(path) + chr(10)).encode())
sys.addaudithook(hook)
"""
PLANTED = "import os; open(os.path.expanduser('~/planted'), 'w')\n"


@pytest.fixture(scope="module", params=["full", "reduced"])
def unchanged(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ProjectVenv:
    """One installation for all tests that leave it, and its project, as they were."""
    made = make_project_venv(tmp_path_factory.mktemp("unchanged"), request.param)
    doctor = made.command([str(made.venv / "bin" / "retinue"), "doctor"])
    if f"sandbox: {request.param}" not in doctor.stdout.replace("   ", ""):
        pytest.skip(f"there is no sandbox of tier {request.param} here: {doctor.stdout}")
    return made


@pytest.fixture(scope="module")
def spare() -> dict[str, ProjectVenv]:
    """Installations that an earlier test has left as they were, by tier."""
    return {}


@pytest.fixture
def installed(
    unchanged: ProjectVenv, spare: dict[str, ProjectVenv], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProjectVenv]:
    """An installation of the test's own, which may change it and its project."""
    yield from lend(unchanged.tier, spare, tmp_path_factory)


@pytest.fixture
def fresh(
    spare: dict[str, ProjectVenv], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProjectVenv]:
    """An installation for tests without shell commands, for which the tier does not matter."""
    yield from lend("full", spare, tmp_path_factory)


def lend(
    tier: str, spare: dict[str, ProjectVenv], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProjectVenv]:
    """A new installation has a thousand files, so one that can be restored is used again."""
    made = spare.pop(tier, None) or make_project_venv(tmp_path_factory.mktemp("installed"), tier)
    before = made.state()
    yield made
    if not made.venv.is_symlink() and made.restore(before):
        spare[tier] = made


def targets(installed: ProjectVenv) -> list[str]:
    """Files that Python or retinue runs, existing ones and new ones."""
    packages = installed.site_packages.relative_to(installed.root)
    return [
        f"{packages}/retinue/workspace/grep_process.py",
        f"{packages}/retinue/sandbox/landlock_launcher.py",
        f"{packages}/retinue/new.py",
        f"{packages}/click.py",
        f"{packages}/evil.pth",
        f"{packages}/sitecustomize.py",
        f"{packages}/usercustomize.py",
        f"{packages}/__pycache__/sitecustomize.cpython-311.pyc",
        ".venv/pyvenv.cfg",
        ".venv/bin/python",
        ".venv/bin/python3",
        ".venv/bin/retinue",
        ".venv/bin/git",
        ".venv/lib/python3.99/site-packages/evil.pth",
        ".venv",
    ]


def test_file_tools_cannot_write_it(unchanged: ProjectVenv) -> None:
    before = unchanged.state()
    paths = targets(unchanged)
    paths += [path.replace(".venv", ".VENV") for path in paths]
    paths += [f"./x/../{paths[0]}", str(unchanged.root / paths[0]), f".//{paths[0]}"]
    calls = [("write_file", {"path": path, "content": PLANTED}) for path in paths]
    calls += [
        ("edit_file", {"path": paths[0], "old_text": "import json", "new_text": PLANTED}),
        ("search_files", {"pattern": "hello"}),
    ]
    answers = unchanged.run(calls)
    for path, answer in zip(paths, answers, strict=False):
        assert answer.startswith("[ERROR]"), (path, answer)
    assert "uv tool install retinue" in answers[0]
    assert "--unsafe-writable-install" in answers[0]
    assert "main.py:1" in answers[-1]
    assert unchanged.state() == before
    assert not (unchanged.root / ".VENV").exists()
    assert not (unchanged.home / "planted").exists()


def test_commands_cannot_write_it(installed: ProjectVenv) -> None:
    before = installed.state()
    packages = installed.site_packages.relative_to(installed.root)
    own = f"{packages}/retinue/workspace/grep_process.py"
    commands = [
        *(f"echo {shlex.quote(PLANTED)} > {path}" for path in targets(installed)),
        f"echo x >> {own}",
        f"rm -f {own}",
        f"mv {own} x.py",
        f"ln -f main.py {own}",
        f"ln {own} link.py && echo x >> link.py",
        f"ln -s {own} link.py; echo x >> link.py",
        f"cp -r {packages} copy; mv {packages} away; mv copy {packages}",
        "mv .venv away; mkdir -p .venv/lib; touch .venv/pyvenv.cfg",
        "mv .venv/lib .venv/away",
        "rm -rf .venv",
        "ln -sfn /tmp .venv",
        f"python3 -c \"import os; os.truncate('{own}', 0)\"",
        f"cd {packages}; cd ..; mv site-packages old; mkdir site-packages",
    ]
    calls = [("run_command", {"command": command}) for command in commands]
    answers = installed.run(
        [*calls, ("run_command", {"command": "echo by_an_agent > main.py; cat main.py"})]
    )
    assert answers[-1] == "Exit code 0\nby_an_agent\n"
    assert installed.state() == before
    assert installed.run([("search_files", {"pattern": "^by_an_agent"})]) == [
        "main.py:1: by_an_agent"
    ]
    assert not (installed.home / "planted").exists()


def test_merges_and_redo_cannot_write_it(installed: ProjectVenv) -> None:
    """With the environment in the repository, a child's copy has all of it."""
    for arguments in (["init", "-q"], ["add", "-A", "-f"]):
        assert installed.command(["git", *arguments]).returncode == 0
    before = installed.state()
    packages = installed.site_packages.relative_to(installed.root)
    # In the copy, this is no path of the installation yet.
    attack = f"mkdir -p {packages}/new/x; mv main.py .venv2; rm -rf .venv; mv .venv2 .venv"
    script = installed.home / "script.json"
    steps = [{"call": "run_command", "args": {"command": attack}}, {"say": "done"}]
    script.write_text(json.dumps({"rules": [{"match": "", "steps": steps}]}))
    retinue = str(installed.venv / "bin" / "retinue")
    options = ["--mode", "dangerous", "-m", f"scripted:{script}"]
    installed.command([retinue, "spawn", "executor", *options, "go"])
    assert installed.state() == before
    listed = installed.command([retinue, "runs", "--json"]).stdout
    run_id = json.loads(listed.splitlines()[0])["id"]
    redone = installed.command([retinue, "redo", run_id, "a1"])
    assert installed.state() == before, redone


def test_undo_and_redo_cannot_write_it(fresh: ProjectVenv) -> None:
    """Changes that the user once allowed are not made or taken back without the user's flag."""
    for arguments in (["init", "-q"], ["add", "-A", "-f"]):
        assert fresh.command(["git", *arguments]).returncode == 0
    planted = fresh.site_packages / "planted.py"
    target = planted.relative_to(fresh.root)
    script = fresh.home / "script.json"
    steps = [{"call": "write_file", "args": {"path": str(target), "content": "x"}}, {"say": "done"}]
    script.write_text(json.dumps({"rules": [{"match": "", "steps": steps}]}))
    retinue, allow = str(fresh.venv / "bin" / "retinue"), "--unsafe-writable-install"
    options = ["--mode", "dangerous", "-m", f"scripted:{script}"]
    fresh.command([retinue, "spawn", "executor", *options, allow, "go"])
    assert planted.read_text() == "x"
    listed = fresh.command([retinue, "runs", "--json"]).stdout
    run_id = json.loads(listed.splitlines()[0])["id"]
    refused = fresh.command([retinue, "undo", run_id])
    assert (refused.returncode, planted.exists()) == (1, True)
    assert f"Nothing was undone: '{target}' is off limits" in refused.stderr
    assert fresh.command([retinue, "undo", run_id, allow]).returncode == 0
    assert not planted.exists()
    refused = fresh.command([retinue, "redo", run_id])
    assert (refused.returncode, planted.exists()) == (1, False)
    assert f"'{target}' is off limits" in refused.stderr
    assert fresh.command([retinue, "redo", run_id, allow]).returncode == 0
    assert planted.exists()


def test_nothing_that_a_run_loads_is_writable(installed: ProjectVenv) -> None:
    """Every file that a run opens for import, or starts."""
    log = installed.home / "loaded"
    hook = installed.site_packages / "zz_audit.pth"
    (installed.site_packages / "zz_audit.py").write_text(AUDIT.format(log=str(log)))
    hook.write_text("import zz_audit\n")
    calls = [
        ("search_files", {"pattern": "hello"}),
        ("run_command", {"command": "cat main.py"}),
        ("write_file", {"path": "notes.md", "content": "x"}),
    ]
    installed.run(calls, python=[str(installed.venv / "bin" / "python"), "-m", "retinue"])
    loaded = sorted({line for line in log.read_text().splitlines() if line})
    inside = [path for path in loaded if os.path.realpath(path).startswith(f"{installed.root}/")]
    # Whichever searches on this machine.
    assert any(path.endswith(("/grep_process.py", "/rg")) for path in loaded)
    assert any("/retinue/workspace/__pycache__/search." in path for path in inside)
    before = {path: Path(path).read_bytes() for path in inside if os.path.isfile(path)}
    # In a file, since a command with all names would fill the context window.
    (installed.root / "names").write_text("".join(f"{path}\n" for path in inside))
    command = "while read path; do (echo x >> $path) 2>&- && echo wrote $path; done < names"
    calls = [("write_file", {"path": path, "content": "x"}) for path in inside]
    calls.append(("run_command", {"command": f"{command}; echo over"}))
    answers = []
    for start in range(0, len(calls), 90):
        answers += installed.run(calls[start : start + 90])
    assert all(answer.startswith("[ERROR]") for answer in answers[:-1])
    assert answers[-1] == "Exit code 0\nover\n"
    assert {path: Path(path).read_bytes() for path in before} == before


def test_start_up_modules_of_an_editable_install_cannot_be_written(installed: ProjectVenv) -> None:
    """`pip install -e .` beside retinue: Python imports `src/sitecustomize` at the next start."""
    source = installed.root / "src"
    source.mkdir()
    (installed.site_packages / "__editable__.demo.pth").write_text(f"{source}\n")
    suffixes = importlib.machinery.all_suffixes()
    files = ["src/sitecustomize/__init__.py", *(f"src/sitecustomize{end}" for end in suffixes)]
    code = shlex.quote(PLANTED)
    commands = [
        *(f"mkdir -p $(dirname {path}); echo {code} > {path}" for path in files),
        f"mkdir new; echo {code} > new/sitecustomize.py; mv src away; mv new src",
        f"echo {code} > x.py; ln -s ../x.py src/sitecustomize.py; ln x.py src/sitecustomize.py",
        "python3 -c 'print(1)' 2>&1",
        "echo by_an_agent > main.py; ls -A src",
    ]
    calls = [("write_file", {"path": path, "content": PLANTED}) for path in files]
    calls += [("run_command", {"command": command}) for command in commands]
    answers = installed.run(calls)
    assert "Python imports it when retinue starts" in answers[0]
    assert answers[-2] == "Exit code 0\n1\n"
    assert (installed.root / "main.py").read_text() == "by_an_agent\n"
    assert not list(source.glob("sitecustomize*"))
    installed.run([("list_dir", {})])
    assert not (installed.home / "planted").exists()


def test_link_that_an_editable_install_names_is_not_replaced(installed: ProjectVenv) -> None:
    source, code = installed.root / "source", installed.root / "code"
    code.mkdir()
    (code / "a.py").write_text("")
    source.symlink_to("code")
    (installed.site_packages / "__editable__.demo.pth").write_text(f"{source}\n")
    plant = f"mkdir source; echo {shlex.quote(PLANTED)} > source/sitecustomize.py"
    commands = [f"rm source; {plant}", f"mv source away; {plant}", "echo by_an_agent > code/a.py"]
    installed.run([("run_command", {"command": command}) for command in commands])
    assert (code / "a.py").read_text() == "by_an_agent\n"
    assert source.is_symlink()
    assert not list(source.glob("sitecustomize*"))


def test_folders_of_the_project_are_not_imported_from(fresh: ProjectVenv) -> None:
    """Neither the current directory of `python -m`, nor a folder of PYTHONPATH, nor one of -C."""
    names = ("click", "msgspec", "aiohttp", "yaml", "readline", "retinue_plugin")
    for folder in (fresh.root, fresh.root / "src", fresh.root / "sub" / "src"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / f"{name}.py").write_text(PLANTED + "raise SystemExit(9)\n")
    python = [str(fresh.venv / "bin" / "python"), "-m", "retinue"]
    paths = [f"{fresh.root}/src", f"{fresh.root}/sub/src", "src", ""]
    variables = {"PYTHONPATH": os.pathsep.join(paths)}
    assert fresh.run([("list_dir", {})], python=python, variables=variables)
    assert fresh.run([("list_dir", {})], variables=variables)
    assert fresh.run([("list_dir", {})], "-Csub", variables=variables)
    assert not (fresh.home / "planted").exists()


def test_linked_environment_is_protected_too(installed: ProjectVenv) -> None:
    """`.venv` is a link to a folder of the project; neither link nor folder can be changed."""
    real = installed.root / "envs" / "main"
    real.parent.mkdir()
    installed.venv.rename(real)
    installed.venv.symlink_to("envs/main")
    packages = installed.site_packages.relative_to(installed.venv)
    commands = [
        "rm .venv; mkdir .venv",
        "ln -sfn /tmp .venv",
        "mv .venv away",
        "mv envs away",
        "mv envs/main envs/away; mkdir envs/main",
        f"echo x > envs/main/{packages}/evil.pth",
        f"echo x > .venv/{packages}/evil.pth",
        "echo by_an_agent > main.py",
    ]
    calls = [("run_command", {"command": command}) for command in commands]
    files = (f"envs/main/{packages}/evil.pth", f".venv/{packages}/evil.pth", ".venv", "envs")
    calls += [("write_file", {"path": path, "content": PLANTED}) for path in files]
    installed.run(calls)
    assert os.readlink(installed.venv) == "envs/main"
    assert not (real / packages / "evil.pth").exists()
    assert (installed.root / "main.py").read_text() == "by_an_agent\n"
    assert installed.run([("search_files", {"pattern": "^by_an_agent"})]) == [
        "main.py:1: by_an_agent"
    ]


def test_hard_links_of_its_files_cannot_be_written(installed: ProjectVenv) -> None:
    """Installers link one file into many environments, so that one content has many names."""
    own = installed.site_packages / "retinue" / "workspace"
    other = installed.root / "other" / "site-packages" / "retinue"
    shutil.copytree(own, other, copy_function=os.link)
    before = installed.state()
    commands = [
        "for file in other/site-packages/retinue/*.py; do echo x >> $file; done",
        "mv other moved; for file in moved/site-packages/retinue/*.py; do echo x >> $file; done",
        "echo by_an_agent > main.py",
    ]
    installed.run([("run_command", {"command": command}) for command in commands])
    assert installed.state() == before
    assert (installed.root / "main.py").read_text() == "by_an_agent\n"


def test_user_can_allow_it(installed: ProjectVenv) -> None:
    packages = installed.site_packages.relative_to(installed.root)
    new = {"path": f"{packages}/new.py", "content": "x = 1"}
    change = ("run_command", {"command": f"echo y = 2 >> {packages}/new.py"})
    installed.run([("write_file", new), change], "--unsafe-writable-install")
    assert (installed.site_packages / "new.py").read_text() == "x = 1y = 2\n"


def test_project_cannot_allow_it(fresh: ProjectVenv) -> None:
    (fresh.root / "retinue.toml").write_text("unsafe_writable_install = true\n")
    retinue = str(fresh.venv / "bin" / "retinue")
    done = fresh.command([retinue, "run", "-m", "scripted:x.json", "go"])
    assert done.returncode == 2
    assert "unsafe_writable_install" in done.stderr


def test_settings_and_trust_decisions_in_a_home_cannot_be_written(installed: ProjectVenv) -> None:
    """With a home as workspace, they are inside of it."""
    home = installed.root
    settings, trust = home / ".config" / "retinue", home / ".local" / "state" / "retinue"
    settings.mkdir(parents=True)
    (settings / "config.toml").write_text("max_depth = 1\n")
    (home / "src").mkdir()
    retinue = str(installed.venv / "bin" / "retinue")
    variables = {"HOME": str(home), "RETINUE_KEY_FILE": str(installed.home / "key")}
    assert installed.command([retinue, "trust"], variables).returncode == 0
    before = {path: path.read_bytes() for path in trust.rglob("*") if path.is_file()}
    paths = [".config/retinue/config.toml", ".local/state/retinue/trust/x.json", ".config/retinue"]
    commands = [
        *(f"echo x > {path}" for path in paths),
        "mv .config .old; mkdir -p .config/retinue; echo x > .config/retinue/config.toml",
        "rm -rf .local/state/retinue",
        "mv .local/state/retinue src/state",
        "echo by_an_agent > main.py",
    ]
    calls = [("write_file", {"path": path, "content": "x"}) for path in paths]
    calls += [("run_command", {"command": command}) for command in commands]
    answers = installed.run(calls, variables=variables)
    assert all("belongs to retinue" in answer for answer in answers[: len(paths)])
    assert (settings / "config.toml").read_text() == "max_depth = 1\n"
    after = {path: path.read_bytes() for path in before}
    assert after == before
    assert (home / "main.py").read_text() == "by_an_agent\n"
