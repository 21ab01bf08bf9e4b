"""Every public name has an example in its docstring, and every example runs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import retinue
from retinue import testing
from retinue.testing import ScriptedModel, say

FENCE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
WITHOUT = {"retinue.Message", "retinue.__version__"}
"""A union and a string, which have no docstring."""


def public_names() -> Iterator[tuple[str, Any]]:
    for module in (retinue, testing):
        for name in module.__all__:
            thing = getattr(module, name)
            yield f"{module.__name__}.{name}", thing
            if inspect.isclass(thing):
                for method, member in vars(thing).items():
                    if inspect.isfunction(member) and "```python" in (member.__doc__ or ""):
                        yield f"{module.__name__}.{name}.{method}", member


ONCE = {id(thing): name for name, thing in public_names() if name not in WITHOUT}
NAMES = {name: thing for name, thing in public_names() if ONCE.get(id(thing)) == name}


def examples(thing: Any) -> list[str]:
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return FENCE.findall(inspect.cleandoc(own or ""))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (project := tmp_path / "project").mkdir()
    (project / "a.txt").write_text("hello\n")
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return project


@pytest.mark.parametrize("name", NAMES)
async def test_example_in_the_docstring_runs(name: str, project: Path) -> None:
    (text,) = examples(NAMES[name])
    assert len(text.splitlines()) <= 14
    code = compile(text, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"retinue": retinue, "asyncio": asyncio, **vars(testing)}
    if "rt." not in text or "as rt:" in text:
        await _run(code, names)
        return
    model = ScriptedModel({"": [say("In links.py."), say("By nobody.")]}, strict=False)
    async with retinue.open(project, model=model) as names["rt"]:
        await _run(code, names)


async def _run(code: CodeType, names: dict[str, Any]) -> None:
    made = eval(code, names)
    if inspect.iscoroutine(made):
        await made
