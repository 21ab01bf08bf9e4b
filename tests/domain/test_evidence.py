from __future__ import annotations

import pytest

from retinue.domain.evidence import still_tested, unverified
from retinue.domain.result import FileChange, Receipt

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
        "ALL TESTS PASSED",
        "Tests: Passed.",
    ],
)
def test_claim_without_receipt_is_unverified(text: str) -> None:
    assert unverified(text, tested=False) in text
    assert unverified(text, tested=False) != ""


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
def test_sentence_that_is_not_a_claim(text: str) -> None:
    assert unverified(text, tested=False) == ""


def seen_to_pass(*receipts: Receipt) -> bool:
    found = False
    for receipt in receipts:
        found = still_tested(found, receipt)
    return found


@pytest.mark.parametrize(
    "command",
    [
        "pytest -q",
        "npm test",
        "go test ./...",
        "make check",
        "tox",
        "cd sub && PYTHONPATH=. python -m pytest -q 2>&1",
        "ls; pytest",
        "pytest > out.txt 2>/dev/null && tail out.txt",
        "pytest -k 'a or b' || exit 1",
        "bash -c 'cd x && pytest'",
        "uv run pytest",
        "timeout 60 ./run_tests.sh",
        "set -e; pytest; echo done",
        "make lint\nmake test",
    ],
)
def test_test_run_after_the_last_change_supports_a_claim(command: str) -> None:
    assert seen_to_pass(WROTE, ran(command))
    assert seen_to_pass(WROTE, ran(command), ran("ls"))
    assert unverified("All tests pass.", tested=True) == ""


def test_receipts_that_support_nothing() -> None:
    assert not seen_to_pass(ran("pytest", 1))
    assert not seen_to_pass(ran("pytest"), WROTE)
    assert not seen_to_pass(ran("ls"))
    assert not seen_to_pass(ran("echo tes ted"))


@pytest.mark.parametrize(
    "command",
    [
        "ls tests",
        "cat tests/test_a.py",
        "grep -rn test .",
        "git diff tests",
        "test -f setup.py",
        "echo 'all tests pass'",
        "pytest | tail -5",
        "pytest 2>&1 | tee out.txt",
        "pytest || true",
        "pytest; true",
        "pytest\ntrue",
        "pytest & ls",
        "pytest --version",
        "pytest --collect-only",
        "pip install pytest",
        "which pytest",
        "python -c 'print(\"test\")'",
        "bash -c 'pytest; true'",
        "pytest 'unclosed",
        "true # pytest",
    ],
)
def test_command_that_always_succeeds_supports_nothing(command: str) -> None:
    assert not seen_to_pass(ran(command))


def test_test_run_that_changes_files_counts() -> None:
    assert seen_to_pass(WROTE, ran("pytest", changed=(FileChange(path="report.xml"),)))


def test_long_claim_is_cut() -> None:
    claim = unverified("All tests pass" + " and more" * 40, tested=False)
    assert claim.endswith("…")
    assert len(claim) == 160
