from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.command_safety import Safety, classify


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
    assert classify(command) is Safety.READ_ONLY


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
    assert classify(command) is Safety.CHANGING


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
    assert classify(command) is Safety.DESTRUCTIVE


@given(st.text(alphabet="ls; |&<>$`()\n\\\"'rm-x"))
def test_text_with_shell_syntax_is_never_read_only(text: str) -> None:
    if any(sign in text for sign in ";|&<>$`()\n\\"):
        assert classify(text) is not Safety.READ_ONLY
    else:
        classify(text)
