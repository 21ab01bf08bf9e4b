"""Files that `retinue init` writes: settings with every default, and an example agent.

The numbers come from the code, so they are always the real defaults.
"""

from __future__ import annotations

import json

import msgspec

from retinue.config.settings import RUN_BUDGET, MergedSettings

AGENT_FILE_NAME = "translator.md"
EXAMPLES_HEADING = "# Examples"
USER_ONLY_HEADING = "# Only in your own file"

_SETTINGS = """\
# Settings of this project for retinue, in TOML (https://toml.io). They can lower the limits of your
# own file, ~/.config/retinue/config.toml, and never raise them.
#
# Each line below shows a default. Remove the # to change it.

# What agents do without asking: plan only reads, normal asks before writing, auto does not ask.
# mode = {mode}

# How many children of one parent run at a time, and how many levels of children a run may have.
# max_concurrent = {max_concurrent}
# max_depth = {max_depth}

# Whether agents may spawn children, run shell commands (in a sandbox) and reuse the result of an
# earlier child with the same task, and whether retinue looks for a model server on this machine.
# delegation = {delegation}
# shell = {shell}
# cache = {cache}
# discovery = {discovery}

# Calls that are always refused, such as "run_command(git push *)".
# deny = {deny}

# Commands that must succeed on a child's work before it is merged, and what happens when it
# conflicts with another child's: "fail", or "resolve" by one more child.
# checks = {checks}
# on_conflict = {on_conflict}

# Seconds without any output after which an agent is told to stop.
# silence_s = {silence_s}

# Numbers of tool calls of the root agent that cause a warning, and a question whether to go on.
# warn_at_calls = {warn_at_calls}
# pause_at_calls = {pause_at_calls}

# A plan or a fan-out that is expected to use more needs your approval.
# ask_above_tokens = {ask_above_tokens}
# ask_above_usd = {ask_above_usd}

# Limits of a whole run. By default tokens and cost are not limited.
# [budget]
# max_tool_calls = {max_tool_calls}
# max_turns = {max_turns}
# max_context_tokens = {max_context_tokens}
# timeout_s = {timeout_s}
# max_retries = {max_retries}

{examples}
#
# model = "openai:qwen3@http://127.0.0.1:8080/v1"
#
# [budget]
# max_tokens = 500_000
# max_cost_usd = 1.50
#
# [roles.reviewer.budget]
# max_tool_calls = 25
#
# [profiles.security]
# description = "Looks for security problems."
# system_prompt = "You look for security problems and nothing else."
# tools = ["find_files", "read_file", "search_files"]
# mode = "plan"
#
# [mcp.time]
# command = "uvx"
# args = ["mcp-server-time"]

{own}, ~/.config/retinue/config.toml:
#
# allow = {allow}
# endpoints = {endpoints}
# report_path = {report_path}
# notify_after_s = {notify_after_s}
# keep_journals_days = {keep_journals_days}
#
# [models]
# fast = "openai:qwen3-4b@http://127.0.0.1:8081/v1"
#
# [pools.smart]
# endpoints = ["openai:qwen3@http://127.0.0.1:8080/v1", "fast"]
#
# [servers."http://127.0.0.1:8080"]
# slots = 4
#
# [prices."openai:gpt-5-mini"]
# input = 0.25
# output = 2.0
"""

AGENT_TEMPLATE = """\
---
description: Translates the documentation.
tools: find_files, read_file, write_file
write: docs/**
max_tool_calls: 12
---
You are a translator. Keep the structure and the code as they are.
"""


def settings_template() -> str:
    """First content of `retinue.toml`. Every line is commented out, so it changes nothing."""
    values = msgspec.structs.asdict(MergedSettings()) | msgspec.structs.asdict(RUN_BUDGET)
    # JSON and TOML write these values alike.
    written = {name: json.dumps(value, default=str) for name, value in values.items()}
    return _SETTINGS.format(**written, examples=EXAMPLES_HEADING, own=USER_ONLY_HEADING)
