"""The command demo: the embedded model at real work, a recorded session, and a scripted fan-out."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from retinue.app import open_runtime
from retinue.config.environment import Environment
from retinue.domain.events import Event, RunStarted
from retinue.domain.result import Result
from retinue.domain.run_state import fold
from retinue.errors import ProviderError, UsageError
from retinue.interfaces.cli.commands.records import audit, runs
from retinue.interfaces.cli.commands.show import show
from retinue.interfaces.cli.options import as_json as json_option
from retinue.interfaces.cli.terminal.console import Console, Interrupts, perform
from retinue.interfaces.cli.terminal.demo_output import Stage
from retinue.model_registry import embedded_model
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, Step
from retinue.models.scripted.script_file import parse_script
from retinue.ports.listeners import Listeners
from retinue.ports.model import Model
from retinue.project import STATE_DIR, open_run
from retinue.runtime.delegation.task import Task

AT_A_TIME = 3
MAX_TOKENS = 100_000
REPORT = "report.md"

QUESTIONS = {
    "README.md": "In one sentence: what is snip?",
    "docs/hosting.md": "In one sentence: what does snip need to run?",
    "docs/privacy.md": "In one sentence: what does snip store?",
    "docs/abuse.md": "In one sentence: what is done about a harmful link?",
    "docs/history.md": "In one sentence: who was snip made for?",
}
READERS = tuple(
    Task(role="reader", task=question, context_files=(file,))
    for file, question in QUESTIONS.items()
)
LOOKERS = (
    Task(role="researcher", task="How are short codes made, and can two links get the same one?"),
    Task(role="researcher", task="What does the README promise that the code does not do?"),
    Task(role="reviewer", task="Review snip/server.py for security problems."),
    Task(role="researcher", task="Which functions have no test?"),
    Task(role="planner", task="Say in one line what each file is for.", max_tool_calls=4),
)
INTRODUCTION = """
A small repository comes with retinue: snip, a URL shortener with a few pages of documentation.
Children look at it, three at a time, in a directory made for this.
"""
REAL = """
Each of five children is given a page along and one question. The model is real and runs here:
SmolLM2 with 135 million parameters, in about 350 MB. It is the smallest that answers at all,
and some of its answers are wrong; a better one goes the same way.
"""
REPLAYED = """
This is a replay, of a session that was recorded on {date} with retinue {version}. The command did
what you see; only the words of its model were written beforehand, as a stronger one might say
them (docs/session.py in the source). An agent asks two children, then three write, each in a copy
of the repository, and are merged. The user edits a line meanwhile that one of them changes. While
the last is at work the process is killed, by SIGKILL, and `retinue resume` goes on.
"""
SCRIPTED = """
Now it happens here, and again the words of the model were written beforehand. The tools, contracts,
budgets, journal and audit are real. Four of the five children will meet a difficulty.
"""
SESSION = "session.retinue"
LONGEST_PAUSE_S = 1.0

NEXT = """\
In a project of yours, the embedded model, which answers from files that it is
given, and looks at nothing by itself:

  retinue spawn researcher -m embedded -f README.md \\
    "What is this about? Answer in one sentence."

A local server (llama.cpp; Ollama has port 11434, LM Studio 1234, vLLM 8000):

  export RETINUE_MODEL=openai:MODEL@http://127.0.0.1:8080/v1

or a cloud key:

  export OPENAI_API_KEY=…
  export RETINUE_MODEL=openai:gpt-5-mini

and then, in a project of yours:

  retinue run "What does this project do?"
  retinue fan-out "How is it tested?" "How is it configured?"
"""


@click.command()
@click.option("--keep", metavar="DIR", help="Work in this new directory, and leave it there.")
@click.option("--fast", is_flag=True, help="Do not wait between the replies of the script.")
@json_option
def demo(keep: str | None, fast: bool, as_json: bool) -> int:
    """See children at work on a small bundled repository, with no model server and no key.

    First the embedded model, where it is installed; then a recorded session; then a scripted model.

    Example: retinue demo --keep /tmp/snip
    """
    with _directory(keep) as root, tempfile.TemporaryDirectory(prefix="retinue-demo-") as home:
        copy(bundled() / "snip", root)
        show_it = _Demo(root, Path(home), fast=fast, as_json=as_json)
        show_it.play()
        if not as_json:
            _print_next(show_it.stage, show_it.run_id, keep)
    return 0


class _Demo:
    """The acts, in order."""

    def __init__(self, root: Path, home: Path, *, fast: bool, as_json: bool) -> None:
        self.stage = Stage(shutil.get_terminal_size().columns)
        self.run_id = ""
        self._root = root
        self._home = home
        self._fast = fast
        self._console = Console(as_json=as_json, quiet=False)

    def play(self) -> None:
        self._tell("retinue demo", INTRODUCTION)
        for act in (self._answer, self._play_back, self._look):
            act()

    def _answer(self) -> None:
        self._tell("Act one: a real model answers from files", REAL)
        user, progress = Environment.current(), self._console.progress

        async def work() -> list[Result]:
            # By the user's own settings of pip, which the runtime of the demo does not see.
            model = embedded_model(user)
            async with progress.shown():
                await model.open(_once_each(progress.wait))
                results = await self._fan_out(READERS, model, progress.listen, progress.hear)
                progress.finish()
            return results

        try:
            results = self._perform(work())
        except (UsageError, ProviderError) as error:
            self._tell("", f"Left out: {error}")
            return
        self._report(results, counted=True)
        report = [f"# {file}\n\n{r.response}\n" for file, r in zip(QUESTIONS, results, strict=True)]
        (self._root / REPORT).write_text("\n".join(report), "utf-8")
        if not self._console.as_json:
            self.stage.text(f"All of it is in {REPORT}.")

    def _play_back(self) -> None:
        # Where the agents of the next act do not look.
        file = self._root / STATE_DIR / SESSION
        file.parent.mkdir(exist_ok=True)
        file.write_bytes((bundled() / SESSION).read_bytes())
        events = perform(_events(file))
        first = events[0]
        assert isinstance(first.fact, RunStarted)
        date = time.strftime("%d %B %Y", time.gmtime(first.time)).lstrip("0")
        told = REPLAYED.format(date=date, version=first.fact.retinue_version)
        self._tell("Act two: a session that was recorded", told)
        for before, event in pairwise([first, *events]):
            if not self._fast and not self._console.as_json:
                time.sleep(min(event.time - before.time, LONGEST_PAUSE_S))
            self._watch(event)
        if not self._console.as_json:
            click.echo()
            self.stage.text(fold(events).agents[first.agent_id].response)
            _print_said(self.stage, show, self._root, str(file))
            _print_said(self.stage, audit, self._root, str(file))

    def _look(self) -> None:
        self._tell("Act three: a fan-out that meets difficulties", SCRIPTED)
        model = scripted_model(fast=self._fast)
        results = self._perform(self._fan_out(LOOKERS, model, self._watch))
        self._report(results)
        self.run_id = results[0].run_id
        if not self._console.as_json:
            _print_journal(self.stage, self._root, self.run_id)

    def _perform(self, work: Coroutine[Any, Any, list[Result]]) -> list[Result]:
        async def inside() -> list[Result] | None:
            interrupts = Interrupts()
            try:
                with interrupts:
                    return await work
            except asyncio.CancelledError:
                if not interrupts.happened:
                    raise
                return None

        results = perform(inside())
        if results is None:
            click.echo("retinue: interrupted; every agent was closed.", err=True)
            raise click.exceptions.Exit(130)
        return results

    async def _fan_out(
        self,
        tasks: Sequence[Task],
        model: Model,
        on_event: Callable[[Event], None],
        on_words: Callable[[str, str], None] = lambda *_: None,
    ) -> list[Result]:
        async with open_runtime(
            self._root,
            model=model,
            limits={"max_tokens": MAX_TOKENS},
            shell=False,
            listeners=Listeners(
                on_event=on_event, on_child_text=lambda _, agent, text: on_words(agent, text)
            ),
            # The same for everybody: neither the user's settings nor variables count here.
            environment=Environment(variables={"HOME": str(self._home)}),
        ) as runtime:
            return await runtime.fan_out(tasks, max_concurrent=AT_A_TIME)

    def _watch(self, event: Event) -> None:
        if self._console.as_json:
            self._console.progress.listen(event)
        else:
            self.stage.watch(event)

    def _tell(self, heading: str, text: str) -> None:
        if self._console.as_json:
            return
        if heading:
            click.echo()
            self.stage.heading(heading)
        self.stage.text(text)
        click.echo()

    def _report(self, results: list[Result], *, counted: bool = False) -> None:
        if not self._console.as_json:
            self.stage.results(results, max_tokens=MAX_TOKENS, counted=counted)


def _once_each(tell: Callable[[str], None]) -> Callable[[str], None]:
    told = ""

    def once(text: str) -> None:
        nonlocal told
        if text != told:
            tell(text)
        told = text

    return once


def scripted_model(*, fast: bool) -> ScriptedModel:
    """The model of the demonstration; a `fast` one answers at once."""
    text = (bundled() / "script.json").read_text("utf-8")
    script = parse_script(text, source="script.json")
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


def _at_once(step: Step) -> Step:
    return step.after(0.0) if isinstance(step, ScriptedReply) else step


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


async def _events(file: Path) -> list[Event]:
    async with open_run(".", str(file)) as (store, run_id):
        return list(await store.events(run_id))


def _print_journal(stage: Stage, root: Path, run_id: str) -> None:
    click.echo()
    stage.heading("What is on record")
    _print_said(stage, runs, root)
    _print_said(stage, show, root, run_id)
    _print_said(stage, audit, root, run_id)
    click.echo(
        "\nThe run is an error, since one child ended at its limit; what it had is kept.\n"
        "Every event is chained to the one before: audit finds any that was changed."
    )


def _print_said(stage: Stage, command: click.Command, root: Path, *run: str) -> None:
    """What another command says here; of files the name is shown, without the folder."""
    said = io.StringIO()
    with redirect_stdout(said):
        context = click.get_current_context()
        context.invoke(command, directory=str(root), **({"run": run[0]} if run else {}))
    shown = " ".join(os.path.basename(word) for word in run)
    click.secho(f"\n$ retinue {command.name} {shown}".rstrip(), bold=True)
    stage.lines(said.getvalue())


def _print_next(stage: Stage, run_id: str, keep: str | None) -> None:
    click.echo()
    if keep is None:
        click.echo("All this was in a temporary directory, gone by now; --keep DIR keeps it.\n")
    stage.heading("What next")
    if (first := _on_path()) is not None:
        click.echo(f"Have it found by its name, from any directory:\n\n  {first}\n")
    if keep is not None:
        click.echo(f"Look into one child:\n\n  retinue show {run_id} a3 -C {keep}\n")
    click.echo(NEXT, nl=False)


def _on_path() -> str | None:
    """What to type so that the name alone finds this program; None where it does."""
    called = sys.argv[0]
    if os.path.basename(called) != "retinue" or shutil.which("retinue") is not None:
        return None
    folder = os.path.dirname(os.path.abspath(called))
    below = os.path.relpath(folder)
    shown = folder if below.startswith(os.pardir) else f"$PWD/{below}"
    return f'export PATH="{shown}:$PATH"'
