"""The plans in examples/recipes do what they say, with a model that plays its part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.plan.outcome import PlanResult
from retinue.domain.plan.plan_file import parse
from retinue.models.scripted.model import ScriptedModel, Step, call, say

if TYPE_CHECKING:
    from tests.conftest import Repo

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
Carry = Callable[[str, dict[str, list[Step]]], Any]


@pytest.fixture
def carry_out(repo: Repo, tmp_path: Path) -> Carry:
    """Run a recipe in a repository, with a script; the model is given back for a look."""

    async def carry(name: str, script: dict[str, list[Step]]) -> tuple[PlanResult, ScriptedModel]:
        repo.init().commit({".gitignore": "__pycache__/\n", "auth/__init__.py": ""})
        variables = {"HOME": str(tmp_path / "home"), "PATH": "/usr/local/bin:/usr/bin:/bin"}
        model = ScriptedModel(script)
        async with retinue.open(
            repo.root,
            model=model,
            mode="auto",
            environment=Environment(variables=variables),
            unsafe_no_sandbox=True,
        ) as rt:
            return await rt.execute(parse((RECIPES / name).read_text("utf-8"))), model

    return carry


def told(model: ScriptedModel, task: str) -> str:
    return next(
        text for r in model.requests if (text := r.messages[1].content).lstrip().startswith(task)
    )


async def test_research_then_implement(carry_out: Carry, repo: Repo) -> None:
    finding = {"title": "Expiry", "task": "Refuse expired tokens.", "files": ["auth/jwt.py"]}
    review = json.dumps({"summary": "One thing.", "findings": [finding]})
    done, model = await carry_out(
        "research-then-implement.toml",
        {
            "You are a reviewer": [say(review)],
            "How does this project": [call("list_dir", path="."), say("Basic auth, no JWT.")],
            "From the research": [say("issue(user), check(token)")],
            "Implement JWT": [
                call("write_file", path="auth/jwt.py", content="def check(token): ...\n"),
                say("Added auth/jwt.py."),
            ],
            "Refuse expired": [
                call("edit_file", path="auth/jwt.py", old_text="...", new_text="raise ValueError"),
                say("Done."),
            ],
        },
    )
    assert done.ok, done.report
    assert "raise ValueError" in (repo.root / "auth" / "jwt.py").read_text()
    handed = told(model, "Implement JWT")
    assert "Basic auth, no JWT." in handed
    assert "issue(user), check(token)" in handed
    assert [str(o.state) for o in done.steps] == ["done"] * 4
    assert "python3 -m compileall -q auth: passed" in done.report


async def test_parallel_research(carry_out: Carry) -> None:
    done, model = await carry_out(
        "parallel-research.toml",
        {
            "Put the reports": [say("Errors are logged twice.")],
            "Find where exceptions": [say("In api.py.")],
            "Find the exception": [say("Two classes.")],
            "Find where errors": [say("In log.py.")],
        },
    )
    assert done.ok, done.report
    handed = told(model, "Put the reports")
    assert "In api.py." in handed
    assert "Two classes." in handed


TESTS = """\
import unittest
from pricing import calculate_discount


class Discount(unittest.TestCase):
    def test_recipe_runs(self):
        self.assertEqual(calculate_discount(200, 25), 150)
"""


async def test_test_driven_development(carry_out: Carry, repo: Repo) -> None:
    def implement(request: Any) -> Step:
        # Wrong at first: the check finds it, and the second child is told.
        mended = "An earlier try at this failed" in request.messages[1].content
        body = "price * (100 - percent) / 100" if mended else "price"
        text = f"def calculate_discount(price, percent):\n    return {body}\n"
        return call("write_file", path="pricing.py", content=text)

    done, model = await carry_out(
        "test-driven.toml",
        {
            "Write unittest": [
                call("write_file", path="tests/test_pricing.py", content=TESTS),
                say("One test."),
            ],
            "Implement calculate": [implement, say("Implemented.")],
            "Run tests/": [
                call("run_command", command="python3 -m unittest tests/test_pricing.py"),
                say("All pass."),
            ],
        },
    )
    assert done.ok, done.report
    assert len(done["implement"].results) == 2
    assert "(100 - percent)" in (repo.root / "pricing.py").read_text()
    again = [r.messages[1].content for r in model.requests if "An earlier try" in str(r.messages)]
    assert "AssertionError: 200 != 150" in again[0]
    verified = done["verify"].result
    assert verified is not None
    assert [r.exit_code for r in verified.receipts] == [0]


def test_every_recipe_is_tested_and_listed() -> None:
    listed = (RECIPES / "README.md").read_text("utf-8")
    tested = Path(__file__).read_text("utf-8")
    for path in RECIPES.glob("*.toml"):
        assert path.name in listed
        assert path.name in tested
