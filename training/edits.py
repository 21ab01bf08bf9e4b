"""Tasks that change files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from retinue.embedded.prompt import MAX_RESULT_CHARS
from training import facts
from training.project import READ_TOOLS
from training.tasks import (
    Ask,
    Call,
    Choice,
    Script,
    Slip,
    Task,
    Want,
    declared_versions,
    edit_call,
    first_setting,
    found_first,
    listed,
    other_value,
    pick_setting,
    read_call,
    replaced,
    search_call,
    value_in,
)

MAX_QUOTED_CHARS = 60
_NAME = re.compile(r"\b[A-Za-z_]\w{4,24}\b")
_HEADING = re.compile(r"^\[[\w.\- ]+\]$", re.M)


def set_value(c: Choice) -> Task | None:
    picked = pick_setting(c)
    if picked is None:
        return None
    path, one = picked
    new = other_value(c, one.value)
    if new == one.value.strip("\"'"):
        return None
    named = c.draw.random() < 0.75
    question = c.say("SET", name=one.name, value=new, where=f" in {path}" if named else "")
    searched = path if named else None
    if not named and not found_first(c, path, one):
        return None
    newest = other_value(c, one.value)
    again = c.say("MAKE_IT", value=newest) if c.draw.random() < 0.15 else None
    changed = replaced(c.project, path, one.line, one.with_value(new))

    def script() -> Script:
        yield Ask(question)
        (answer,) = yield [search_call(facts.SETTING.format(name=one.name), searched)]
        hit = first_setting(facts.hits(answer), one.name)
        if hit is None or (found := facts.setting(hit.text)) is None:
            yield f"I found no {one.name}{f' in {path}' if named else ''}. I changed nothing."
            return
        now = found.with_value(new)
        (answer,) = yield [edit_call(hit.path, found.line, now)]
        yield f"Done: {one.name} is now {new} in {hit.path}."
        if again:
            yield Ask(again)
            newer = facts.Setting(one.name, value_in(now, one.name), now)
            yield [edit_call(hit.path, now, newer.with_value(newest))]
            yield f"Done: {one.name} is now {newest} in {hit.path}."

    want = Want(files={path: changed}) if not again else Want()
    return Task("set", c.writing_tools(), question, script(), want)


def set_version(c: Choice) -> Task | None:
    declared = declared_versions(c.project)
    if not declared:
        return None
    old = facts.version_of(declared[0])
    same = [hit for hit in declared if facts.version_of(hit) == old][:2]
    new = f"{c.draw.randint(0, 12)}.{c.draw.randint(0, 30)}.{c.draw.randint(0, 9)}"
    question = c.say("SET_VERSION", value=new)
    changed = {}
    for hit in same:
        line = hit.text.strip()
        if c.project.files[hit.path].count(line) != 1:
            return None
        changed[hit.path] = replaced(c.project, hit.path, line, line.replace(str(old), new, 1))

    def script() -> Script:
        yield Ask(question)
        yield [search_call(facts.VERSION)]
        lines = [(hit.path, hit.text.strip()) for hit in same]
        yield [edit_call(path, line, line.replace(str(old), new, 1)) for path, line in lines]
        yield f"Done: the version is now {new} in {listed([path for path, _ in lines])}."

    return Task("set version", c.writing_tools(), question, script(), Want(files=changed))


def replace(c: Choice) -> Task | None:
    path = c.path(".md", ".rst", ".txt", ".py", ".toml")
    words = re.findall(r"[A-Za-z][A-Za-z ,'-]{8,40}[A-Za-z]", c.project.files[path][:1500])
    words = [w for w in words if c.project.files[path].count(w) == 1 and "'" not in w]
    if not words:
        return None
    old = " ".join(c.draw.choice(words).split(" ")[: c.draw.randint(1, 4)])
    if c.project.files[path].count(old) != 1 or len(old) < 4:
        return None
    new = c.phrase(1, 4)
    if new == old:
        return None
    lost = c.draw.random() < 0.12
    if lost:
        old = f"{c.word()} {old}"
        if old in c.project.files[path]:
            return None
    question = c.say("REPLACE", path=path, old=old, new=new)

    def script() -> Script:
        yield Ask(question)
        (answer,) = yield [edit_call(path, old, new)]
        if answer.startswith("[ERROR]"):
            yield f'"{old}" is not in {path}. I changed nothing.'
        else:
            yield f'Done: {path} says "{new}" now.'

    text = c.project.files[path] if lost else replaced(c.project, path, old, new)
    want = Want(files={path: text}, refuses=lost)
    return Task("replace", c.writing_tools(), question, script(), want)


def append(c: Choice) -> Task | None:
    path = _visible_file(c)
    if path is None:
        return None
    text = c.project.files[path]
    last = _end(text)
    if last is None:
        return None
    line = _new_line(c, path)
    question = c.say("APPEND", path=path, line=line)
    # The last line alone may not be unique.
    short = text.rstrip("\n").split("\n")[-1].strip()
    tries_short = short != last and len(short) <= MAX_QUOTED_CHARS and c.draw.random() < 0.3

    def script() -> Script:
        yield Ask(question)
        yield [read_call(path)]
        if tries_short:
            (answer,) = yield Slip([edit_call(path, short, f"{short}\n{line}")])
            if not answer.startswith("[ERROR]"):
                yield f'Done: {path} ends with "{line}".'
                return
        yield [edit_call(path, last, f"{last}\n{line}")]
        yield f'Done: {path} ends with "{line}".'

    want = Want(files={path: f"{text}{line}\n"})
    return Task("append", c.writing_tools(), question, script(), want)


def prepend(c: Choice) -> Task | None:
    path = _visible_file(c)
    if path is None:
        return None
    text = c.project.files[path]
    first = text.partition("\n")[0]
    if len(first) > MAX_QUOTED_CHARS:
        first = first[:40].rpartition(" ")[0]
    if not first.strip() or text.count(first) != 1:
        return None
    line = _new_line(c, path)
    question = c.say("PREPEND", path=path, line=line)

    def script() -> Script:
        yield Ask(question)
        yield [read_call(path)]
        yield [edit_call(path, first, f"{line}\n{first}")]
        yield f'Done: {path} begins with "{line}".'

    want = Want(files={path: f"{line}\n{text}"})
    return Task("prepend", c.writing_tools(), question, script(), want)


def insert(c: Choice) -> Task | None:
    """A line after or before another line, which the user quotes."""
    picked = _quoted_line(c)
    if picked is None:
        return None
    path, near = picked
    line = _new_line(c, path)
    after = c.draw.random() < 0.7
    lost = c.draw.random() < 0.1
    if lost:
        near = f"{near} {c.word()}"
        if near in c.project.files[path]:
            return None
    question = c.say("AFTER_LINE" if after else "BEFORE_LINE", path=path, line=line, near=near)
    both = f"{near}\n{line}" if after else f"{line}\n{near}"

    def script() -> Script:
        yield Ask(question)
        (answer,) = yield [edit_call(path, near, both)]
        if answer.startswith("[ERROR]"):
            yield f'"{near}" is not in {path}. I changed nothing.'
        else:
            yield f'Done: {path} has "{line}" {"after" if after else "before"} "{near}".'

    text = c.project.files[path] if lost else replaced(c.project, path, near, both)
    want = Want(files={path: text}, refuses=lost)
    return Task("insert", c.writing_tools(), question, script(), want)


def add_setting(c: Choice) -> Task | None:
    """A line below the heading of a section."""
    path = c.path(".toml", ".cfg", ".ini")
    text = c.project.files[path]
    headings = [h for h in _HEADING.findall(text) if text.count(h) == 1]
    if not headings:
        return None
    heading = c.draw.choice(headings)
    value = c.draw.choice([str(c.draw.randint(0, 999)), "true", "false"])
    line = f"{c.word().lower()}{c.draw.choice(['', f'_{c.word().lower()}'])} = {value}"
    named = c.draw.choice([heading, heading[1:-1]])
    question = c.say("ADD_SETTING", path=path, line=line, section=named)

    def script() -> Script:
        yield Ask(question)
        yield [edit_call(path, heading, f"{heading}\n{line}")]
        yield f"Done: {path} has {line} in {heading}."

    want = Want(files={path: replaced(c.project, path, heading, f"{heading}\n{line}")})
    return Task("add setting", c.writing_tools(), question, script(), want)


def delete_line(c: Choice) -> Task | None:
    picked = _quoted_line(c)
    if picked is None:
        return None
    path, line = picked
    lost = c.draw.random() < 0.1
    if lost:
        line = f"{line} {c.word()}"
    text = c.project.files[path]
    if text.count(f"{line}\n") != (not lost):
        return None
    question = c.say("DELETE_LINE", path=path, line=line)

    def script() -> Script:
        yield Ask(question)
        (answer,) = yield [edit_call(path, f"{line}\n", "")]
        if answer.startswith("[ERROR]"):
            yield f'"{line}" is not in {path}. I changed nothing.'
        else:
            yield f'Done: "{line}" is no longer in {path}.'

    want = Want(files={path: text.replace(f"{line}\n", "")}, refuses=lost)
    return Task("delete line", c.writing_tools(), question, script(), want)


def rename(c: Choice) -> Task | None:
    """A name, at each of its places in a file."""
    path = c.path(".py", ".js", ".ts", ".md", ".toml", ".yml")
    text = c.project.files[path]
    names = [n for n in _NAME.findall(text[:MAX_RESULT_CHARS]) if text.count(n) <= 12]
    names = [n for n in names if len(re.findall(rf"\b{n}\b", text)) == text.count(n)]
    if not names:
        return None
    old = c.draw.choice(names)
    new = _name_like(c, old)
    if new in text:
        return None
    # People say it or not, and the tool says it.
    says_all = c.draw.random() < 0.6
    question = c.say("RENAME" if says_all else "REPLACE", path=path, old=old, new=new)
    several = text.count(old) > 1

    def script() -> Script:
        yield Ask(question)
        every = {**edit_call(path, old, new).arguments, "all": True}
        if not says_all:
            yield [edit_call(path, old, new)]
        if says_all or several:
            yield [Call("edit_file", every)]
        yield f'Done: {path} says "{new}" now.'

    want = Want(files={path: text.replace(old, new)})
    return Task("rename", c.writing_tools(), question, script(), want)


def write(c: Choice) -> Task | None:
    stem = c.draw.choice([c.word().lower(), f"{c.word()}-{c.word()}".lower()])
    ending = c.draw.choice([".txt", ".md", ".txt", ".cfg", ""])
    path = (
        c.draw.choice(["", "", "docs/", "notes/", "data/"])
        + (stem if ending else stem.upper())
        + ending
    )
    if path in c.project.files:
        return None
    text = c.phrase(1, 7).capitalize()
    text = c.draw.choice(
        [text, text + ".", f"{c.draw.randint(0, 9)}.{c.draw.randint(0, 99)}", text.lower()]
    )
    question = c.say("WRITE", path=path, text=text)

    def script() -> Script:
        yield Ask(question)
        yield [Call("write_file", {"path": path, "content": f"{text}\n"})]
        yield f"Done: I wrote {path}."

    return Task("write", c.writing_tools(), question, script(), Want(files={path: f"{text}\n"}))


def may_not_write(c: Choice) -> Task | None:
    task = c.draw.choice(_CHANGES)(c)
    if task is None:
        return None

    def script() -> Script:
        yield Ask(task.question)
        yield "I cannot change files here: I only have tools that read."

    return Task("may not write", READ_TOOLS, task.question, script(), Want(refuses=True))


_CHANGES: Sequence[Callable[[Choice], Task | None]] = (
    set_value, set_value, set_version, replace, append, prepend, insert, delete_line, rename, write,
)  # fmt: skip


def _visible_file(c: Choice) -> str | None:
    """A file that the model sees to its end."""
    fitting = [
        n for n in c.names()
        if 20 < len(text := c.project.files[n]) < MAX_RESULT_CHARS
        and text.endswith("\n")
        and not n.endswith((".json", ".html"))
    ]  # fmt: skip
    return c.draw.choice(fitting) if fitting else None


def _end(text: str) -> str | None:
    """The last line or a part of it, or the last two lines: as little as makes it unique."""
    lines = text.rstrip("\n").split("\n")
    if not text.endswith(f"{lines[-1]}\n"):
        return None
    last = lines[-1].strip()
    if len(last) > MAX_QUOTED_CHARS:
        last = last[-40:].partition(" ")[2]
    if last and text.count(last) == 1:
        return last
    both = "\n".join(lines[-2:])
    return both if len(lines) > 1 and len(both) <= 100 and text.count(both) == 1 else None


def _quoted_line(c: Choice) -> tuple[str, str] | None:
    """A file and a whole line of it, as a user quotes it."""
    path = c.path(*c.draw.choice([(".py",), (".md", ".rst", ".txt"), (".toml", ".cfg"), ("",)]))
    text = c.project.files[path]
    lines = [x for x in text[:3_000].split("\n")[:-1] if 3 < len(x) <= MAX_QUOTED_CHARS]
    lines = [x for x in lines if x == x.strip() and '"' not in x and text.count(x) == 1]
    return (path, c.draw.choice(lines)) if lines else None


def _new_line(c: Choice, path: str) -> str:
    """A line that fits into the file, or only words."""
    word, number = c.word(), c.draw.randint(0, 999)
    kinds = [c.phrase(1, 2), c.phrase(2, 5), c.phrase(3, 8).capitalize() + "."]
    if path.endswith(".py"):
        kinds += [f"import {word.lower()}", f"{word.upper()} = {number}", f"# {c.phrase(2, 5)}"]
    elif path.endswith((".md", ".rst", ".txt")):
        kinds += [f"- {c.phrase(1, 5)}", f"## {word}", f"* {c.phrase(2, 4)}"]
    elif path.endswith((".yml", ".yaml")):
        kinds += [f"{word.lower()}: {number}", f"# {c.phrase(2, 5)}"]
    elif path.endswith((".js", ".ts", ".css", ".go", ".rs", ".c", ".h")):
        kinds += [f"// {c.phrase(2, 5)}"]
    else:
        kinds += [f"{word.lower()} = {number}", f"# {c.phrase(2, 5)}", f"*.{word.lower()}"]
    return c.draw.choice(kinds)


def _name_like(c: Choice, old: str) -> str:
    first, second = c.word().lower(), c.word().lower()
    if old.isupper():
        return f"{first}_{second}".upper()
    if "_" in old or old.islower():
        return c.draw.choice([f"{first}_{second}", first])
    return first.title() + second.title()
