"""The files that `retinue init` writes: settings with every default, and an agent to begin with.

The numbers are those that the code goes by.
"""

from __future__ import annotations

import json

from retinue.config.settings import (
    ASK_ABOVE_TOKENS,
    ASK_ABOVE_USD,
    MAX_CONCURRENT,
    MAX_DEPTH,
    PAUSE_AT_CALLS,
    RUN_BUDGET,
    SILENCE_S,
    WARN_AT_CALLS,
    Settings,
)
from retinue.domain.contract import OnConflict
from retinue.domain.grant import Mode

AGENT_FILE_NAME = "translator.md"
EXAMPLES_HEADING = "# Examples"
USER_ONLY_HEADING = "# Only in your own file"

_SETTINGS = """\
# Settings of this project for retinue; https://toml.io tells how they are written. They can lower
# what your own file, ~/.config/retinue/config.toml, says, and never raise it.
#
# Each line below shows what holds if nothing is said. Remove the # to change it.

# How much happens without asking: plan only reads, normal asks before writing, auto does not.
# mode = {mode}

# Children of one parent at a time, and generations of children below a run.
# max_concurrent = {max_concurrent}
# max_depth = {max_depth}

# Whether agents may have children, run shell commands (where a sandbox holds), use the answer of an
# earlier child to the same task, and look for a model server on this machine.
# delegation = {delegation}
# shell = {shell}
# cache = {cache}
# discovery = {discovery}

# What is never done, such as "run_command(git push *)".
# deny = {deny}

# Commands that must succeed on what a child has made before it is brought in, and what to do with
# work that contradicts another's: "fail", or "resolve" by one more child.
# checks = {checks}
# on_conflict = {on_conflict}

# Seconds without a sign of life after which an agent is told to end.
# silence_s = {silence_s}

# Tool calls of a run's root at which there is a warning, and at which you are asked.
# warn_at_calls = {warn_at_calls}
# pause_at_calls = {pause_at_calls}

# What a plan or a fan-out may be expected to use before you are asked.
# ask_above_tokens = {ask_above_tokens}
# ask_above_usd = {ask_above_usd}

# Of a run as a whole. Tokens and money are not limited if nothing is said.
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
    """What `retinue.toml` begins as: all of it is commented out, so it changes nothing."""
    defaults = Settings()
    values = {name: getattr(defaults, name) for name in Settings.__struct_fields__}
    values |= {name: getattr(RUN_BUDGET, name) for name in RUN_BUDGET.__struct_fields__}
    values |= {
        "mode": Mode.NORMAL,
        "ask_above_tokens": ASK_ABOVE_TOKENS,
        "ask_above_usd": ASK_ABOVE_USD,
        "max_concurrent": MAX_CONCURRENT,
        "max_depth": MAX_DEPTH,
        "on_conflict": OnConflict.FAIL,
        "silence_s": SILENCE_S,
        "warn_at_calls": WARN_AT_CALLS,
        "pause_at_calls": PAUSE_AT_CALLS,
    }
    # What JSON and TOML write alike.
    written = {name: json.dumps(value, default=str) for name, value in values.items()}
    return _SETTINGS.format(**written, examples=EXAMPLES_HEADING, own=USER_ONLY_HEADING)
