"""`retinue commit`: writes a message for the staged changes, and lets git commit them."""

from __future__ import annotations

import re
import shlex
from typing import Any

import click

from retinue.config.environment import Environment
from retinue.domain.cluster_address import NO_CLUSTER
from retinue.domain.result import Status
from retinue.interfaces.cli.invocation import run_in_runtime, runtime_arguments
from retinue.interfaces.cli.options import runtime_options
from retinue.interfaces.cli.terminal.console import Console
from retinue.interfaces.cli.terminal.output import print_error, print_text
from retinue.interfaces.view.formatting import without_controls
from retinue.project import project_root
from retinue.runtime.runtime import Runtime
from retinue.workspace.staged_changes import StagedChanges, UserGit

TASK = "Write the commit message for the staged changes."
INSTRUCTIONS = (
    "You write git commit messages. The first line says what the change does, in at most 72"
    " characters and in the style of the latest messages. If the reason is not obvious, add an"
    " empty line and a short paragraph that gives it. Answer with the message alone."
)
MAX_TURNS = 2


@click.command()
@click.argument("git_options", nargs=-1, metavar="[-- GIT OPTION...]")
@click.option("--dry-run", is_flag=True, help="Only print the message.")
@runtime_options
def commit(git_options: tuple[str, ...], dry_run: bool, **options: Any) -> int:
    """Write a message for the staged changes, and commit them.

    One child reads the staged diff and the latest messages, without tools. `git commit -e` then
    opens the message in your editor, with your hooks; an empty message commits nothing. Arguments
    after -- go to git.

    Example: retinue commit --dry-run

    Example: retinue commit -- --signoff
    """
    environment, root = Environment.current(), project_root(options["directory"])
    git = UserGit(root, environment.variables)
    staged = git.staged_changes()
    message = ""

    async def work(runtime: Runtime, console: Console) -> list[Status]:
        nonlocal message
        result = await runtime.spawn(
            "researcher",
            TASK,
            context=_context(staged),
            system_prompt=INSTRUCTIONS,
            tools=(),
            max_turns=MAX_TURNS,
        )
        if result.ok:
            message = clean_message(result.response)
            console.progress.finish()
        else:
            console.print_result(result)
        return [result.status]

    # One child without commands is not worth a cluster.
    options |= {"as_json": False, "quiet": False, "cluster": options["cluster"] or NO_CLUSTER}
    if code := run_in_runtime(options, runtime_arguments(options), work):
        return code
    if not message:
        print_error("retinue: The model wrote no message; `git commit` lets you write one.")
        return 1
    if dry_run:
        print_text(message)
        return 0
    done = git.commit(message, git_options)
    if done.kept_message is not None:
        again = shlex.join(["git", "commit", "-e", "-F", str(done.kept_message), *git_options])
        print_error(
            f"retinue: git has not committed (exit code {done.exit_code}); what it printed above"
            f" says why. The message is kept: {again}"
        )
    return 1 if done.exit_code else 0


def _context(staged: StagedChanges) -> str:
    parts = [f"Files:\n{staged.summary}", f"Diff:\n{staged.diff}"]
    if staged.is_cut:
        parts.append("(The rest of the diff is left out.)")
    if staged.recent_subjects:
        parts.append("Latest messages:\n" + "\n".join(staged.recent_subjects))
    return "\n\n".join(parts)


def clean_message(text: str) -> str:
    """The message in a reply, without a code fence or quotes around it.

    Git prints a message as it is, so control characters would reach the terminal.
    """
    text = without_controls(text)
    if fenced := re.search(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        text = fenced[1]
    text = text.strip()
    if "\n" not in text:
        text = text.strip("\"'`").strip()
    return "\n".join(line.rstrip() for line in text.splitlines())
