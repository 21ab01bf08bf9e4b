"""`retinue export`: writes a run to a file."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import click

from retinue.config.environment import Environment
from retinue.config.telemetry import read_telemetry_settings
from retinue.domain.plural import plural
from retinue.errors import UsageError
from retinue.extras import require
from retinue.interfaces.cli.chosen_run import chosen_run
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import directory_option, optional_run_argument
from retinue.interfaces.cli.terminal.output import print_line
from retinue.model_registry import redaction_of
from retinue.project import (
    existing_file,
    export_journal,
    open_run,
    project_root,
    refuse_links,
    write_new_file,
)
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.session import session_entry
from retinue.telemetry.spans import SpanFold
from retinue.threads import in_thread


@click.command()
@optional_run_argument
@click.option("-o", "file", metavar="FILE", help="The file to write.  [default: RUN.retinue]")
@click.option("--html", "html", metavar="FILE", help="Write a page for browsers to FILE instead.")
@click.option(
    "--md", "md", metavar="FILE", help="Write the conversation as Markdown to FILE instead."
)
@click.option("--otel", "otel", metavar="URL", help="Send a trace to this collector instead.")
@directory_option
@async_command
async def export(
    run: str | None,
    file: str | None,
    html: str | None,
    md: str | None,
    otel: str | None,
    directory: str,
) -> None:
    """Write RUN to one file, which `show`, `web` and `audit` read on any machine.

    Without RUN, the last run is written. The file contains everything that the agents were told,
    read and said. --html writes the page of `retinue web` with this run inside; --md writes the
    conversation of the run's session, as `/export` does in the chat. Both hide keys with a
    known form. --otel sends a trace to an OpenTelemetry collector, the same trace each time.

    Example: retinue export k3f9 -o run.retinue
    """
    if sum(target is not None for target in (file, html, md, otel)) > 1:
        raise UsageError("-o, --html, --md and --otel exclude each other; use one of them.")
    if run is None:
        run, _ = await chosen_run(directory, None)
    if otel is not None:
        await _export_trace(directory, run, otel)
    elif md is not None:
        await _export_markdown(directory, run, Path(md))
    elif html is not None:
        await _export_html(directory, run, Path(html))
    else:
        target = await export_journal(directory, run, None if file is None else Path(file))
        print_line(f"Written to {target}. Show it with: retinue show {target}")


async def _export_markdown(directory: str, run: str, target: Path) -> None:
    from retinue.interfaces.view.agent_tree import Forest
    from retinue.interfaces.view.conversation import Conversation
    from retinue.interfaces.view.conversation_export import conversation_markdown

    root = project_root(directory)
    refuse_links(root, target)
    async with open_run(directory, run) as (store, run_id):
        row = await store.run(run_id)
        rows = [row] if row.session is None else await store.session(row.id)
        journals = [await read_all(store, one.id) for one in rows]
    forest = Forest()
    conversation = Conversation(forest)
    for event in chain.from_iterable(journals):
        forest.apply(event)
        conversation.apply(event)
    text = conversation_markdown(conversation.entries, session_entry(rows[::-1]).title)
    write_new_file(target, redaction_of(root, Environment.current()).redact(text))
    print_line(f"Written to {target}. Known keys are hidden; read it before you share it.")


async def _export_html(directory: str, run: str, target: Path) -> None:
    from retinue.interfaces.web.html_export import export_html
    from retinue.interfaces.web.run_reader import RunReader

    root, environment = project_root(directory), Environment.current()
    refuse_links(root, target)
    reader = RunReader(root, environment, None if existing_file(run) is None else run)
    found = await export_html(reader, run, redaction_of(root, environment))
    write_new_file(target, found.html)
    print_line(f"Written to {target}. It opens in any browser, without a server.")
    print_line(
        f"It contains all that {plural(found.agents, 'agent')} were told, read and said,"
        f" {plural(found.events, 'event')} and {plural(found.changes, 'diff')}. Keys with a known"
        " form, values of secret variables and the path of the project are hidden; read it before"
        " you share it."
    )


async def _export_trace(directory: str, run: str, url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no URL of a collector; write http://HOST:4318.")
    require("otel", "sending traces")
    from retinue.telemetry.exporter import export_spans

    root, environment = project_root(directory), Environment.current()
    wanted, redact = read_telemetry_settings(environment), redaction_of(root, environment).redact
    fold = SpanFold(redact=redact if wanted.content else None, redact_error=redact)
    async with open_run(root, run) as (store, run_id):
        events = await read_all(store, (await store.run(run_id)).id)
    found = [span for event in events for span in fold.apply(event)]
    found += fold.unfinished()
    await in_thread(lambda: export_spans(found, url))
    print_line(f"{plural(len(found), 'span')} sent to {url}: trace {fold.context().trace_id}.")
