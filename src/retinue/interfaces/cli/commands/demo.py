"""`retinue demo`: the embedded model does a job, a session is replayed, a fan-out fails."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, redirect_stdout
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import click

from retinue.app import open_runtime
from retinue.config.environment import Environment, replaced_variables
from retinue.domain.events import Event, FilesChanged, RunStarted, WorktreeCreated
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Result
from retinue.domain.run_state import fold
from retinue.embedded.adapter import installed_adapter
from retinue.errors import ProviderError, UsageError
from retinue.interfaces.cli.commands.audit import audit
from retinue.interfaces.cli.commands.diff import diff
from retinue.interfaces.cli.commands.runs import runs
from retinue.interfaces.cli.commands.show import show
from retinue.interfaces.cli.commands.undo import undo
from retinue.interfaces.cli.event_loop import run_async
from retinue.interfaces.cli.options import json_events_option
from retinue.interfaces.cli.terminal.console import Console
from retinue.interfaces.cli.terminal.demo_output import DemoOutput
from retinue.interfaces.cli.terminal.interrupts import Interrupts
from retinue.model_registry import embedded_model
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, Step
from retinue.models.scripted.script_file import parse_script
from retinue.ports.model import Model
from retinue.ports.person import Listeners
from retinue.project import STATE_DIR, open_run
from retinue.runtime.delegation.task import Task
from retinue.runtime.runtime import Runtime
from retinue.sandbox.selection import select_sandbox

T = TypeVar("T")
MAX_CONCURRENT = 3
MAX_TOKENS = 100_000
REPORT = "report.md"

QUESTIONS = {
    "README.md": "In one sentence: what is snip?",
    "docs/hosting.md": "In one sentence: what does snip need to run?",
    "docs/privacy.md": "In one sentence: what does snip store?",
    "docs/abuse.md": "In one sentence: what is done about a harmful link?",
    "docs/history.md": "In one sentence: who was snip made for?",
}
QUESTION_TASKS = tuple(
    Task(role="reader", task=question, context_files=(file,))
    for file, question in QUESTIONS.items()
)
PROBLEM_TASKS = (
    Task(role="researcher", task="What does the README promise that the code does not do?"),
    Task(role="reviewer", task="Review snip/server.py for security problems."),
    Task(role="planner", task="Say in one line what each file is for.", max_tool_calls=4),
)
REVIEW_TASKS = (
    Task(role="researcher", task="How are short codes made, and can two links get the same one?"),
    *PROBLEM_TASKS[:2],
    Task(role="researcher", task="Which functions have no test?"),
    *PROBLEM_TASKS[2:],
)
LOOK = "What does this project do?"
JOB = (
    "One child per file: summarise docs/hosting.md and docs/privacy.md, and set LENGTH to 6 in"
    " snip/codes.py."
)
CHECK = 'python3 -c "import snip.server"'
SESSION = "session.retinue"
LONGEST_PAUSE_S = 1.0


@click.command()
@click.option("--keep", metavar="DIR", help="Use this new directory, and keep it.")
@click.option("--fast", is_flag=True, help="Do not wait between replies.")
@json_events_option
def demo(keep: str | None, fast: bool, as_json: bool) -> int:
    """Show children at work on a small example repository. Needs no model server and no key.

    It has three parts: the embedded model at work, if installed; a recorded session; a scripted
    fan-out.

    Example: retinue demo --keep /tmp/snip
    """
    with _directory(keep) as root, tempfile.TemporaryDirectory(prefix="retinue-demo-") as home:
        copy_tree(demo_files() / "snip", root)
        presentation = _Demo(root, Path(home), fast=fast, as_json=as_json)
        short = installed_adapter() is not None and presentation.do_job()
        if not short:
            presentation.answer_questions()
        presentation.replay_session(short=short)
        run_id = presentation.run_scripted_fan_out(short=short)
        presentation.print_next_steps(run_id, keep, has_tools=short)
    return 0


class _Demo:
    """The three parts. With `as_json` only their events are printed."""

    def __init__(self, root: Path, home: Path, *, fast: bool, as_json: bool) -> None:
        self._output = DemoOutput(shutil.get_terminal_size().columns, silent=as_json)
        self._root = root
        # Ignore the user's settings and variables, so that the demo is always the same.
        self._environment = Environment(variables={"HOME": str(home)})
        self._fast = fast
        self._progress = Console(as_json=as_json, quiet=False).progress
        self._on_event = self._progress.on_event if as_json else self._output.on_event
        self._output.section("retinue demo", texts()["introduction"])

    def answer_questions(self) -> None:
        self._output.section("Part 1: a real model answers from files", texts()["questions"])
        user, progress = Environment.current(), self._progress

        async def work() -> list[Result]:
            # Uses the user's pip settings; the demo's own environment has none.
            model = embedded_model(user)
            async with progress.live():
                await model.open(progress.on_wait)
                results = await self._fan_out(
                    QUESTION_TASKS, model, progress.on_event, progress.on_text
                )
                progress.finish()
            return results

        try:
            results = _run(work())
        except (UsageError, ProviderError) as error:
            self._output.paragraph(f"Skipped: {error}")
            self._output.echo()
            return
        self._output.results(results, max_tokens=MAX_TOKENS, counted=True)
        report = [f"# {file}\n\n{r.response}\n" for file, r in zip(QUESTIONS, results, strict=True)]
        (self._root / REPORT).write_text("\n".join(report), "utf-8")
        self._output.paragraph(f"The answers are in {REPORT}.")

    def do_job(self) -> bool:
        """Have the embedded model lead children. Return whether it could be started."""
        user = Environment.current()
        sandbox = run_async(_find_sandbox(self._environment))
        checked = "a check decides what is merged" if sandbox else "without a sandbox, unchecked"
        self._output.section("Part 1: a real model at work", texts()["job"].format(checked=checked))
        _make_repository(self._root)
        events: list[Event] = []
        checks, progress = [CHECK] if sandbox else [], self._progress

        def on_event(event: Event) -> None:
            events.append(event)
            self._on_event(event)

        async def work() -> list[RunResult]:
            # Uses the user's pip settings; the demo's own environment has none.
            model = embedded_model(user)
            async with progress.live():
                await model.open(progress.on_wait)
                progress.finish()
            async with self._runtime(model, on_event, mode="auto", checks=checks) as rt:
                results = []
                for task in (LOOK, JOB):
                    self._output.command(f'retinue run -m embedded "{task}"')
                    results.append(await rt.run(task))
                    self._output.answer(results[-1].response or str(results[-1].error))
            return results

        try:
            results = _run(work())
        except (UsageError, ProviderError) as error:
            self._output.paragraph(f"Skipped: {error}")
            return False
        run_id = results[-1].run_id
        self._print_command(show, run_id)
        if any(isinstance(event.fact, FilesChanged) for event in events):
            self._print_command(diff, run_id)
            self._print_command(undo, run_id)
        self._print_command(audit, run_id)
        return True

    def replay_session(self, *, short: bool = False) -> None:
        # In a folder that the agents of part 3 do not read.
        file = self._root / STATE_DIR / SESSION
        file.parent.mkdir(exist_ok=True)
        file.write_bytes((demo_files() / SESSION).read_bytes())
        events = run_async(_events(file))
        first = events[0]
        assert isinstance(first.fact, RunStarted)
        date = time.strftime("%d %B %Y", time.gmtime(first.time)).lstrip("0")
        text = texts()["recorded_short"] if short else texts()["recorded"]
        text = text.format(date=date, version=first.fact.retinue_version)
        self._output.section("Part 2: a recorded session", text)
        writes = next(i for i, e in enumerate(events) if isinstance(e.fact, WorktreeCreated))
        for number, (before, event) in enumerate(pairwise([first, *events])):
            if short and number < writes and not self._output.silent:
                self._output.on_past_event(event)
                continue
            if not self._fast and not self._output.silent:
                time.sleep(min(event.time - before.time, LONGEST_PAUSE_S))
            self._on_event(event)
        self._output.echo()
        self._output.paragraph(fold(events).agents[first.agent_id].response)
        if not short:
            self._print_command(show, str(file))
            self._print_command(audit, str(file))

    def run_scripted_fan_out(self, *, short: bool = False) -> str:
        """Return the id of the run."""
        tasks = PROBLEM_TASKS if short else REVIEW_TASKS
        text = texts()["scripted_short"] if short else texts()["scripted"]
        self._output.section("Part 3: a fan-out with problems", text)
        results = _run(self._fan_out(tasks, scripted_model(fast=self._fast), self._on_event))
        run_id = results[0].run_id
        if not short:
            self._output.results(results, max_tokens=MAX_TOKENS, counted=False)
            self._output.echo()
            self._output.heading("The journal of this run")
            self._print_command(runs)
            self._print_command(show, run_id)
        self._print_command(audit, run_id)
        self._output.echo(
            "\nThe run failed, because one child reached its limit. Its partial result is kept.\n"
            "Every event is chained to the one before it, so audit finds changed ones."
        )
        return run_id

    def print_next_steps(self, run_id: str, keep: str | None, *, has_tools: bool) -> None:
        output = self._output
        output.echo()
        if keep is None:
            output.echo("The demo ran in a temporary directory; use --keep DIR to keep it.\n")
        output.heading("Next steps")
        if (command := _path_command()) is not None:
            output.echo(f"Put retinue on your PATH:\n\n  {command}\n")
        if keep is not None:
            output.echo(f"Show one child in full:\n\n  retinue show {run_id} a3 -C {keep}\n")
        output.echo(texts()["try_with_tools"] if has_tools else texts()["try_without_tools"])
        output.echo(texts()["choose_a_model"].rstrip())

    async def _fan_out(
        self,
        tasks: Sequence[Task],
        model: Model,
        on_event: Callable[[Event], None],
        on_text: Callable[[str, str], None] = lambda *_: None,
    ) -> list[Result]:
        async with self._runtime(model, on_event, on_text) as runtime:
            return await runtime.fan_out(tasks, max_concurrent=MAX_CONCURRENT)

    def _runtime(
        self,
        model: Model,
        on_event: Callable[[Event], None],
        on_text: Callable[[str, str], None] = lambda *_: None,
        mode: str | None = None,
        checks: Sequence[str] = (),
    ) -> AbstractAsyncContextManager[Runtime]:
        return open_runtime(
            self._root,
            model=model,
            limits={"max_tokens": MAX_TOKENS},
            shell=False,
            listeners=Listeners(
                on_event=on_event, on_child_text=lambda _, agent, text: on_text(agent, text)
            ),
            environment=self._environment,
            mode=mode,
            checks=checks,
        )

    def _print_command(self, command: click.Command, *run: str) -> None:
        """Print another command and its output; files are shown without their folder."""
        if self._output.silent:
            return
        printed = io.StringIO()
        with redirect_stdout(printed), replaced_variables(self._environment):
            context = click.get_current_context()
            context.invoke(command, directory=str(self._root), **({"run": run[0]} if run else {}))
        shown = " ".join(os.path.basename(word) for word in run)
        self._output.heading(f"\n$ retinue {command.name} {shown}".rstrip())
        self._output.lines(printed.getvalue())


def _make_repository(root: Path) -> None:
    """Children that write work in copies only if the project is a git repository."""
    named = ("-c", "user.name=demo", "-c", "user.email=demo@localhost")
    for arguments in (("init",), ("add", "."), (*named, "commit", "-m", "snip")):
        command = ["git", *arguments]
        # Without the user's own settings, which may ask for signatures or hooks.
        own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        variables = {**Environment.current().variables, **own}
        subprocess.run(command, cwd=root, env=variables, check=True, capture_output=True)


async def _find_sandbox(environment: Environment) -> bool:
    selected = await select_sandbox(environment.for_commands(), cache=str(environment.cache_dir))
    return selected.sandbox is not None


def _run(work: Coroutine[Any, Any, T]) -> T:
    async def inside() -> T | None:
        with Interrupts():
            return await work
        return None

    results = run_async(inside())
    if results is None:
        click.echo("retinue: interrupted; every agent was closed.", err=True)
        raise click.exceptions.Exit(130)
    return results


def scripted_model(*, fast: bool) -> ScriptedModel:
    """The scripted model of part 3; `fast` removes its delays."""
    text = (demo_files() / "script.json").read_text("utf-8")
    script = parse_script(text, source="script.json")
    assert isinstance(script, Mapping)
    if fast:
        script = {
            match: [_without_delay(step) for step in steps] for match, steps in script.items()
        }
    return ScriptedModel(script, name="scripted:demo", strict=False)


def demo_files() -> Traversable:
    """The installed folder with the example repository, the script and the session."""
    return files("retinue.interfaces") / "demo"


@cache
def texts() -> Mapping[str, str]:
    return tomllib.loads((demo_files() / "texts.toml").read_text("utf-8"))


def copy_tree(source: Traversable, to: Path) -> None:
    to.mkdir(exist_ok=True)
    for item in source.iterdir():
        if item.is_file():
            (to / item.name).write_bytes(item.read_bytes())
        # Installers compile the Python files.
        elif item.name != "__pycache__":
            copy_tree(item, to / item.name)


def _without_delay(step: Step) -> Step:
    return step.after(0.0) if isinstance(step, ScriptedReply) else step


@contextmanager
def _directory(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="retinue-demo-") as name:
            yield Path(name)
        return
    path = Path(keep).expanduser()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{keep!r} exists already; name a new or an empty directory.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"Cannot create {keep!r}: {error.strerror}.") from error
    yield path


async def _events(file: Path) -> list[Event]:
    async with open_run(".", str(file)) as (store, run_id):
        return list(await store.events(run_id))


def _path_command() -> str | None:
    """The command that puts this program on the PATH; None if it is there already."""
    program = sys.argv[0]
    if os.path.basename(program) != "retinue" or shutil.which("retinue") is not None:
        return None
    folder = os.path.dirname(os.path.abspath(program))
    relative = os.path.relpath(folder)
    shown = folder if relative.startswith(os.pardir) else f"$PWD/{relative}"
    return f'export PATH="{shown}:$PATH"'
