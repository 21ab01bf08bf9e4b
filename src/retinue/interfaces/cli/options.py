"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from retinue.domain.budget import BUDGET_SCALES, Limits
from retinue.domain.contract import OnConflict, WorkspaceKind
from retinue.domain.grant import Mode, Network
from retinue.domain.sampling import Sampling

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])


def completion(name: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """A function of `completions`, imported while the user types: it loads most of retinue."""

    def complete(ctx: click.Context, parameter: click.Parameter, text: str) -> list[CompletionItem]:
        from retinue.interfaces.cli import completions

        found: list[CompletionItem] = getattr(completions, name)(ctx, parameter, text)
        return found

    return complete


def combine(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def json_flag(help: str) -> Callable[[F], F]:
    return click.option("--json", "as_json", is_flag=True, help=help)


run_argument = click.argument("run", shell_complete=completion("complete_run"))
optional_run_argument = click.argument(
    "run", required=False, shell_complete=completion("complete_run")
)
agent_argument = click.argument(
    "agent", required=False, shell_complete=completion("complete_agent")
)

directory_option = click.option(
    "-C", "directory", metavar="DIR", default=".", show_default=True, help="Work in this directory."
)
json_events_option = json_flag("Print one JSON event per line.")
json_result_option = json_flag("Print one JSON event per line, and last the result.")
output_option = click.option(
    "--output",
    "result_format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Print the result as text, or only as one JSON object.",
)
json_objects_option = json_flag("Print one JSON object per line.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print only the answer.")
unsafe_writable_install_option = click.option(
    "--unsafe-writable-install",
    is_flag=True,
    help="Allow changes to retinue's own files, if it is installed in the project.",
)
unsafe_options = combine(
    click.option(
        "--unsafe-no-sandbox", is_flag=True, help="Let agents run shell commands without a sandbox."
    ),
    unsafe_writable_install_option,
)
log_options = combine(
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        help="Write a log on standard error instead of the progress.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="Leave out records below this level.",
    ),
)

cluster_option = click.option(
    "--cluster",
    metavar="CLUSTER",
    help="Run children elsewhere: local:4 in 4 processes of this machine; auto, or HOST:PORT of the"
    " head, on the nodes of a Ray cluster; off only here.  [default: as in your settings]",
)

resume_options = combine(
    directory_option,
    json_result_option,
    output_option,
    quiet_option,
    cluster_option,
    unsafe_options,
    log_options,
)


class NumberFlag(NamedTuple):
    """How a limit or a setting of the model is given on the command line."""

    flag: str
    type: type[int] | type[float]
    metavar: str
    help: str


LIMIT_FLAGS = {
    "max_tool_calls": NumberFlag("--max-tool-calls", int, "N", "Limit tool calls."),
    "max_turns": NumberFlag("--max-turns", int, "N", "Limit replies of the model."),
    "max_tokens": NumberFlag("--max-tokens", int, "N", "Limit tokens read and written, each once."),
    "max_billed_tokens": NumberFlag(
        "--max-billed-tokens", int, "N", "Limit tokens that servers count, repeated prompts too."
    ),
    "max_cost_usd": NumberFlag("--max-cost-usd", float, "USD", "Limit cost, if prices are set."),
    "timeout_s": NumberFlag("--timeout", float, "S", "Limit seconds per attempt."),
}
"""By field of `Limits`. The other limits are set in settings and profiles only."""

SAMPLING_FLAGS = {
    "temperature": NumberFlag("--temperature", float, "X", "Sample with this temperature."),
    "top_p": NumberFlag(
        "--top-p", float, "X", "Sample from the likeliest tokens of this total probability."
    ),
    "seed": NumberFlag("--seed", int, "N", "Sample with this seed, if the server can."),
    "max_output_tokens": NumberFlag(
        "--max-output-tokens", int, "N", "Limit tokens of one reply, thinking included."
    ),
}
"""By field of `Sampling`."""

runtime_options = combine(
    log_options,
    directory_option,
    click.option(
        "-m",
        "model",
        metavar="MODEL",
        shell_complete=completion("complete_model"),
        help="The model: provider:model@endpoint, or a short name from your settings.",
    ),
    click.option(
        "--mode",
        type=click.Choice([str(mode) for mode in Mode]),
        help="What agents may do without asking: plan only reads, auto writes.",
    ),
    click.option(
        "--record",
        metavar="FILE",
        help="Record the model's replies to FILE, outside of the project or in .retinue;"
        " -m replay:FILE replays them.",
    ),
    click.option(
        "--web-hosts",
        multiple=True,
        metavar="HOST",
        help="Fetch pages from this host only, such as '*.readthedocs.io'. Can be repeated.",
    ),
    click.option("--no-cache", is_flag=True, help="Do not reuse results of earlier children."),
    cluster_option,
    unsafe_options,
    click.option(
        "--budget",
        type=click.Choice(list(BUDGET_SCALES)),
        help="Scale all default limits: tight by ½, generous by 4.",
    ),
    *(
        click.option(flag.flag, name, type=flag.type, metavar=flag.metavar, help=flag.help)
        for name, flag in (LIMIT_FLAGS | SAMPLING_FLAGS).items()
    ),
)

session_options = combine(
    click.option(
        "-c", "--continue", "continue_last", is_flag=True, help="Continue the last session."
    ),
    click.option(
        "-r",
        "--resume",
        "session",
        metavar="RUN",
        shell_complete=completion("complete_run"),
        help="Continue the session of this run.",
    ),
)


def given_limits(options: Mapping[str, Any]) -> Limits:
    """The limits that were given on the command line."""
    return Limits(**{name: options[name] for name in LIMIT_FLAGS})


def given_sampling(options: Mapping[str, Any]) -> Sampling:
    """The settings of the model that were given on the command line. Raises ContractError."""
    sampling = Sampling(**{name: options[name] for name in SAMPLING_FLAGS})
    sampling.check()
    return sampling


run_options = combine(
    click.option(
        "-f",
        "--file",
        "context_files",
        multiple=True,
        metavar="FILE",
        help="Add a file of the project to the task. Can be repeated.",
    ),
    click.option(
        "--check",
        "checks",
        multiple=True,
        metavar="COMMAND",
        help='Merge changes only if this command succeeds, such as "pytest -q". Can be repeated.',
    ),
    click.option(
        "--on-conflict",
        type=click.Choice([str(choice) for choice in OnConflict]),
        help="When changes conflict with a sibling's: fail, or let another child resolve it.",
    ),
    json_result_option,
    output_option,
    quiet_option,
    runtime_options,
)

workspace_options = combine(
    click.option(
        "--tool",
        "tools",
        multiple=True,
        metavar="NAME",
        help="Give the child only this tool, such as 'read_file'. Can be repeated.",
    ),
    click.option(
        "--network",
        type=click.Choice([str(choice) for choice in Network]),
        help="Network of the child's commands.  [default: none]",
    ),
    click.option(
        "--write",
        multiple=True,
        metavar="GLOB",
        help="Allow writing only these paths, such as 'src/**'. Can be repeated.",
    ),
    click.option(
        "--workspace",
        type=click.Choice([str(kind) for kind in WorkspaceKind]),
        help="Where the child works: a copy that is merged at the end (worktree, the default for"
        " children that write), your own files (shared), or without writing (readonly).",
    ),
)

batch_options = combine(
    click.option("-y", "--yes", is_flag=True, help="Start without asking."),
    click.option(
        "--max-concurrent",
        type=int,
        metavar="N",
        help="How many agents run at a time.  [default: 3]",
    ),
)
