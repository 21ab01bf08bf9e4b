"""The command demo: a fan-out over a small bundled repository, with the model scripted."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click
import msgspec

from retinue.app import open_runtime
from retinue.config.environment import Environment
from retinue.domain.events import (
    AgentClosed,
    AgentCreated,
    Event,
    LimitReached,
    ModelFailed,
    ToolDenied,
    ToolFinished,
    ToolStarted,
)
from retinue.domain.projection import AgentView, RunView
from retinue.domain.result import Result
from retinue.errors import UsageError
from retinue.interfaces.cli.console import Interrupts, JsonLines, perform
from retinue.interfaces.cli.options import as_json as json_option
from retinue.interfaces.cli.records import audit, runs
from retinue.interfaces.cli.show import show
from retinue.models.script_file import parse_script
from retinue.models.scripted import Answer, ScriptedModel, Step
from retinue.runtime.facade import Task

AT_A_TIME = 3
MAX_TOKENS = 100_000
WIDEST = 100  # for text that is read, not scanned
TASKS = (
    Task(role="researcher", task="How are short codes made, and can two links get the same one?"),
    Task(role="researcher", task="What does the README promise that the code does not do?"),
    Task(role="reviewer", task="Review snip/server.py for security problems."),
    Task(role="researcher", task="Which functions have no test?"),
    Task(role="planner", task="Say in one line what each file is for.", max_tool_calls=4),
)

INTRODUCTION = """\
Five children look at a small repository, a URL shortener, three at a time.

The model is scripted: what it says comes from a file. The tools, contracts,
budgets, journal and audit are real. Four of the five will meet a difficulty.
"""

NEXT = """\
A local server (llama.cpp; Ollama has port 11434, LM Studio 1234, vLLM 8000):

  export RETINUE_MODEL=openai:MODEL@http://127.0.0.1:8080/v1

or a cloud key:

  export OPENAI_API_KEY=…
  export RETINUE_MODEL=openai:gpt-5-mini

and then, in a project of yours:

  {program} run "What does this project do?"
  {program} fan-out "How is it tested?" "How is it configured?"
"""


@click.command()
@click.option("--keep", metavar="DIR", help="Work in this new directory, and leave it there.")
@click.option("--fast", is_flag=True, help="Do not wait between the model's replies.")
@json_option
def demo(keep: str | None, fast: bool, as_json: bool) -> int:
    """See a fan-out on a small bundled repository, with no model server and no key.

    Example: retinue demo --keep /tmp/snip
    """
    with _directory(keep) as root:
        copy(bundled() / "snip", root)
        stage = Stage(shutil.get_terminal_size().columns)
        if as_json:
            listener = JsonLines().listen
        else:
            listener = stage.watch
            stage.heading("retinue demo")
            click.echo(INTRODUCTION)
        results = perform(_fan_out(root, scripted_model(fast=fast), listener))
        if results is None:
            click.echo("retinue: interrupted; every agent was closed.", err=True)
            return 130
        if not as_json:
            stage.results(results)
            _print_journal(stage, root, results[0].run_id)
            _print_next(stage, results[0].run_id, keep)
    return 0


def scripted_model(*, fast: bool) -> ScriptedModel:
    """The model of the demonstration; a `fast` one answers at once."""
    text = (bundled() / "script.yaml").read_text("utf-8")
    script = parse_script(text, source="script.yaml")
    assert isinstance(script, Mapping)
    if fast:
        script = {match: [_at_once(step) for step in steps] for match, steps in script.items()}
    return ScriptedModel(script, name="scripted:demo", strict=False)


def bundled() -> Traversable:
    """The repository and the script, as they are installed."""
    return files("retinue.interfaces") / "demo"


def copy(source: Traversable, to: Path) -> None:
    to.mkdir(exist_ok=True)
    for item in source.iterdir():
        if item.is_file():
            (to / item.name).write_bytes(item.read_bytes())
        # An installer leaves compiled files beside what it takes for modules.
        elif item.name != "__pycache__":
            copy(item, to / item.name)


class Stage:
    """What a person sees: nothing is wider than the terminal, and long text is wrapped."""

    def __init__(self, columns: int) -> None:
        self._columns = max(40, columns)
        self._view = RunView()

    def heading(self, text: str) -> None:
        click.secho(text, bold=True)

    def lines(self, text: str) -> None:
        for line in text.splitlines():
            click.echo(self._clipped(f"  {line}"))

    def watch(self, event: Event) -> None:
        """Say what happened, if a child did it."""
        self._view.apply(event)
        agent = self._view.agents.get(event.agent_id)
        if agent is None or agent.parent_id is None:
            return
        told = _told(event, agent)
        if told is not None:
            text, color = told
            since_s = event.time - self._view.started_at
            line = self._clipped(f"{since_s:5.1f}s  {agent.id}  {text}")
            click.secho(line, fg=color, dim=color is None)

    def results(self, results: list[Result]) -> None:
        click.echo()
        self.heading("What they found, in the order of the tasks")
        for result in results:
            click.secho(self._clipped(f"\n{result.agent_id}  {result.task}"), bold=True)
            click.echo(
                textwrap.fill(
                    result.response,
                    min(self._columns, WIDEST),
                    initial_indent="    ",
                    subsequent_indent="    ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
            if not result.ok:
                click.secho(
                    f"    {result.status}: {result.error}; this is what it had", fg="yellow"
                )
        click.echo()
        usage = [result.usage for result in results]
        click.echo(
            f"{sum(r.ok for r in results)} of {len(results)} completed"
            f" · {sum(u.turns for u in usage)} turns"
            f" · {sum(u.tool_calls for u in usage)} tool calls\n"
            f"{sum(u.tokens for u in usage):,} of {MAX_TOKENS:,} tokens used, as estimated:"
            " no server counted them"
        )

    def _clipped(self, line: str) -> str:
        return line if len(line) <= self._columns else line[: self._columns - 1] + "…"


def _told(event: Event, agent: AgentView) -> tuple[str, str | None] | None:
    """An event in a few words, with a colour if it should be noticed."""
    fact = event.fact
    match fact:
        case AgentCreated():
            return f"{fact.role}: {fact.title}", "cyan"
        case ToolStarted():
            return f"→ {fact.tool} {_plain(fact.arguments)}", None
        case ToolFinished() if not fact.receipt.ok:
            return f"✗ {fact.content.removeprefix('[ERROR] ')}", "yellow"
        case ToolDenied():
            return f"✗ {fact.tool} denied: {fact.content.removeprefix('[DENIED] ')}", "yellow"
        case ModelFailed() | LimitReached():
            return f"✗ {fact.summary}", "yellow"
        case AgentClosed():
            status = agent.status or fact.final_status
            color = "green" if fact.final_status == "completed" else "yellow"
            return f"{status} after {agent.turn} turns, {agent.usage.tokens:,} tokens", color
        case _:
            return None


def _plain(arguments: str) -> str:
    """The values of a call's arguments, without their names."""
    values = msgspec.json.decode(arguments)
    return " ".join(str(value).strip() for value in values.values())


def _at_once(step: Step) -> Step:
    return step.after(0.0) if isinstance(step, Answer) else step


@contextmanager
def _directory(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="retinue-demo-") as name:
            yield Path(name)
        return
    path = Path(keep).expanduser()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{keep!r} is there already; name a directory that is new or empty.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{keep!r} cannot be made: {error.strerror}.") from error
    yield path


async def _fan_out(
    root: Path, model: ScriptedModel, listener: Callable[[Event], None] | None
) -> list[Result] | None:
    """The children's results, or None if the user interrupted them."""
    interrupts = Interrupts()
    try:
        with interrupts:
            async with open_runtime(
                root,
                model=model,
                limits={"max_tokens": MAX_TOKENS},
                on_event=listener,
                # The same for everybody: neither the user's settings nor variables count here.
                environment=Environment(variables={"HOME": str(root)}),
            ) as runtime:
                interrupts.runtime = runtime
                return await runtime.fan_out(TASKS, max_concurrent=AT_A_TIME)
    except asyncio.CancelledError:
        if not interrupts.happened:
            raise
        return None


def _print_journal(stage: Stage, root: Path, run_id: str) -> None:
    click.echo()
    stage.heading("What is on record")
    context = click.get_current_context()
    for command, arguments in (
        (runs, {}),
        (show, {"run": run_id}),
        (audit, {"run": run_id}),
    ):
        said = io.StringIO()
        with redirect_stdout(said):
            context.invoke(command, directory=str(root), **arguments)
        click.secho(f"\n$ retinue {' '.join([command.name or '', *arguments.values()])}", bold=True)
        stage.lines(said.getvalue())
    click.echo(
        "\nThe run is an error, since one child ended at its limit; what it had is kept.\n"
        "Every event is chained to the one before: audit finds any that was changed."
    )


def _print_next(stage: Stage, run_id: str, keep: str | None) -> None:
    program = _program()
    click.echo()
    if keep is None:
        click.echo("All this was in a temporary directory, gone by now; --keep DIR keeps it.\n")
    else:
        click.echo(f"Look into one child:  {program} show {run_id} a3 -C {keep}\n")
    stage.heading("What next")
    click.echo(NEXT.format(program=program), nl=False)


def _program() -> str:
    """What to type to get this program: its path, where the name alone would not find it."""
    called = sys.argv[0]
    if os.path.basename(called) != "retinue" or shutil.which("retinue") is not None:
        return "retinue"
    return min(called, os.path.relpath(called), key=len)
