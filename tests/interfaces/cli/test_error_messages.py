"""Errors have one line, a way out and the right exit code."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.models.scripted.model import say
from retinue.testing.server import (
    Answering,
    Framing,
    Response,
    ResponseEnding,
    chunk,
    events,
    failing,
    streamed,
)

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Done, Script, Serve


OK = "steps: [{say: ok}]"


# The command line


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("run", ""), "The task is empty; say what the agent should do."),
        (("run", " \n "), "The task is empty; say what the agent should do."),
        (("spawn", "researcher", ""), "The task is empty; say what the agent should do."),
        (("fan-out", "x", ""), "The task is empty; say what the agent should do."),
        (("fan-out",), 'No tasks. Give them as arguments: retinue fan-out "…" "…".'),
        (
            ("spawn", "cook", "x"),
            "Unknown role 'cook'; there are: executor, general, planner, researcher, reviewer,"
            " tester.",
        ),
        (
            ("fan-out", "-r", "cook", "x"),
            "Unknown role 'cook'; there are: executor, general, planner, researcher, reviewer,"
            " tester.",
        ),
        (("run", "--max-turns", "0", "x"), "max_turns must be positive, not 0."),
        (("run", "--max-tokens", "0", "x"), "max_tokens must be positive, not 0."),
        (
            ("spawn", "planner", "--max-tool-calls", "0", "x"),
            "max_tool_calls must be positive, not 0.",
        ),
        (("run", "--timeout", "1", "x"), "timeout_s must be at least 5 seconds, not 1."),
        (("run", "--max-cost-usd", "0", "x"), "max_cost_usd must be positive, not 0."),
        (("fan-out", "--max-concurrent", "0", "x"), "max_concurrent must be at least 1, not 0."),
        (("run", "-C", "nowhere", "x"), "There is no directory 'nowhere'."),
        (("run", "-C", "script.yaml", "x"), "'script.yaml' is a file, not a directory."),
        (("run",), "Give either a TASK or --plan FILE."),
        (("run", "--bogus", "x"), "No such option '--bogus'. See `retinue run --help`."),
        (
            ("run", "--max-turns", "many", "x"),
            "Invalid value for '--max-turns': 'many' is not a valid integer."
            " See `retinue run --help`.",
        ),
        (
            ("run", "--mode", "yolo", "x"),
            "Invalid value for '--mode': 'yolo' is not one of 'plan', 'normal', 'auto',"
            " 'dangerous'. See `retinue run --help`.",
        ),
    ],
)
def test_wrong_command_line(cli: Cli, script: Script, argv: tuple[str, ...], message: str) -> None:
    command, *rest = argv
    done = cli(command, "-m", script(OK), *rest)
    assert done == (2, "", f"retinue: {message}\n")


def test_a_message_of_click_without_a_full_stop_gets_one(cli: Cli) -> None:
    message = "Got unexpected extra argument (x). See `retinue stats --help`."
    assert cli("stats", "x") == (2, "", f"retinue: {message}\n")


def test_unknown_command(cli: Cli) -> None:
    assert cli("rnu") == (
        2,
        "",
        "retinue: There is no command 'rnu'. Did you mean 'run'? See `retinue --help`.\n",
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("opnai:gpt", "Unknown provider 'opnai' in model 'opnai:gpt'; write openai:…"),
        ("openai:", "No model in 'openai:'. Write openai:MODEL@http://HOST:PORT/v1."),
        (
            "openai:m@localhost:8080",
            "'localhost:8080' in model 'openai:m@localhost:8080' is not a web address;"
            " write openai:MODEL@http://HOST:PORT/v1.",
        ),
        (
            "openai:m@http://me:secret@localhost/v1",
            "Put the key into OPENAI_API_KEY, not into the model's address.",
        ),
        (
            "openai:gpt",
            "Model 'gpt' needs a key: set OPENAI_API_KEY; or name a server of your own:"
            " -m openai:gpt@http://127.0.0.1:8080/v1.",
        ),
        ("scripted:", "Name the script: scripted:FILE.yaml."),
    ],
)
def test_wrong_model(cli: Cli, project: Path, model: str, message: str) -> None:
    assert cli("run", "-m", model, "x") == (2, "", f"retinue: {message}\n")
    assert not (project / ".retinue").exists(), "nothing was begun"


def test_missing_script(cli: Cli, project: Path) -> None:
    done = cli("run", "-m", "scripted:none.yaml", "x")
    place = project / "none.yaml"
    assert done == (2, "", f"retinue: Cannot read the script {place}: No such file or directory.\n")


# Settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = \n", "line 1, column 9: Invalid value."),
        ("colour = 1\n", "line 1, key colour: unknown key 'colour'."),
        (
            'mode = "auto"\nmax_concurrent = "3"\n',
            "line 2, key max_concurrent: expected `int | null`, got `str`.",
        ),
        (
            "[budget]\nmax_turns = 0\n",
            "line 2, key budget.max_turns: max_turns must be positive, not 0.",
        ),
        ("max_concurrent = 0\n", "line 1, key max_concurrent: must be at least 1, not 0."),
    ],
)
def test_invalid_settings_are_an_error(
    cli: Cli, script: Script, project: Path, text: str, message: str
) -> None:
    (project / "retinue.toml").write_text(text)
    done = cli("run", "-m", script(OK), "x")
    assert done == (2, "", f"retinue: {project / 'retinue.toml'}: {message}\n")


def test_wrong_mode_in_the_environment(
    cli: Cli, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_MODE", "yolo")
    done = cli("run", "-m", script(OK), "x")
    message = "Unknown mode 'yolo'; there are: plan, normal, auto, dangerous."
    assert done == (2, "", f"retinue: {message}\n")


# The journal


def test_journal_is_no_database(cli: Cli, script: Script, project: Path) -> None:
    (project / ".retinue").mkdir()
    (project / ".retinue" / "retinue.db").write_text("This is not a database. " * 100)
    done = cli("run", "-m", script(OK), "x")
    place = project / ".retinue" / "retinue.db"
    assert done == (
        1,
        "",
        f"retinue: {place} is damaged or not a database; restore it or move it away.\n",
    )


def test_state_directory_is_a_file(cli: Cli, script: Script, project: Path) -> None:
    (project / ".retinue").write_text("")
    done = cli("run", "-m", script(OK), "x")
    assert done == (1, "", f"retinue: {project / '.retinue'} cannot be written (File exists).\n")


# The server


def ended(cli: Cli, model: str, *options: str) -> Done:
    """A run that fails. Without -q, the reason is still one line, after what led to it."""
    return cli("run", "-q", "-m", model, *options, "x")


HTML = Response(
    body=b"<!doctype html><title>Router</title><p>Welcome",
    headers={"content-type": "text/html"},
    framing=Framing.LENGTH,
)
BROKEN_OFF = Response(body=events(chunk({"content": "Half a sen"})), ending=ResponseEnding.DROP)
BROKEN_JSON = Response(body=b'data: {"choices": [{"del\n\n')


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            HTML,
            "{url} answered a web page, not JSON: is {url} the API's base URL? It usually ends in"
            " /v1.",
        ),
        (
            failing(401, "Incorrect API key provided."),
            "{url} wants an API key (401 Unauthorized). Set one in OPENAI_API_KEY. It said:"
            " Incorrect API key provided.",
        ),
        (
            failing(404, "The model `m` does not exist."),
            "{url} has no model 'm', or no API at that path (404 Not Found). It said: The model `m`"
            " does not exist. Check the model's name, and the address: is the base URL right?",
        ),
    ],
    ids=["html", "401", "404"],
)
def test_permanent_server_error_is_not_retried(
    cli: Cli, serve: Serve, answer: Answering, message: str
) -> None:
    model = serve(answer).model
    message = message.format(url=model.partition("@")[2])
    assert ended(cli, model) == (1, "", f"retinue: error: {message}\n")


@pytest.mark.parametrize(
    ("status", "told", "message"),
    [
        # A key that is wrong.
        (
            401,
            "Access denied due to invalid subscription key.",
            "{url} refused the API key from AZURE_OPENAI_API_KEY (401 Unauthorized). Set a key that"
            " is valid there and may use 'gpt-5-mini'. It said: {told}",
        ),
        # Gemini.
        (
            400,
            "API key not valid. Please pass a valid API key.",
            "{url} refused the API key from AZURE_OPENAI_API_KEY (400 Bad Request). Set a key that"
            " is valid there and may use 'gpt-5-mini'. It said: {told}",
        ),
        # No credit: Anthropic, xAI, Z.ai.
        *(
            (
                status,
                told,
                "The quota at {url} is used up. It said: {told} Add credit to the account of"
                " AZURE_OPENAI_API_KEY, or choose another model with -m.",
            )
            for status, told in (
                (400, "Your credit balance is too low to access the Anthropic API."),
                (403, "Your team has used all available credits."),
                (429, "Insufficient balance or no resource package. Please recharge."),
            )
        ),
        # A model that does not exist: Azure, DeepSeek, OpenRouter.
        *(
            (
                status,
                told,
                "{url} has no model 'gpt-5-mini'. Did you mean gpt-5.4-mini or gpt-5-nano or"
                " gpt-6? Choose with -m, or with `model` in your settings; `retinue models` lists"
                " all.",
            )
            for status, told in (
                (404, "The API deployment for this resource does not exist."),
                (400, "Model Not Exist"),
                (400, "gpt-5-mini is not a valid model ID"),
            )
        ),
        # A model that cannot use tools: Ollama, OpenRouter.
        (
            400,
            "gpt-5-mini does not support tools.",
            "{url} refused the request (400 Bad Request). It said: {told} Choose a model that can"
            " call tools with -m; `retinue models` shows which can.",
        ),
        (
            404,
            "No endpoints found that support tool use.",
            "{url} refused the request (404 Not Found). It said: {told} Choose a model that can"
            " call tools with -m; `retinue models` shows which can.",
        ),
        # A region: OpenAI, Gemini.
        (
            403,
            "Country, region, or territory not supported.",
            "{url} does not serve 'gpt-5-mini' in this region (403 Forbidden). It said: {told}"
            " Change AZURE_OPENAI_ENDPOINT, or choose another model with -m.",
        ),
        (
            400,
            "User location is not supported for the API use.",
            "{url} does not serve 'gpt-5-mini' in this region (400 Bad Request). It said: {told}"
            " Change AZURE_OPENAI_ENDPOINT, or choose another model with -m.",
        ),
        # A version of the API.
        (
            400,
            "API version not supported.",
            "{url} does not accept this version of its API (400 Bad Request). It said: {told}"
            " Change AZURE_OPENAI_ENDPOINT.",
        ),
    ],
)
def test_problem_with_key_model_or_address_names_what_to_change(
    cli: Cli,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    told: str,
    message: str,
) -> None:
    names = ("gpt-5.4-mini", "gpt-5-nano", "gpt-6")
    page = {"data": [{"id": name} for name in names]}
    server = serve(failing(status, told), pages={"/openai/v1/models": page})
    url = server.url.replace("/v1", "/openai/v1")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", url)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-1")
    expected = message.format(url=url, told=told)
    assert ended(cli, "azure:gpt-5-mini") == (1, "", f"retinue: error: {expected}\n")
    assert len(server.requests) == 1


def test_address_of_a_variable_that_answers_a_web_page(
    cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(HTML).url
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    assert ended(cli, "openai:m") == (
        1,
        "",
        f"retinue: error: {url} answered a web page, not JSON: is {url} the API's base URL? It"
        " usually ends in /v1. Correct OPENAI_BASE_URL.\n",
    )


def test_missing_key_names_the_variable(cli: Cli) -> None:
    done = cli("run", "-m", "moonshot:kimi-k3", "x")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("retinue: Model 'kimi-k3' needs a key: set MOONSHOT_API_KEY; or")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            BROKEN_OFF,
            "The reply of {url} broke off in the middle. If it does so again, look into the"
            " server's log.",
        ),
        (
            BROKEN_JSON,
            '{url} sent broken JSON: \'{{"choices": [{{"del\'. If it does so again, look into the'
            " server's log.",
        ),
    ],
    ids=["broken off", "broken JSON"],
)
def test_temporary_server_error_is_retried(
    cli: Cli, serve: Serve, answer: Answering, message: str
) -> None:
    model = serve(*[answer] * 4).model
    message = message.format(url=model.partition("@")[2])
    code, out, err = ended(cli, model)
    waits, resume = err.splitlines()
    assert (code, out, waits) == (1, "", f"retinue: The agent waits for {model}: {message}")
    assert resume.startswith("retinue: the run is suspended; resume with: retinue resume ")


def test_single_server_error_is_retried_with_a_note(cli: Cli, serve: Serve) -> None:
    model = serve(failing(503, "Loading model"), streamed(say("Here."))).model
    done = cli("run", "-m", model, "x")
    assert (done.code, done.out) == (0, "Here.\n")
    assert "It said: Loading model." in done.err
    assert "; again in 0.5s\n" in done.err


def test_run_waits_for_an_unreachable_server(cli: Cli, settings: Callable[[str], Path]) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        # Bound and not listening: nobody else can take it, and it refuses.
        origin = f"http://127.0.0.1:{unused.getsockname()[1]}"
        settings(f'[servers."{origin}"]\npatience_s = 0.4\n')
        done = cli("run", "-m", f"openai:m@{origin}/v1", "x")
    assert (done.code, done.out) == (1, "")
    waits, resume = done.err.splitlines()[-2:]
    gone = f"retinue: The agent waits for openai:m@{origin}/v1: {origin} has been down"
    assert waits.startswith(gone)
    assert f": Cannot reach {origin}/v1: connection refused. Start it again," in waits
    assert resume.startswith("retinue: the run is suspended; resume with: retinue resume ")
    assert "Traceback" not in done.err


@pytest.mark.slow  # The shortest timeout there is, is five seconds.
def test_server_that_hangs(cli: Cli, serve: Serve) -> None:
    model = serve(Response(ending=ResponseEnding.HANG)).model
    done = ended(cli, model, "--timeout", "5")
    assert done == (3, "", "retinue: timeout: timeout after 5 s\n")


def test_key_is_not_sent_to_a_project_endpoint(
    cli: Cli, serve: Serve, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    model = serve(failing(401, "No.")).model
    (project / "retinue.toml").write_text(f'model = "{model}"\n')
    done = cli("run", "-q", "x")
    assert done.code == 1
    assert "wants an API key" in done.err
