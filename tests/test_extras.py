"""What works without the extras, and the errors where one is missing."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import retinue
from retinue.errors import ContractError, MissingExtra
from retinue.extras import EXTRAS, install_command, is_installed, require
from retinue.interfaces.cli.main import main
from retinue.models.scripted.model import call, say

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Finding(msgspec.Struct):
    file: str
    line: int


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("RETINUE_", "OPENAI_", "ANTHROPIC_", "OLLAMA_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", f"{tmp_path}-home")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no extra were installed: Python says of such modules that they are not there."""
    for modules in EXTRAS.values():
        for module in modules:
            monkeypatch.setitem(sys.modules, module, None)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[object, str, str]]:
    def call(*argv: str) -> tuple[object, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(argv)
        return ended.value.code, *capsys.readouterr()

    return call


Cli = Callable[..., tuple[object, str, str]]


def test_extras_are_those_of_the_package() -> None:
    declared = PROJECT["optional-dependencies"]
    assert declared.keys() == {*EXTRAS, "full"}
    assert declared["full"] == ["retinue[terminal,mcp,formats,images,code,pdf,web]"]
    for extra, modules in EXTRAS.items():
        # The embedded model works without its adapter, so nothing says that it is missing.
        more = 1 if extra == "embedded" else 0
        assert len(declared[extra]) == len(modules) + more


def test_all_but_the_embedded_model_postgres_and_ray_are_installed_for_tests() -> None:
    missing = {extra for extra in EXTRAS if not is_installed(extra)}
    assert missing <= {"embedded", "postgres", "ray"}
    require("terminal", "The chat")


@pytest.mark.usefixtures("_core_alone")
@pytest.mark.parametrize("extra", EXTRAS)
def test_missing_extra_is_named_with_its_install_command(extra: str) -> None:
    with pytest.raises(MissingExtra, match=r"^It is not installed: pip install 'retinue\[\w+\]'.$"):
        require(extra, "It")
    assert install_command(extra) == f"pip install 'retinue[{extra}]'"


@pytest.mark.usefixtures("_core_alone")
def test_chat_needs_an_extra(cli: Cli) -> None:
    message = "retinue: The chat is not installed: pip install 'retinue[terminal]'.\n"
    assert cli("chat") == (2, "", message)


@pytest.mark.usefixtures("_core_alone")
def test_a_ray_cluster_needs_an_extra(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('{"steps": [{"say": "Hello."}]}')
    for cluster in ("auto", "head:6379"):
        code, out, err = cli("run", "-m", "scripted:script.json", "Greet me", "--cluster", cluster)
        assert (code, out) == (2, "")
        assert err == (
            "retinue: Ray, which runs children on other machines, is not installed:"
            " pip install 'retinue[ray]'.\n"
        )


@pytest.mark.usefixtures("_core_alone")
def test_core_reads_scripts_in_yaml_and_json(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text("steps: [{say: Hello.}]")
    code, out, _ = cli("run", "-q", "-m", "scripted:script.yaml", "Greet me")
    assert (code, out) == (0, "Hello.\n")
    steps = [
        {"call": "list_dir", "args": {"path": "."}, "tokens": {"in": 9, "out": 1}},
        {"calls": [{"call": "list_dir"}]},
        {"say": 42},
    ]
    (tmp_path / "script.json").write_text(json.dumps({"steps": steps}))
    code, out, _ = cli("run", "-q", "-m", "scripted:script.json", "Greet me")
    assert (code, out) == (0, "42\n")


@pytest.mark.usefixtures("_core_alone")
def test_run_works_without_mcp_servers(cli: Cli, tmp_path: Path) -> None:
    settings = Path(f"{tmp_path}-home") / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[mcp.time]\ncommand = "no-such-command"\n')
    (tmp_path / "script.json").write_text('{"steps": [{"say": "Hello."}]}')
    code, out, err = cli("run", "-m", "scripted:script.json", "Greet me")
    assert (code, out) == (0, "Hello.\n")
    assert "without the MCP server time: it needs pip install 'retinue[mcp]'" in err


@pytest.mark.usefixtures("_core_alone")
def test_doctor_reports_missing_extras(cli: Cli) -> None:
    _, out, _ = cli("doctor")
    told = [line for line in out.splitlines() if "extras:" in line]
    assert told == [
        f"note     extras: {extra} is not installed"
        for extra in ("terminal", "mcp", "formats", "images", "pdf", "web", "otel", "code")
    ]


@pytest.mark.usefixtures("_core_alone")
async def test_output_schema_needs_an_extra(tmp_path: Path) -> None:
    needs = r"^What checks an output schema is not installed: pip install 'retinue\[formats\]'\.$"
    async with retinue.open(tmp_path, model=retinue.ScriptedModel([])) as rt:
        with pytest.raises(ContractError, match=needs):
            await rt.spawn("reviewer", "Where?", output=Finding)


@pytest.mark.usefixtures("_core_alone")
async def test_model_that_needs_an_extra_is_an_error(tmp_path: Path) -> None:
    wanted = call("spawn_agent", role="reviewer", task="Where?", output_schema={"type": "object"})
    model = retinue.ScriptedModel([wanted, say("Then not.")])
    async with retinue.open(tmp_path, model=model) as rt:
        assert (await rt.run("Look.")).ok
    assert "What checks an output schema is not installed" in str(model.requests[1].messages[-1])
