from __future__ import annotations

import msgspec

from retinue.domain.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from retinue.embedded.prompt import MAX_RESULT_CHARS, prompt


def specs(*names: str) -> list[ToolSpec]:
    return [ToolSpec(name, "", msgspec.Raw(b"{}")) for name in names]


def test_conversation_is_one_text() -> None:
    call = ToolCall("call_1", "read_file", '{"path": "a.py"}')
    messages: list[Message] = [
        SystemMessage("You are a researcher."),
        UserMessage("What is in a.py?\n\nDirectory: /x\nBudget: 15 tool calls, 50 turns."),
        AssistantMessage("", (call, call)),
        ToolMessage("call_1", "X = 1\n"),
        ToolMessage("call_2", "[ERROR] No file 'b.py'."),
    ]
    assert prompt(messages, specs("run_command", "search_files", "list_dir")) == (
        "<|im_start|>system\n"
        "You are an agent in a project folder. Look with the tools before you answer. Answer"
        " briefly. If you cannot do something, say so.\n"
        "Tools:\n"
        "list_dir(path) lists a folder\n"
        "search_files(pattern, path) finds lines by regex\n"
        'Call a tool: <tool_call>{"name": …, "arguments": {…}}</tool_call><|im_end|>\n'
        "<|im_start|>user\nWhat is in a.py?<|im_end|>\n"
        "<|im_start|>assistant\n"
        '<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}</tool_call>\n'
        '<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nX = 1\n\n</tool_response>\n"
        "<tool_response>\n[ERROR] No file 'b.py'.\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_context_after_the_contract_stays() -> None:
    text = "Do it.\n\nDirectory: /x\nBudget: 1 tool call, 2 turns.\nKeep to: src\n\nMore."
    assert "user\nDo it.\nKeep to: src\n\nMore.<|im_end|>" in prompt([UserMessage(text)], [])


def test_prompt_says_that_there_are_no_tools() -> None:
    assert "system\nYou have no tools now." in prompt([UserMessage("Hi")], specs("run_command"))


def test_long_results_are_cut() -> None:
    text = prompt([ToolMessage("call_1", "x" * (MAX_RESULT_CHARS + 1))], [])
    assert "x" * MAX_RESULT_CHARS + "\n[cut]\n</tool_response>" in text
    assert "x" * (MAX_RESULT_CHARS + 1) not in text


def shown(path: str, result: str, tool: str = "read_file") -> str:
    """What the model sees of the result of a call."""
    call = ToolCall("call_1", tool, f'{{"path": "{path}"}}')
    text = prompt([AssistantMessage("", (call,)), ToolMessage("call_1", result)], [])
    return text.partition("<tool_response>\n")[2].partition("\n</tool_response>")[0]


README = """<p align="center">
  <img src="logo.svg"
       width="90">
</p>

<!-- badges -->
# tides [![CI](https://x.example/ci.svg)](https://x.example/ci) [![Docs][docs-image]][docs-url]

![](wave.png)
Predicts <b>tides</b>, if 1 < 2, with `List<int>`.
"""


def test_badges_pictures_and_html_of_pages_are_left_out() -> None:
    seen = "# tides  \n\nPredicts tides, if 1 < 2, with `List<int>`.\n"
    assert shown("README.md", README) == seen
    assert shown("docs/index.MARKDOWN", README) == seen
    assert shown("page.html", README) == README
    assert shown("README.md", README, "write_file") == README


def test_pictures_of_restructured_text_are_left_out() -> None:
    pictures = ".. image:: a.svg\n   :target: https://x.example\n.. |b| image:: b.svg\n"
    page = f"Tides\n=====\n\n{pictures}\nText.\n"
    assert shown("README.rst", page) == "Tides\n=====\n\nText.\n"
    assert shown("README.rst", "Tides\n\n\n\n.. note:: wet\n") == "Tides\n\n\n\n.. note:: wet\n"


def test_more_of_a_page_is_seen_if_it_has_badges() -> None:
    page = "![badge](https://x.example/badge.svg)\n" * 100 + "Text. " * MAX_RESULT_CHARS
    seen = shown("README.md", page)
    assert seen.startswith("Text. Text.")
    assert seen.endswith("\n[cut]")
