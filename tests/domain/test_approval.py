from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.approval import Rule, Rules, Safety, Verdict, rule, rule_for, safety
from retinue.errors import ConfigError


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "ls -la src",
        "grep -rn 'a b' src",
        "grep -o x y",
        "wc -c x",
        "date",
        "git status",
        "git status -sb",
        "git log --oneline -5",
        "git log -n 5 --author=me --format='%h %s' -- src",
        "git --no-pager log -p",
        "git diff --stat HEAD~3 -- src/*.py",
        "git show HEAD:src/a.py",
        "git grep -n --ignore-case 'a b'",
        "git ls-files '*.py'",
        "git describe --tags --always",
        "git rev-parse --show-toplevel",
        "git blame -L 1,5 a.py",
    ],
)
def test_commands_that_read(command: str) -> None:
    assert safety(command) is Safety.READ_ONLY


@pytest.mark.parametrize(
    "command",
    [
        "",
        "ls; touch x",
        "ls && touch x",
        "ls | tee x",
        "ls > x",
        "cat <(touch x)",
        "echo $(touch x)",
        "echo `touch x`",
        "ls &",
        "ls\ntouch x",
        "echo ${x:=y}",
        "git diff --output=x",
        "git -c core.pager=touch log",
        "git grep -Otouch x",
        "git commit -m x",
        "git",
        "git grep -nOsh x",
        "git grep -lOsh x",
        "git grep --open=sh x",
        "git grep --open-files-in-pager=sh x",
        "git log --outpu=x",
        "git log --author -- --output=x",
        "git diff --ext-diff",
        "git diff --ext x",
        "git log --textconv",
        "git describe -x",
        "git status --help",
        "git -C other log",
        "git diff *",
        "git diff ''*",
        "uniq a b",
        "uniq a",
        "file -C",
        "date -s x",
        "date 01010101",
        "sort -o x y",
        "sed -i s/a/b/ x",
        "awk x y",
        "tee x",
        "env",
        "less x",
        "man x",
        "rg --pre sh x",
        "tree -o x",
        "find . -fprint x",
        "find . -exec touch x +",
        "find . -name rm",
        "ls | xargs touch",
        "./ls",
        "/tmp/ls",
        "PATH=. ls",
        "'ls x",
        "make",
        "rm x",
        "python3 x.py rm -rf",
    ],
)
def test_commands_that_may_change_something(command: str) -> None:
    assert safety(command) is Safety.CHANGING


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf build",
        "rm --recursive x",
        "ls; rm -fr /",
        "ls | xargs rm -r",
        "/bin/rm -r x",
        "echo $(git push)",
        "git reset --hard",
        "git clean -fdx",
        "dd if=/dev/zero of=x",
        "sudo ls",
        "find . -name x -delete",
        "mkfs.ext4 /dev/sda",
        "X=1 rm -rf src",
        "X=1 Y='a b' rm -rf src",
        "! rm -rf src",
        "if true; then X=1 rm -rf src; fi",
        "while rm -rf src; do true; done",
        "2>/dev/null rm -rf src",
        "rm --recurs src",
        "find . -exec rm -rf {} +",
        "find . -exec rm {} \\;",
        "find -delete",
        "ls | xargs rm",
        "ls | xargs -n 1 rm",
        "env find . -exec rm {} +",
        "bash -c 'rm -rf src'",
        "bash -c 'cd x; rm -rf src'",
        "env X=1 sh -c \"sh -c 'rm -rf src'\"",
        "time -p rm -rf src",
        "eval rm -rf src",
        "r''m -rf src",
        "rm \\\n -rf src",
        "git -C a -c b=c --no-pager push",
        "A=1 git reset --hard",
    ],
)
def test_commands_that_destroy(command: str) -> None:
    assert safety(command) is Safety.DESTRUCTIVE


@given(st.text(alphabet="ls; |&<>$`()\n\\\"'rm-x"))
def test_no_text_breaks_it_and_none_with_signs_only_reads(text: str) -> None:
    if any(sign in text for sign in ";|&<>$`()\n\\"):
        assert safety(text) is not Safety.READ_ONLY
    else:
        safety(text)


@pytest.mark.parametrize(
    ("text", "subject", "fits"),
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
def test_rules(text: str, subject: str, fits: bool) -> None:
    assert str(rule(text)) == text
    assert rule(text).fits("run_command", subject) is fits


@pytest.mark.parametrize("text", ["", "run command", "run_command(", "run_command()", "(x)"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ConfigError, match="is no rule; write a tool, or a tool and a pattern"):
        rule(text)


def judge(rules: Rules, command: str, *, asked: bool = True) -> Verdict:
    return rules.judge("run_command", command, is_command=True, asked=asked)


def test_deny_before_ask_before_allow() -> None:
    rules = Rules(
        allow=(rule("run_command(make *)"), rule("run_command(git push *)")),
        deny=(rule("run_command(make deploy*)"),),
    )
    assert judge(rules, "make test") is Verdict.ALLOW
    assert judge(rules, "make deploy") is Verdict.DENY
    assert judge(rules, "make deploy", asked=False) is Verdict.DENY
    assert judge(rules, "ls && make deploy-now") is Verdict.DENY
    assert judge(rules, "cargo test") is Verdict.ASK
    assert judge(rules, "cargo test", asked=False) is Verdict.ALLOW
    assert judge(rules, "git push origin") is Verdict.ALLOW


def test_what_reads_needs_no_yes_and_what_destroys_always_does() -> None:
    assert judge(Rules(), "git status") is Verdict.ALLOW
    assert judge(Rules(), "rm -rf build", asked=False) is Verdict.ASK


def test_a_rule_does_not_allow_what_is_hidden_behind_its_command() -> None:
    rules = Rules(allow=(rule("run_command(git log *)"),))
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
def test_a_rule_for_what_reads_does_not_allow_it_to_write_or_to_run(command: str) -> None:
    rules = Rules(allow=(rule("run_command(git log *)"), rule("run_command(git grep *)")))
    assert judge(rules, command) is Verdict.ASK
    exactly = Rules(allow=(rule(f"run_command({command})"),))
    assert judge(exactly, command) is (Verdict.ASK if "*" in command else Verdict.ALLOW)


def test_a_rule_allows_what_nobody_has_heard_of_yet() -> None:
    rules = Rules(allow=(rule("run_command(git log *)"),))
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
def test_what_is_denied_is_denied_however_it_is_spelled(command: str) -> None:
    rules = Rules(allow=(rule("run_command"),), deny=(rule("run_command(git push *)"),))
    assert judge(rules, command, asked=False) is Verdict.DENY


@pytest.mark.parametrize("command", ["git pull", "git log push", "echo git push", "git pushed"])
def test_what_is_not_denied(command: str) -> None:
    assert judge(Rules(deny=(rule("run_command(git push *)"),)), command, asked=False) is (
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
def test_what_is_allowed_is_just_that(command: str, verdict: Verdict) -> None:
    assert judge(Rules(allow=(rule("run_command(make test *)"),)), command) is verdict


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
        allow=(rule("write_file(./docs/*)"),),
        deny=(rule("write_file(secrets/*)"), rule("write_file(/etc/*)")),
    )
    assert rules.judge("write_file", path, is_command=False, asked=True) is verdict


def test_a_long_command_is_judged_at_once() -> None:
    for text in ("env " + "a " * 20_000, "1" * 100_000, "<" * 100_000, "env '" + "x; " * 20_000):
        assert judge(Rules(deny=(rule("run_command(b)"),)), text) is Verdict.ASK


def test_of_other_tools_only_rules_are_known() -> None:
    rules = Rules(allow=(rule("write_file(docs/*)"),), deny=(rule("write_file(docs/api*)"),))

    def write(path: str) -> Verdict:
        return rules.judge("write_file", path, is_command=False, asked=True)

    assert write("docs/a.md") is Verdict.ALLOW
    assert write("docs/api.md") is Verdict.DENY
    assert write("src/a.py") is Verdict.ASK


@pytest.mark.parametrize(
    ("command", "remembered"),
    [
        ("git log -5", "run_command(git log *)"),
        ("make", "run_command(make *)"),
        ("pytest tests/a.py -q", "run_command(pytest *)"),
        ("ls; touch x", "run_command(ls; touch x)"),
        ("rm -rf build", "run_command(rm -rf build)"),
        ("", "run_command"),
        ("X=1 git log", "run_command(X=1 git log)"),
        ("bash build.sh", "run_command(bash build.sh)"),
    ],
)
def test_what_always_means(command: str, remembered: str) -> None:
    assert str(rule_for("run_command", command)) == remembered
    assert rule_for("run_command", command).fits("run_command", command)


def test_a_rule_is_a_value() -> None:
    assert rule("a(b)") == Rule("a", "b")
