from __future__ import annotations

import pytest

from retinue.domain.evidence import unverified
from retinue.domain.result import Check, FileChange, Receipt

WROTE = Receipt(tool="write_file", ok=True, output_sha256="0", changed=(FileChange(path="a"),))


def ran(command: str, exit_code: int = 0, changed: tuple[FileChange, ...] = ()) -> Receipt:
    return Receipt(
        tool="run_command",
        ok=exit_code == 0,
        output_sha256="0",
        command=command,
        exit_code=exit_code,
        changed=changed,
    )


@pytest.mark.parametrize(
    "text",
    [
        "I fixed it. All tests pass.",
        "Done: all 12 tests passed.",
        "The test suite now passes!",
        "12 passed in 0.3s",
        "Implemented. The tests are passing and coverage is at 90 %.",
        "Tests: all green",
        "The build succeeds.",
    ],
)
def test_a_claim_without_a_receipt_is_told(text: str) -> None:
    assert unverified(text, [WROTE], []) in text
    assert unverified(text, [WROTE], []) != ""


@pytest.mark.parametrize(
    "text",
    [
        "I wrote the parser.",
        "The tests do not pass yet.",
        "The tests should pass now.",
        "I could not run the tests, so nobody knows whether they pass.",
        "Two tests failed and one passed its timeout.",
        "Make sure that the tests pass before merging.",
        "The password is passed on by the test fixture if it is set.",
        "Run the tests; if they pass, merge it.",
        "",
    ],
)
def test_what_is_no_claim(text: str) -> None:
    assert unverified(text, [], []) == ""


@pytest.mark.parametrize("command", ["pytest -q", "npm test", "go test ./...", "make check", "tox"])
def test_a_run_of_tests_after_the_last_change_bears_it_out(command: str) -> None:
    assert unverified("All tests pass.", [WROTE, ran(command)], []) == ""
    assert unverified("All tests pass.", [WROTE, ran(command), ran("ls")], []) == ""


def test_what_bears_nothing_out() -> None:
    claim = "All tests pass."
    assert unverified(claim, [ran("pytest", 1)], []) == claim
    assert unverified(claim, [ran("pytest"), WROTE], []) == claim
    assert unverified(claim, [ran("ls")], []) == claim
    assert unverified(claim, [ran("echo tes ted")], []) == claim


def test_tests_that_leave_files_behind_count() -> None:
    tested = ran("pytest", changed=(FileChange(path="report.xml"),))
    assert unverified("All tests pass.", [WROTE, tested], []) == ""


def test_an_acceptance_check_bears_it_out() -> None:
    passed = Check(command="pytest", exit_code=0, output_sha256="0")
    failed = Check(command="pytest", exit_code=1, output_sha256="0")
    late = Check(command="pytest", exit_code=0, output_sha256="0", timed_out=True)
    assert unverified("All tests pass.", [], [passed]) == ""
    assert unverified("All tests pass.", [], [failed]) == "All tests pass."
    assert unverified("All tests pass.", [], [late]) == "All tests pass."


def test_a_long_claim_is_cut() -> None:
    claim = "All tests pass" + " and more" * 40
    assert unverified(claim, [], []).endswith("…")
    assert len(unverified(claim, [], [])) == 160
