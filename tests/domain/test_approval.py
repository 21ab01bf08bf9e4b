from __future__ import annotations

import msgspec
import pytest

from retinue.domain.approval import (
    ApprovalReason,
    ApprovalRequest,
    Rule,
    Rules,
    Verdict,
    parse_rule,
    rule_for,
)
from retinue.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "subject", "matches"),
    [
        ("run_command(git log *)", "git log -5", True),
        ("run_command(git log *)", "git log", True),
        ("run_command(git log *)", "git logout", False),
        ("run_command", "anything", True),
        ("run_command(make [a])", "make [a]", True),
        ("run_command(make [a])", "make a", False),
        ("write_file(docs/*)", "docs/a.md", False),
    ],
)
def test_rules(text: str, subject: str, matches: bool) -> None:
    assert str(parse_rule(text)) == text
    assert parse_rule(text).matches("run_command", subject) is matches


@pytest.mark.parametrize(
    ("text", "tool", "subject"),
    [
        ("Bash(git log:*)", "run_command", "git log -5"),
        ("Write(docs/*)", "write_file", "docs/a.md"),
        ("WebFetch(domain:docs.python.org)", "web_fetch", "docs.python.org"),
        ("fetch(docs.python.org)", "web_fetch", "docs.python.org"),
    ],
)
def test_rules_of_other_agents(text: str, tool: str, subject: str) -> None:
    assert parse_rule(text).matches(tool, subject)
    assert not parse_rule(text).matches(tool, f"other {subject}")


@pytest.mark.parametrize("text", ["", "run command", "run_command(", "run_command()", "(x)"])
def test_malformed_rule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no rule; write a tool, or a tool and a pattern"):
        parse_rule(text)


def judge(rules: Rules, command: str, *, asked: bool = True) -> Verdict:
    return rules.judge("run_command", command, is_command=True, asked=asked)[0]


def test_deny_before_ask_before_allow() -> None:
    rules = Rules(
        allow=(parse_rule("run_command(make *)"), parse_rule("run_command(git push *)")),
        deny=(parse_rule("run_command(make deploy*)"),),
    )
    assert judge(rules, "make test") is Verdict.ALLOW
    assert judge(rules, "make deploy") is Verdict.DENY
    assert judge(rules, "make deploy", asked=False) is Verdict.DENY
    assert judge(rules, "ls && make deploy-now") is Verdict.DENY
    assert judge(rules, "cargo test") is Verdict.ASK
    assert judge(rules, "cargo test", asked=False) is Verdict.ALLOW
    assert judge(rules, "git push origin") is Verdict.ALLOW


def test_reading_needs_no_approval_and_destroying_always_does() -> None:
    assert judge(Rules(), "git status") is Verdict.ALLOW
    assert judge(Rules(), "rm -rf build", asked=False) is Verdict.ASK


def test_a_rule_does_not_allow_further_commands() -> None:
    rules = Rules(allow=(parse_rule("run_command(git log *)"),))
    for command in ("git log; touch x", "git log $(touch x)", "git log > x", "git log\ntouch x"):
        assert judge(rules, command) is Verdict.ASK


@pytest.mark.parametrize(
    "command",
    [
        "git log & touch x",
        "git log `touch x`",
        "git log --output=x",
        "git log --output x",
        "git log '--output=x'",
        "git log --outp=x",
        "git log -1 --ext-diff",
        "git log --textconv",
        "git log *",
        "git log --outp*",
        "git log ?-output=x",
        "git grep -Otouch x",
        "git grep --open=touch x",
    ],
)
def test_a_rule_for_reading_git_does_not_allow_options_with_side_effects(command: str) -> None:
    rules = Rules(
        allow=(parse_rule("run_command(git log *)"), parse_rule("run_command(git grep *)"))
    )
    assert judge(rules, command) is Verdict.ASK
    exactly = Rules(allow=(parse_rule(f"run_command({command})"),))
    assert judge(exactly, command) is (Verdict.ASK if "*" in command else Verdict.ALLOW)


def test_a_rule_allows_unknown_options() -> None:
    rules = Rules(allow=(parse_rule("run_command(git log *)"),))
    assert judge(rules, "git log --some-new-option -3 'a*'") is Verdict.ALLOW


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "git  push x",
        "git\tpush",
        "X=1 git push",
        "! git push",
        "if true; then git push; fi",
        "true && git push",
        "(git push)",
        "'git' push",
        "git \\\n push",
        "/usr/bin/git push",
        "git -C . push",
        "env X=1 git push",
        "nice -n 5 git push",
        "sh -c 'git push'",
        ">x git push",
    ],
)
def test_a_denied_command_is_found_in_every_spelling(command: str) -> None:
    rules = Rules(allow=(parse_rule("run_command"),), deny=(parse_rule("run_command(git push *)"),))
    assert judge(rules, command, asked=False) is Verdict.DENY


@pytest.mark.parametrize("command", ["git pull", "git log push", "echo git push", "git pushed"])
def test_similar_commands_are_not_denied(command: str) -> None:
    assert judge(Rules(deny=(parse_rule("run_command(git push *)"),)), command, asked=False) is (
        Verdict.ALLOW
    )


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("make test", Verdict.ALLOW),
        ("make   test\t-k", Verdict.ALLOW),
        ("PATH=. make test", Verdict.ASK),
        ("env make test", Verdict.ASK),
        ("! make test", Verdict.ASK),
        ("make 'test -k'", Verdict.ASK),
    ],
)
def test_an_allowed_command_allows_no_variables_or_wrappers(command: str, verdict: Verdict) -> None:
    assert judge(Rules(allow=(parse_rule("run_command(make test *)"),)), command) is verdict


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ("docs/a", Verdict.ALLOW),
        ("./docs//a", Verdict.ALLOW),
        ("src/../docs/a", Verdict.ALLOW),
        ("docs/../src/a", Verdict.ASK),
        ("docs/../../docs/a", Verdict.ASK),
        ("secrets/k", Verdict.DENY),
        ("docs/../secrets/k", Verdict.DENY),
        ("docs/./.././secrets//k", Verdict.DENY),
        ("//etc/k", Verdict.DENY),
        ("", Verdict.ASK),
    ],
)
def test_a_path_is_judged_by_where_it_leads(path: str, verdict: Verdict) -> None:
    rules = Rules(
        allow=(parse_rule("write_file(./docs/*)"),),
        deny=(parse_rule("write_file(secrets/*)"), parse_rule("write_file(/etc/*)")),
    )
    assert rules.judge("write_file", path, is_command=False, asked=True)[0] is verdict


def test_a_long_command_is_judged_at_once() -> None:
    for text in ("env " + "a " * 20_000, "1" * 100_000, "<" * 100_000, "env '" + "x; " * 20_000):
        assert judge(Rules(deny=(parse_rule("run_command(b)"),)), text) is Verdict.ASK


def test_other_tools_are_judged_by_rules_alone() -> None:
    rules = Rules(
        allow=(parse_rule("write_file(docs/*)"),), deny=(parse_rule("write_file(docs/api*)"),)
    )

    def write(path: str) -> Verdict:
        return rules.judge("write_file", path, is_command=False, asked=True)[0]

    assert write("docs/a.md") is Verdict.ALLOW
    assert write("docs/api.md") is Verdict.DENY
    assert write("src/a.py") is Verdict.ASK


@pytest.mark.parametrize(
    ("command", "remembered"),
    [
        ("git log -5", "run_command(git log *)"),
        ("make", "run_command(make *)"),
        ("python -m unittest tests.a", "run_command(python -m unittest *)"),
        ("npm run build --prod", "run_command(npm run build *)"),
        ("cargo run", "run_command(cargo run *)"),
        ("pytest tests/a.py -q", "run_command(pytest *)"),
        ("ls; touch x", "run_command(ls; touch x)"),
        ("rm -rf build", "run_command(rm -rf build)"),
        ("", "run_command"),
        ("X=1 git log", "run_command(X=1 git log)"),
        ("bash build.sh", "run_command(bash build.sh)"),
    ],
)
def test_the_rule_for_always(command: str, remembered: str) -> None:
    assert str(rule_for("run_command", command)) == remembered
    assert rule_for("run_command", command).matches("run_command", command)


@pytest.mark.parametrize(
    ("path", "remembered"),
    [("src/a/b.py", "edit_file(src/a/*)"), ("setup.py", "edit_file(setup.py)")],
)
def test_always_for_a_file_covers_its_folder(path: str, remembered: str) -> None:
    request = ApprovalRequest(
        path="root", tool="edit_file", arguments="{}", why=ApprovalReason.MODE, file=path
    )
    assert str(request.rule) == remembered
    assert request.covered_by(Rules(allow=request.rules)) == request.rule
    elsewhere = msgspec.structs.replace(request, file="docs/a.md")
    assert elsewhere.covered_by(Rules(allow=request.rules)) is None


def test_a_rule_is_a_value() -> None:
    assert parse_rule("a(b)") == Rule("a", "b")


def test_always_for_a_fetch_is_about_its_host() -> None:
    rule = rule_for("web_fetch", "docs.python.org")
    assert str(rule) == "web_fetch(docs.python.org)"
    assert rule.matches("web_fetch", "docs.python.org")
    assert not rule.matches("web_fetch", "docs.python.org.evil.example")
