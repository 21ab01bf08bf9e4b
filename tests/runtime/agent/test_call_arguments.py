from __future__ import annotations

import msgspec
import pytest

from retinue.domain.messages import ToolCall, ToolSpec
from retinue.errors import ToolFailure
from retinue.runtime.agent.call_arguments import decode_arguments, parameters_of, text_argument


def test_arguments_are_one_json_object() -> None:
    assert decode_arguments(ToolCall("1", "grep", '{"path": "a"}')) == {"path": "a"}
    assert decode_arguments(ToolCall("1", "grep", " ")) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{path", r"are not JSON \(.*\)\. Send one JSON object"),
        ("[" * 100_000, "are nested too deeply"),
        ('["a"]', "must be one JSON object"),
    ],
)
def test_other_arguments_are_refused(arguments: str, message: str) -> None:
    with pytest.raises(ToolFailure, match=f"The arguments of grep {message}"):
        decode_arguments(ToolCall("1", "grep", arguments))


def test_parameters_of_a_broken_schema() -> None:
    schema = msgspec.Raw(b'{"properties": {"path": {}}}')
    assert set(parameters_of(ToolSpec("grep", "", schema))) == {"path"}
    assert not parameters_of(ToolSpec("grep", "", msgspec.Raw(b'{"properties": 1}')))


def test_a_text_argument_is_a_text() -> None:
    assert text_argument({"path": "a"}, "path") == "a"
    assert text_argument({"path": 1}, "path") == text_argument({}, "path") == ""
