"""What `retinue help` tells: short, and with the numbers that the code goes by."""

from __future__ import annotations

from retinue.config.settings import (
    MAX_CONCURRENT,
    MAX_DEPTH,
    PAUSE_AT_CALLS,
    RUN_BUDGET,
    SILENCE_S,
    WARN_AT_CALLS,
    Settings,
)
from retinue.domain.budget import Budget
from retinue.interfaces.cli.exit_codes import EXIT_CODES

MODELS = """\
A model is named provider:model@endpoint, or by a short name from your settings:

  $ retinue run -m openai:qwen3@http://127.0.0.1:8080/v1 "What is this?"
  $ retinue run -m fast "What is this?"

-m goes before RETINUE_MODEL, and that before `model` in the settings. Short
names are in [models] of ~/.config/retinue/config.toml. A role, a profile, or a
model that gives out a task may choose another one.

The key in OPENAI_API_KEY is sent to OpenAI and to endpoints that you named
yourself, never to one that only a project's file names. scripted:FILE plays a
script, for trying things out without a model; embedded is a small real one,
for summaries, titles and answers from files given along (-f FILE)."""

SESSIONS = """\
Each `retinue run` begins a session, unless it goes on with one:

  $ retinue run "What does this project do?"
  $ retinue run -c "And how is it tested?"
  $ retinue run -r RUN "Once more, in one line."

-c goes on with the last one in this directory, -r with that of any run (the
beginning of its id is enough). Every message is a run of its own, with its own
budget and outcome; the model has all that was said before, and what no longer
fits its window is masked, then summed up.

  $ retinue runs
  $ retinue tasks

`runs` lists runs with their sessions, `tasks` what was given to children. What
`spawn` and `fan-out` begin is no session. One that is at work in another
process is not gone on with."""

BUDGETS = """\
A run ends at a limit, and says what it has. For `run` the flags hold for the
whole run, for `spawn` and `fan-out` for each child:

  $ retinue run --max-tokens 60000 --timeout 120 "List the modules"
  $ retinue fan-out --max-tool-calls 5 "What is in snip?" "What is in tests?"

                          a run      a child
  --max-tool-calls   {run_calls:>10} {child_calls:>12}   denied ones too; roles differ
  --max-turns        {run_turns:>10} {child_turns:>12}   replies of the model
  --max-tokens       {run_tokens:>10} {child_tokens:>12}   in and out
  --timeout          {run_timeout:>10} {child_timeout:>12}   seconds for an attempt
  --max-cost-usd           none         none   where [prices] has the model

What a call of a model may cost at most is set aside before it is made, at the
child and at everybody above it, so no fan-out spends more than its run has.

At {warn} tool calls of a run there is a warning, at {pause} you are asked whether it may
go on. An agent that gives no sign of life for {silence:g} seconds is told to end, and
stopped after twice that time."""

MODES = """\
--mode says how much happens without your word:

  plan       only reads, and has no children
  normal     reads; asks you before each write and each command
  auto       writes and runs commands without asking
  dangerous  the same; there is no difference yet

  $ retinue run --mode plan "How would you add an expiry date?"
  $ retinue spawn executor --mode auto "Add a docstring to snip/links.py"

normal is the default. A question is asked at the terminal: y, a for always in
this run, n. Where nobody can be asked, the command ends with exit code 4.
Children never ask: in normal mode they do without what you would be asked.
Shell commands are off in every mode unless --unsafe-no-sandbox allows them."""

CHAT = """\
`retinue` on a terminal opens the chat; its options are those of `run`:

  retinue -c                      go on with the last conversation
  retinue -m fast --mode auto     with another model, without questions

  /help           all commands and keys; tab completes what is typed
  @src/a.py       gives a file along with what you say
  @reviewer look  sends an agent of that role, as /spawn reviewer look does
  @a2 stop there  says something to an agent at work
  !make test      runs a command in the agents' sandbox, and tells its output

Who leads reads what you say meanwhile before its next turn. What it wants to do
is shown below the conversation: y, n, or a for always, and enter.

  tab     to the agents, and back; enter shows all about one, x stops it
  ctrl+g  why an agent failed; again for the next one
  ctrl+o  all that tools did, or little of it
  esc     stops what is under way; ctrl+c twice leaves

Colours are those of your terminal; NO_COLOR turns them off."""

FILES = """\
Agents work in the current directory, or in that of -C, and do not leave it.

  retinue.toml                    settings of the project
  ~/.config/retinue/config.toml   your own, which count for more
  AGENTS.md, ENVIRONMENT.md       given to every agent; CLAUDE.md stands in
  .retinue/agents/*.md            agents of your own: retinue help roles
  .retinue/retinue.db             the journal of every run, and the memory
  .retinue/step-*-result.md       what each child of the last run reported
  .retinue/live/                  which runs are at work now
  .retinue/history                what you typed in the chat

.retinue ignores itself in git, but for the agents in it. Agents read neither
.git nor .retinue."""

ROLES = """\
A child has a role: what it is told, which tools it has, how much it may spend.

  $ retinue agents
  $ retinue agents reviewer
  $ retinue spawn reviewer "Look for bugs in snip/server.py"
  $ retinue fan-out "Summarise README.md" "reviewer: look at snip/server.py"

You can change a role, or add a profile, in the settings or as a file in
.retinue/agents; files of other tools (.claude/agents and the like) are read as
they are. A child never gets more than its parent has. {concurrent} children of one parent
work at a time, and they may have children down to depth {depth}."""

SETTINGS = """\
Two files, in TOML: ~/.config/retinue/config.toml is yours, retinue.toml the
project's. A project can lower what yours says and never raise it, since a
cloned repository must not give itself rights. Flags go before the environment
(RETINUE_MODEL, RETINUE_MODE), and that before the files. What can be set:

{keys}

[budget], [roles.NAME], [profiles.NAME], [models] and [prices.NAME] are tables.
A mistake is told with its line and its key."""

OUTPUT = """\
The answer goes to standard output, and everything else to standard error:

  $ retinue run -q "What does this project do?"
  $ retinue run --json "What does this project do?"

On a terminal there is a live tree, and a log gets lines. -q prints the answer
alone, as in answer=$(retinue run -q "…"). --json prints one event per line,
each with run_id, agent_id, parent_agent_id and seq. NO_COLOR turns colours off.

When a command that took longer than notify_after_s ({notify:g}) ends, or asks, the
terminal rings, or notifies you if it can; 0 turns that off."""

JOURNAL = """\
Everything that happened is on record, in order, each event with a hash over the
one before it:

  $ retinue runs
  $ retinue show RUN
  $ retinue show RUN a0
  $ retinue audit RUN

Another terminal can follow a run, and stop it or one of its agents for good:

  $ retinue watch RUN

`retinue cancel RUN [AGENT]` waits until it has stopped. A run that `runs` calls
interrupted (by you) or abandoned (its process is gone) goes on where it was
with `retinue resume RUN`."""

TOPICS = {
    "budgets": ("limits of tokens, turns, tool calls, time and money", BUDGETS),
    "chat": ("talking with an agent in the terminal", CHAT),
    "exit-codes": ("what the exit codes mean", ""),
    "files": ("which files are read and written", FILES),
    "journal": ("looking at runs, watching and stopping them", JOURNAL),
    "models": ("choosing a model and a server", MODELS),
    "modes": ("how much happens without your word", MODES),
    "output": ("answers, progress, JSON, colours, notifications", OUTPUT),
    "roles": ("roles, profiles, and how children are chosen", ROLES),
    "sessions": ("going on with a conversation", SESSIONS),
    "settings": ("what can be set, and where", SETTINGS),
}


def text_of(topic: str) -> str:
    """The text of a topic, with its numbers."""
    if topic == "exit-codes":
        return "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    child = Budget()
    return TOPICS[topic][1].format(
        run_calls=f"{RUN_BUDGET.max_tool_calls:,}",
        run_turns=f"{RUN_BUDGET.max_turns:,}",
        run_tokens=_limit(RUN_BUDGET.max_tokens),
        run_timeout=f"{RUN_BUDGET.timeout_s:,g}",
        child_calls=f"{child.max_tool_calls:,}",
        child_turns=f"{child.max_turns:,}",
        child_tokens=_limit(child.max_tokens),
        child_timeout=f"{child.timeout_s:,g}",
        warn=WARN_AT_CALLS,
        pause=PAUSE_AT_CALLS,
        silence=SILENCE_S,
        concurrent=MAX_CONCURRENT,
        depth=MAX_DEPTH,
        notify=Settings().notify_after_s,
        keys=_columns(sorted(Settings.__struct_fields__)),
    )


def _limit(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"


def _columns(names: list[str]) -> str:
    width = max(map(len, names)) + 2
    rows = [names[start : start + 4] for start in range(0, len(names), 4)]
    return "\n".join("  " + "".join(name.ljust(width) for name in row).rstrip() for row in rows)
