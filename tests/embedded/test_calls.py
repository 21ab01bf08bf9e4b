from __future__ import annotations

import json
import re

import msgspec
import pytest

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Reply,
    Request,
    ToolSpec,
    Usage,
    UserMessage,
)
from retinue.embedded.calls import with_calls

SEARCH = ToolSpec("search_files", "", msgspec.Raw(b"{}"))
OWN_VERSION = "(?<![a-z][_-])version.{0,3}[:=].{0,2}[0-9]"


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("version.{0,3}[:=].{0,2}[0-9]", OWN_VERSION),
        ("version", "version"),
        ("python_version.{0,3}[:=]", "python_version.{0,3}[:=]"),
    ],
)
def test_a_search_for_the_version_leaves_out_longer_names(written: str, made: str) -> None:
    call = json.dumps({"name": "search_files", "arguments": {"pattern": written}})
    text = AssistantMessage(f"<tool_call>{call}</tool_call>")
    reply = Reply(message=text, usage=Usage(), finish=Finish.STOP)
    request = Request(messages=(UserMessage("Which version is this?"),), tools=(SEARCH,))
    (found,) = with_calls(reply, request).message.calls
    assert json.loads(found.arguments) == {"pattern": made}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('version = "1.2"', True),
        ('__version__ = "1.2"', True),
        ('  "version": "1.2",', True),
        ('python_version = "3.11"', False),
        ("target-version: 3", False),
    ],
)
def test_lines_that_are_found(line: str, found: bool) -> None:
    assert bool(re.search(OWN_VERSION, line)) == found
