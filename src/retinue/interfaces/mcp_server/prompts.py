"""Prompts of the MCP server: recipes that combine its tools."""

from __future__ import annotations

from typing import Any

from retinue.errors import UsageError

RECIPES = {
    "research-then-implement": (
        "Research, then implement, then review",
        "Goal: {goal}\n\nUse retinue: first `delegate` to a researcher (which files and functions"
        " matter, what is missing), then to an executor with that report in its task and `scope`"
        " set to the paths it may change, then to a reviewer. Show me the diff with `changes`; if"
        " I do not want it, `undo`.",
    ),
    "parallel-research": (
        "Several researchers at once, one answer",
        "Question: {goal}\n\nUse retinue: split the question into three to five independent parts"
        " and give them to researchers in one `fan_out`. Then combine their reports: what agrees,"
        " what contradicts, what is missing. Name files and lines.",
    ),
    "test-driven": (
        "Tests first, then the code that passes them",
        "Goal: {goal}\n\nUse retinue: `delegate` to a tester that writes failing tests, then to an"
        " executor that makes them pass without changing them, then to a tester that runs them all."
        " Report the results of the checks, not what the agents say.",
    ),
}


def prompt_list() -> list[dict[str, Any]]:
    goal = {"name": "goal", "description": "What is to be done, or found out", "required": True}
    return [
        {"name": name, "description": title, "arguments": [goal]}
        for name, (title, _) in RECIPES.items()
    ]


def get_prompt(name: str, goal: str) -> dict[str, Any]:
    """A prompt with its goal filled in. Raises UsageError."""
    if name not in RECIPES:
        raise UsageError(f"Unknown prompt {name!r}; there are: {', '.join(RECIPES)}.")
    if not goal.strip():
        raise UsageError(f"The prompt {name!r} needs the argument `goal`.")
    title, text = RECIPES[name]
    content = {"type": "text", "text": text.format(goal=goal)}
    return {"description": title, "messages": [{"role": "user", "content": content}]}
