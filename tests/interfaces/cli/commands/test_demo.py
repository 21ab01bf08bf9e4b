"""`retinue demo`."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec
import pytest

from retinue import Event, fold
from retinue.domain.events import ModelFailed, ModelReplied, ToolDenied, ToolFinished
from retinue.domain.run_state import RunState
from retinue.embedded.adapter import PACKAGE, Adapter, installed_adapter
from retinue.embedded.model import is_available
from retinue.errors import EndpointUnusable
from retinue.interfaces.cli.commands.demo import (
    JOB,
    LOOK,
    PROBLEM_TASKS,
    QUESTIONS,
    REVIEW_TASKS,
    copy_tree,
    demo_files,
    scripted_model,
)
from retinue.interfaces.cli.main import main
from retinue.models.scripted.model import ScriptedModel, call, calls, say

Demo = Callable[..., str]


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """Runs `retinue demo --fast` with 80 columns, and returns its output."""

    def perform(*arguments: str, exit_code: int = 0) -> str:
        said = io.StringIO()
        with pytest.raises(SystemExit) as ended, redirect_stdout(said), redirect_stderr(said):
            main(["demo", "--fast", *arguments])
        assert ended.value.code == exit_code
        return said.getvalue()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        # The first part has tests of its own.
        patch.setitem(sys.modules, "xllamacpp", None)
        patch.setitem(sys.modules, PACKAGE, None)
        yield perform


@pytest.fixture(scope="module")
def said(demo: Demo) -> str:
    return demo()


@pytest.fixture(scope="module")
def events(demo: Demo) -> list[Event]:
    return [msgspec.json.decode(line, type=Event) for line in demo("--json").splitlines()]


@pytest.fixture
def view(events: list[Event]) -> RunState:
    """The fan-out that happens here."""
    return fold([event for event in events if event.run_id == events[-1].run_id])


@pytest.fixture
def session(events: list[Event]) -> list[Event]:
    """The events of the recorded session."""
    return [event for event in events if event.run_id == events[0].run_id]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    copy_tree(demo_files() / "snip", tmp_path / "snip")
    return tmp_path / "snip"


def test_demo_says_what_is_scripted_and_what_is_real(said: str) -> None:
    said = " ".join(said.split())
    assert "This is a replay of a session that was recorded on" in said
    assert "except that the model's replies were scripted" in said
    assert "This part runs on your machine, again with scripted replies of the model." in said
    assert "The tools, contracts, budgets, journal and audit are real." in said


def test_missing_embedded_model_is_reported(said: str) -> None:
    assert (
        "Skipped: The embedded model is not installed: pip install 'retinue[embedded]'."
    ) in said


def test_session_has_research_merges_a_conflict_a_kill_and_a_resume(
    session: list[Event],
) -> None:
    agents = fold(session).agents
    roles = [agent.path.rpartition("/")[2].partition(".")[0] for agent in agents.values()]
    assert roles == ["root", "researcher", "researcher", "executor", "executor", "tester"]
    statuses = [str(agent.status) for agent in agents.values()]
    assert statuses == ["completed"] * 4 + ["conflict", "completed"]
    types = [event.type for event in session]
    assert types.count("agent.worktree_merged") == 3
    # Nobody suspended it: the process was gone.
    assert "run.suspended" not in types
    assert types.index("run.resumed") > types.index("agent.worktree_merged")
    assert {event.epoch for event in session} == {1, 2}


def test_session_is_replayed_and_audited(said: str) -> None:
    assert "the process was killed here; `retinue resume` continues the run" in said
    assert "a4  conflict after 2 turns" in said
    assert "$ retinue show session.retinue" in said
    assert re.search(r"\$ retinue audit session.retinue\n  ok: \d+ events and 6 contracts", said)


def test_quotes_in_the_session_are_in_the_repository(
    session: list[Event], repository: Path
) -> None:
    answers = " ".join(agent.response for agent in fold(session).agents.values())
    for path, line in re.findall(r"([\w/.]+):(\d+)", answers):
        assert (repository / path).read_text().splitlines()[int(line) - 1].strip()
    text = msgspec.json.encode([event.payload for event in session]).decode()
    for old in ("LENGTH = 4", "Links expire after 30 days."):
        assert old in text
        assert any(old in path.read_text() for path in _files(repository))


def test_demo_shows_progress_results_and_totals(said: str) -> None:
    assert "a1  → read_file snip/codes.py" in said
    for task in REVIEW_TASKS:
        assert task.task in said
    assert "4 of 5 completed" in said
    assert "of 100,000 tokens used" in said


def test_demo_shows_other_commands_on_its_run(said: str) -> None:
    run = re.search(r"\$ retinue audit (\w+)$", said, re.MULTILINE)
    assert run is not None
    assert f"$ retinue show {run[1]}" in said
    assert f"  run {run[1]}: error (1 of 5 children failed)" in said
    assert re.search(rf"  ok: \d+ events and 6 contracts of run {run[1]}", said)


def test_demo_ends_with_next_steps(said: str) -> None:
    end = said.partition("Next steps")[2]
    assert "export RETINUE_MODEL=openai:MODEL@http://127.0.0.1:8080/v1" in end
    assert "export OPENAI_API_KEY=" in end
    assert 'retinue run "' in end
    assert "export PATH" not in end


def test_path_hint_if_retinue_is_not_on_the_path(
    demo: Demo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    for called, shown in (("env/bin/retinue", "$PWD/env/bin"), ("/opt/bin/retinue", "/opt/bin")):
        monkeypatch.setattr("sys.argv", [called])
        assert f'  export PATH="{shown}:$PATH"\n' in demo()


def test_nothing_is_wider_than_the_terminal(said: str) -> None:
    assert [line for line in said.splitlines() if len(line) > 80] == []


def test_json_prints_only_events(events: list[Event], view: RunState) -> None:
    for run_id in {event.run_id for event in events}:
        seqs = [event.seq for event in events if event.run_id == run_id]
        assert seqs == list(range(1, len(seqs) + 1))
    assert events[-1].type == "run.finished"
    assert [agent.title for agent in view.agents.values()][1:] == [
        task.task for task in REVIEW_TASKS
    ]


def test_four_children_complete_and_one_ends_at_its_limit(view: RunState) -> None:
    statuses = [str(agent.status) for agent in view.agents.values()][1:]
    assert statuses == ["completed"] * 4 + ["budget_exceeded"]
    assert view.agents["a5"].response


def test_problems_in_the_demo_are_real(events: list[Event]) -> None:
    facts = [event.fact for event in events if event.run_id == events[-1].run_id]
    failed = [fact for fact in facts if isinstance(fact, ModelFailed)]
    denied = [fact.tool for fact in facts if isinstance(fact, ToolDenied)]
    broken = [f.content for f in facts if isinstance(f, ToolFinished) and not f.receipt.ok]
    assert [fact.retry_in_s is not None for fact in failed] == [True]
    assert sorted(denied) == ["read_file", "write_file"]
    assert len(broken) == 1
    assert "No file 'test/test_codes.py'" in broken[0]


def test_answers_in_the_demo_are_true(
    events: list[Event], view: RunState, repository: Path
) -> None:
    whole = "".join(path.read_text() for path in _files(repository))
    answers = " ".join(agent.response for agent in view.agents.values())
    quoted = re.findall(r"`([^`]+)`", answers)
    places = re.findall(r"([\w/.]+):(\d+)", answers)
    assert quoted
    assert places
    assert [text for text in quoted if text not in whole] == []
    for path, line in places:
        assert (repository / path).read_text().splitlines()[int(line) - 1].strip()
    replies = [event.fact for event in events if event.type == "model.replied"]
    counted = [r.content for r in replies if isinstance(r, ModelReplied) and "files" in r.content]
    assert any("Eleven files" in text for text in counted)
    assert len(list(_files(repository))) == 11


def test_every_rule_of_the_script_has_a_task() -> None:
    rules = [
        rule.removeprefix("rule ").strip("'") for rule in scripted_model(fast=True).leftovers()
    ]
    assert len(rules) == len(REVIEW_TASKS)
    for rule, task in zip(rules, REVIEW_TASKS, strict=True):
        assert rule in task.task


def test_keep_leaves_the_files(demo: Demo, tmp_path: Path) -> None:
    said = demo("--keep", str(tmp_path / "new"))
    assert (tmp_path / "new" / "snip" / "codes.py").is_file()
    shown = re.search(r"show (\w+) a3", said)
    assert shown is not None
    with pytest.raises(SystemExit) as ended:
        main(["audit", shown[1], "-C", str(tmp_path / "new")])
    assert ended.value.code == 0


def test_existing_directory_is_not_used(demo: Demo, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "mine").write_text("precious")
    assert "name a new or an empty directory" in demo("--keep", str(folder), exit_code=2)
    assert [path.name for path in folder.iterdir()] == ["mine"]


def test_settings_and_variables_of_the_user_are_ignored(
    demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "retinue").mkdir()
    (tmp_path / "retinue" / "config.toml").write_text("this is not TOML")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("RETINUE_MODEL", "nonsense:")
    monkeypatch.setenv("RETINUE_MODE", "nonsense")
    assert "4 of 5 completed" in demo()


# With the adapter of the embedded model

EDIT = "Set LENGTH to 6 in snip/codes.py."


class _Opened(ScriptedModel):
    """In place of the embedded model with its adapter. `refusal`: why it does not start."""

    refusal = ""

    async def open(self, on_progress: Callable[[str], None]) -> None:
        on_progress("starting")
        if self.refusal:
            raise EndpointUnusable(self.refusal)


@pytest.fixture
def adapted(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> _Opened:
    model = _Opened(
        {
            LOOK: [
                call("list_dir", path="."),
                call("read_file", path="README.md"),
                say("snip is a URL shortener."),
            ],
            JOB: [
                calls(
                    call("spawn_agent", role="researcher", task="What does docs/hosting.md say?"),
                    call("spawn_agent", role="executor", task=EDIT),
                ),
                say("- docs/hosting.md: on hosting.\n- snip/codes.py: done."),
            ],
            EDIT: [
                call(
                    "edit_file",
                    path="snip/codes.py",
                    old_text="LENGTH = 4",
                    new_text="LENGTH = 6",
                ),
                say("Done."),
            ],
            "What does docs": [call("read_file", path="docs/hosting.md"), say("On hosting.")],
        },
        strict=False,
    )
    commands = "retinue.interfaces.cli.commands.demo"
    monkeypatch.setattr(f"{commands}.embedded_model", lambda _: model)
    monkeypatch.setattr(f"{commands}.installed_adapter", lambda: Adapter(path=Path("a")))
    return model


@pytest.mark.usefixtures("adapted")
def test_model_with_tools_leads_children(demo: Demo) -> None:
    said = demo()
    assert f'$ retinue run -m embedded "{LOOK}"' in said
    assert "a0  → read_file README.md" in said
    assert "a1  → read_file docs/hosting.md" in said
    # Without a sandbox there are no checks, and the demo says so.
    checked = 'a2  check python3 -c "import snip.server": passed' in said
    assert checked != ("without a sandbox, unchecked" in " ".join(said.split()))
    steps = ["a2  → edit_file snip/codes.py LENGTH = 4 LENGTH = 6", "a2  merged as "]
    steps += ["    - docs/hosting.md: on hosting.\n", "+LENGTH = 6", "$ retinue undo "]
    steps += ["1 file undone.", "$ retinue audit ", "Part 2"]
    assert sorted(steps, key=said.index) == steps


@pytest.mark.usefixtures("adapted")
def test_other_parts_are_shorter_after_a_real_job(demo: Demo) -> None:
    said = demo()
    flat = " ".join(said.split())
    assert "These are the last seconds of a session that was recorded on" in flat
    assert "except that the model's replies were scripted" in flat
    assert "with scripted replies of the model" in flat
    assert "How are codes made" not in said
    assert "the process was killed here; `retinue resume` continues the run" in said
    for task in PROBLEM_TASKS:
        assert task.task in said
    assert 'retinue run -m embedded "What does this project do?"' in said
    assert [line for line in said.splitlines() if len(line) > 80] == []


@pytest.mark.usefixtures("adapted")
def test_events_of_the_real_job_are_printed_as_json(demo: Demo) -> None:
    events = [msgspec.json.decode(line, type=Event) for line in demo("--json").splitlines()]
    runs = list(dict.fromkeys(event.run_id for event in events))
    assert len(runs) == 4
    merged = fold([event for event in events if event.run_id == runs[1]])
    assert [agent.role for agent in merged.agents.values()] == ["lead", "researcher", "executor"]


def test_demo_without_the_adapter_follows_a_failed_start(demo: Demo, adapted: _Opened) -> None:
    adapted.refusal = "The embedded model needs 400 MB of memory, and 12 MB are free."
    said = demo()
    assert "Skipped: The embedded model needs 400 MB of memory" in said
    assert "4 of 5 completed" in said


@pytest.fixture
def live(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Demo:
    """Runs the demo with what is installed here."""
    monkeypatch.undo()  # The other tests hide the embedded model, and set another cache.
    if not is_available():
        pytest.skip("llama.cpp is missing: run script/servers")

    def perform(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["demo", "--fast", *arguments])
        assert ended.value.code == 0
        return capsys.readouterr().out

    return perform


@pytest.mark.live
def test_the_embedded_model_answers_every_question(
    tmp_path: Path, live: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    said = live("--keep", str(tmp_path / "new"))
    assert f"{len(QUESTIONS)} of {len(QUESTIONS)} completed" in said
    report = (tmp_path / "new" / "report.md").read_text()
    # The model may write headings of its own.
    headings = re.findall(r"^# (.*)$", report, re.MULTILINE)
    assert [heading for heading in headings if heading in QUESTIONS] == list(QUESTIONS)


@pytest.mark.live
def test_the_embedded_model_leads_children(tmp_path: Path, live: Demo) -> None:
    if installed_adapter() is None:
        pytest.skip("the adapter is missing: run script/servers")
    said = live("--keep", str(tmp_path / "new"))
    assert "URL shortener" in said
    for path in ("docs/hosting.md", "docs/privacy.md"):
        assert re.search(rf"a\d  → read_file {path}", said)
        assert f"    - {path}: snip " in said
    assert re.search(r"a3  merged as \w+", said)
    assert "  +LENGTH = 6\n" in said
    assert "1 file undone." in said
    assert "LENGTH = 4" in (tmp_path / "new" / "snip" / "codes.py").read_text()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_session_can_be_recorded_again(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    target = tmp_path / "session.retinue"
    command = [sys.executable, str(root / "docs" / "session.py"), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{target}\n"), done.stderr
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(target)])
    assert ended.value.code == 0
