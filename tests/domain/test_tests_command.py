from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.evidence import still_tested
from retinue.domain.result import Receipt
from retinue.domain.tests_command import command_for_tests
from retinue.errors import ToolFailure


@pytest.mark.parametrize(
    ("setting", "selector", "command"),
    [
        ("pytest -q", "", "pytest -q"),
        ("pytest -q", "tests/a.py::test_b", "pytest -q tests/a.py::test_b"),
        ("npm test -- {selector}", "", "npm test --"),
        ("npm test -- {selector}", "a.test.ts", "npm test -- a.test.ts"),
        ("go test {selector:./...}", "", "go test ./..."),
        ("go test {selector:./...}", "./pkg", "go test ./pkg"),
        ("pytest", "a.py; rm -rf /", "pytest 'a.py;' rm /"),
    ],
)
def test_command(setting: str, selector: str, command: str) -> None:
    if "rm" in selector:
        with pytest.raises(ToolFailure, match="'-rf' is no test"):
            command_for_tests(setting, selector)
    else:
        assert command_for_tests(setting, selector) == command


@pytest.mark.parametrize("selector", ["--basetemp=src", "-k x", "SHELL=/bin/evil", "'open"])
def test_refused_selectors(selector: str) -> None:
    with pytest.raises(ToolFailure, match="run_tests: "):
        command_for_tests("make test", selector)


@given(st.text(max_size=40))
def test_selector_never_becomes_more_than_words(selector: str) -> None:
    try:
        command = command_for_tests("run", selector)
    except ToolFailure:
        return
    assert shlex.split(command) == ["run", *shlex.split(selector)]


def test_receipt_is_evidence() -> None:
    passed = Receipt(tool="run_tests", ok=True, output_sha256="", command="script/all", exit_code=0)
    failed = Receipt(
        tool="run_tests", ok=False, output_sha256="", command="script/all", exit_code=1
    )
    assert still_tested(False, passed)
    assert not still_tested(False, failed)
