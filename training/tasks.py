"""Tasks in a project, each with what a good agent does: a conversation, step by step.

A kind of task is a generator. It yields `Ask` (what the user says), a list of calls (and gets their
answers), or a text (an answer to the user). So the same code trains and evaluates: it reacts to
what the tools really say.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Generator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from training import facts
from training.project import READ_TOOLS, SPAWN_TOOLS, WRITE_TOOLS, Project

ALL_TOOLS = (*READ_TOOLS, *WRITE_TOOLS, *SPAWN_TOOLS)
EDITING_TOOLS = (*READ_TOOLS, *WRITE_TOOLS)


class Ask(NamedTuple):
    text: str


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]
    # The answer, for calls that the project cannot answer: those about children.
    answer: str | None = None


class Want(NamedTuple):
    """What counts as solved."""

    contains: tuple[str, ...] = ()
    like: str = ""
    """At least half of these words."""
    files: dict[str, str] | None = None
    """Files as they shall be afterwards."""
    children: int = 0
    refuses: bool = False


Script = Generator[Ask | list[Call] | str, Any, None]


class Task(NamedTuple):
    kind: str
    tools: Sequence[str]
    question: str
    script: Script
    want: Want


class Choice:
    """A project, a source of random numbers, and words."""

    def __init__(self, project: Project, draw: random.Random, words: ModuleType) -> None:
        self.project, self.draw, self.words = project, draw, words

    def say(self, words: str, /, **values: str) -> str:
        """A question of this kind, as people type it."""
        template = self.draw.choice(getattr(self.words, words))
        text = str(template.format(**values))
        roll = self.draw.random()
        if template[0] not in "{/" and roll < 0.3 and hasattr(self.words, "BEFORE_QUESTIONS"):
            asked = text.endswith("?") or not _IMPERATIVE.match(text)
            before = self.draw.choice(
                self.words.BEFORE_QUESTIONS if asked else self.words.BEFORE_COMMANDS
            )
            text = before + text[0].lower() + text[1:] if before else text
            if before.split()[:1] in (["Could"], ["Would"], ["Can"]):
                text = text.rstrip(".") + "?"
        elif template[0] != "{" and roll < 0.4:
            text = text[0].lower() + text[1:].rstrip(".?")
        return text

    def path(self, *endings: str) -> str:
        names = [n for n in self.names() if n.endswith(endings)]
        return self.draw.choice(names or self.names())

    def names(self) -> list[str]:
        """Paths that people type."""
        return [n for n in self.project.files if _USUAL_PATH.match(n)]

    def paths(self, count: int) -> list[str]:
        names = self.names()
        return self.draw.sample(names, min(count, len(names)))

    def folders(self) -> list[str]:
        found = {n.rpartition("/")[0] for n in self.project.files if "/" in n}
        return sorted(found)

    def reading_tools(self) -> Sequence[str]:
        return self.draw.choice([ALL_TOOLS, ALL_TOOLS, READ_TOOLS])

    def writing_tools(self) -> Sequence[str]:
        return self.draw.choice([ALL_TOOLS, ALL_TOOLS, EDITING_TOOLS])


def _listed(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else ", ".join(paths[:-1]) + f" and {paths[-1]}"


def _read(path: str) -> Call:
    return Call("read_file", {"path": path})


def _search(pattern: str, path: str | None = None) -> Call:
    return Call("search_files", {"pattern": pattern} | ({"path": path} if path else {}))


def _shown(path: str, answer: str) -> str:
    """What to say of a file after reading it."""
    if answer.startswith("[ERROR]"):
        return f"There is no file {path}."
    return facts.summary(path, answer)


# Reading


def project(c: Choice) -> Task | None:
    top = [n for n in c.project.files if "/" not in n]
    readme = next((n for n in top if n.lower().startswith("readme")), None)
    source = readme or next((n for n in ("pyproject.toml", "package.json") if n in top), None)
    if source is None:
        return None
    said = facts.summary(source, c.project.files[source])
    question = c.say("PROJECT")

    def script() -> Script:
        yield Ask(question)
        yield [Call("list_dir", {"path": "."})]
        yield [_read(source)]
        yield said

    return Task("project", c.reading_tools(), question, script(), Want(like=said))


def file(c: Choice) -> Task | None:
    path = c.path(*c.draw.choice([(".py",), (".py",), (".js", ".ts"), (".md", ".rst"), ("",)]))
    said = facts.summary(path, c.project.files[path])
    question = c.say("FILE", path=c.draw.choice([path, path, path, f"`{path}`"]))

    def script() -> Script:
        yield Ask(question)
        yield [_read(path)]
        yield said

    return Task("file", c.reading_tools(), question, script(), Want(like=said))


def files(c: Choice) -> Task | None:
    paths = c.paths(2)
    question = c.say("FILES", paths=_listed(paths))
    said = [facts.summary(p, c.project.files[p]) for p in paths]

    def script() -> Script:
        yield Ask(question)
        yield [_read(p) for p in paths]
        yield "\n".join(f"- {p}: {s}" for p, s in zip(paths, said, strict=True))

    return Task("file", c.reading_tools(), question, script(), Want(like=" ".join(said)))


def attached(c: Choice) -> Task | None:
    path = c.path(".py", ".md")
    text = c.project.files[path][:1500]
    said = facts.summary(path, text)
    tag = f"file-{_digest(text)}"
    question = c.say("ATTACHED")

    def script() -> Script:
        yield Ask(f'{question}\n\n<{tag} from="{path}">\n{text}\n</{tag}>')
        yield said

    return Task("attached", c.reading_tools(), question, script(), Want(like=said))


def folder(c: Choice) -> Task | None:
    found = c.folders()
    if not found:
        return None
    path = c.draw.choice(found)
    question = c.say("FOLDER", folder=path + c.draw.choice(["/", ""]))
    start = f"{path}/"
    names = {
        n.removeprefix(start).partition("/")[0] for n in c.project.files if n.startswith(start)
    }

    def script() -> Script:
        yield Ask(question)
        (answer,) = yield [Call("list_dir", {"path": path})]
        entries = [re.sub(r" \([\d,]+ bytes\)$", "", line) for line in answer.split("\n")]
        if len(entries) > 8:
            yield f"{path} has {', '.join(entries[:8])} and more."
        else:
            yield f"{path} has {_listed(entries)}."

    return Task("folder", c.reading_tools(), question, script(), Want(tuple(sorted(names)[:4])))


def find(c: Choice) -> Task | None:
    kinds = {
        "Python": "*.py", "JavaScript": "*.js", "TypeScript": "*.ts", "Markdown": "*.md",
        "TOML": "*.toml", "YAML": "*.y*ml", "JSON": "*.json", "shell": "*.sh", "test": "*test*",
        "HTML": "*.html", "CSS": "*.css",
    }  # fmt: skip
    roll = c.draw.random()
    if roll < 0.4:
        kind, glob = c.draw.choice(list(kinds.items()))
        question = c.say("KIND", kind=kind)
    elif roll < 0.7:
        path = c.path()
        base = path.rpartition("/")[2]
        globs = [base, "*." + base.rpartition(".")[2], "**/" + base, base[:3] + "*"]
        glob = c.draw.choice([*globs, f"{path.partition('/')[0]}/**"])
        question = c.say("GLOB", glob=glob)
    else:
        glob = c.path().rpartition("/")[2]
        question = c.say("NAMED", file=glob)
    matching = c.project.find_files(glob)
    if matching.count("\n") > 30:
        return None

    def script() -> Script:
        yield Ask(question)
        (answer,) = yield [Call("find_files", {"pattern": glob})]
        found = answer.split("\n")
        if answer.startswith("[No file"):
            yield f"No file matches {glob}."
        elif len(found) > 8:
            yield f"Many files match, among them {', '.join(found[:8])}."
        else:
            these = "This file matches" if len(found) == 1 else "These files match"
            yield f"{these}: {', '.join(found)}."

    want = (
        Want(refuses=True) if matching.startswith("[No") else Want(tuple(matching.split("\n")[:3]))
    )
    return Task("find", c.reading_tools(), question, script(), want)


def where(c: Choice) -> Task | None:
    path = c.path(".py", ".js", ".ts", ".go", ".rs")
    names = facts.definitions(c.project.files[path])
    if not names:
        return None
    name = c.draw.choice(names)
    question = c.say("WHERE", name=c.draw.choice([name, name, f"`{name}`", f"{name}()"]))
    sure = c.project.call(
        "search_files", json.dumps({"pattern": facts.DEFINITION.format(name=name)})
    )
    if path not in [hit.path for hit in facts.hits(sure)[:3]]:
        return None
    follow = c.draw.random() < 0.15
    then = c.say("THAT_FILE")

    def script() -> Script:
        yield Ask(question)
        (answer,) = yield [_search(facts.DEFINITION.format(name=name))]
        found = facts.hits(answer)
        if not found:
            (answer,) = yield [_search(facts.SETTING.format(name=name))]
            found = facts.hits(answer)
        if not found:
            yield f"I found no definition of {name} in this project."
            return
        places = [f"{hit.path}, line {hit.line}" for hit in found[:3]]
        more = " and elsewhere" if len(found) > 3 else ""
        yield f"{name} is defined in {_listed(places) if not more else ', '.join(places)}{more}."
        if follow:
            yield Ask(then)
            (text,) = yield [_read(found[0].path)]
            yield _shown(found[0].path, text)

    return Task("where", c.reading_tools(), question, script(), Want((path,)))


def missing_name(c: Choice) -> Task | None:
    name = c.draw.choice(
        ["Frobnicator", "WIDGET_LIMIT", "launch_rocket", "QuantumSorter", "undo_all"]
    )
    name = c.draw.choice([name, name + str(c.draw.randint(2, 99)), _scrambled(c)])
    if any(name in text for text in c.project.files.values()):
        return None
    definition = c.draw.random() < 0.6
    question = c.say("WHERE", name=name) if definition else c.say("VALUE", name=name, where="")

    def script() -> Script:
        yield Ask(question)
        if definition:
            yield [_search(facts.DEFINITION.format(name=name))]
        yield [_search(facts.SETTING.format(name=name))]
        yield f"I found no {'definition of ' if definition else ''}{name} in this project."

    return Task("unanswerable", c.reading_tools(), question, script(), Want(refuses=True))


def value(c: Choice) -> Task | None:
    picked = _setting(c)
    if picked is None:
        return None
    path, one = picked
    words = f" in {path}" if c.draw.random() < 0.6 else ""
    question = c.say("VALUE", name=one.name, where=words)
    searched = path if path in question else None
    if searched is None and not _is_first(c, path, one):
        return None

    def script() -> Script:
        yield Ask(question)
        (answer,) = yield [_search(facts.SETTING.format(name=one.name), searched)]
        hit = _best(facts.hits(answer), one.name)
        if hit is None:
            yield f"I found no value of {one.name} in this project."
            return
        found = facts.setting(hit.text)
        assert found is not None
        yield f"{one.name} is {found.value} ({hit.path}, line {hit.line})."

    return Task("value", c.reading_tools(), question, script(), Want((one.value.strip("\"'"),)))


def version(c: Choice) -> Task | None:
    declared = _versions(c.project)
    if not declared:
        return None
    question = c.say("VERSION")
    hit = declared[0]
    said = facts.version_of(hit)

    def script() -> Script:
        yield Ask(question)
        yield [_search(facts.VERSION)]
        yield f"The version is {said} ({hit.path})."

    return Task("value", c.reading_tools(), question, script(), Want((str(said),)))


# Changing


def set_value(c: Choice) -> Task | None:
    picked = _setting(c)
    if picked is None:
        return None
    path, one = picked
    new = _other_value(c, one.value)
    named = c.draw.random() < 0.75
    question = c.say("SET", name=one.name, value=new, where=f" in {path}" if named else "")
    searched = path if named else None
    if not named and not _is_first(c, path, one):
        return None
    newest = _other_value(c, one.value)
    again = c.say("MAKE_IT", value=newest) if c.draw.random() < 0.15 else None
    changed = _replaced(c.project, path, one.line, one.with_value(new))

    def script() -> Script:
        yield Ask(question)
        (answer,) = yield [_search(facts.SETTING.format(name=one.name), searched)]
        hit = _best(facts.hits(answer), one.name)
        if hit is None or (found := facts.setting(hit.text)) is None:
            yield f"I found no {one.name}{f' in {path}' if named else ''}. I changed nothing."
            return
        now = found.with_value(new)
        (answer,) = yield [_edit(hit.path, found.line, now)]
        yield f"Done: {one.name} is now {new} in {hit.path}."
        if again:
            yield Ask(again)
            newer = facts.Setting(one.name, _value_in(now, one.name), now)
            yield [_edit(hit.path, now, newer.with_value(newest))]
            yield f"Done: {one.name} is now {newest} in {hit.path}."

    want = Want(files={path: changed}) if not again else Want()
    return Task("set", c.writing_tools(), question, script(), want)


def set_version(c: Choice) -> Task | None:
    declared = _versions(c.project)
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
        changed[hit.path] = _replaced(c.project, hit.path, line, line.replace(str(old), new, 1))

    def script() -> Script:
        yield Ask(question)
        yield [_search(facts.VERSION)]
        lines = [(hit.path, hit.text.strip()) for hit in same]
        yield [_edit(path, line, line.replace(str(old), new, 1)) for path, line in lines]
        yield f"Done: the version is now {new} in {_listed([path for path, _ in lines])}."

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
    new = " ".join(c.draw.sample(_WORDS, c.draw.randint(1, 3)))
    lost = c.draw.random() < 0.12
    if lost:
        old = f"{c.draw.choice(_WORDS)} {old}"
        if old in c.project.files[path]:
            return None
    question = c.say("REPLACE", path=path, old=old, new=new)

    def script() -> Script:
        yield Ask(question)
        (answer,) = yield [_edit(path, old, new)]
        if answer.startswith("[ERROR]"):
            yield f'"{old}" is not in {path}. I changed nothing.'
        else:
            yield f'Done: {path} says "{new}" now.'

    text = c.project.files[path] if lost else _replaced(c.project, path, old, new)
    want = Want(files={path: text}, refuses=lost)
    return Task("replace", c.writing_tools(), question, script(), want)


def append(c: Choice) -> Task | None:
    short = [
        n for n, text in c.project.files.items() if 20 < len(text) < 900 and text.endswith("\n")
    ]
    short = [n for n in short if not n.endswith((".json", ".js", ".ts"))]
    if not short:
        return None
    path = c.draw.choice(short)
    text = c.project.files[path]
    last = text.rstrip("\n").split("\n")[-1]
    if text.count(last) != 1 or not last.strip() or not text.endswith(f"{last}\n"):
        return None
    line = " ".join(c.draw.sample(_WORDS, c.draw.randint(1, 4)))
    question = c.say("APPEND", path=path, line=line)

    def script() -> Script:
        yield Ask(question)
        yield [_read(path)]
        yield [_edit(path, last, f"{last}\n{line}")]
        yield f'Done: {path} ends with "{line}".'

    return Task(
        "append", c.writing_tools(), question, script(), Want(files={path: f"{text}{line}\n"})
    )


def write(c: Choice) -> Task | None:
    stem = c.draw.choice(_WORDS)
    ending = c.draw.choice([".txt", ".md", ".txt", ".cfg", ""])
    path = (
        c.draw.choice(["", "", "docs/", "notes/", "data/"])
        + (stem if ending else stem.upper())
        + ending
    )
    if path in c.project.files:
        return None
    text = " ".join(c.draw.sample(_WORDS, c.draw.randint(1, 7))).capitalize()
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
    task = c.draw.choice([set_value, set_version, replace, append, write])(c)
    if task is None:
        return None

    def script() -> Script:
        yield Ask(task.question)
        yield "I cannot change files here: I only have tools that read."

    return Task("may not write", READ_TOOLS, task.question, script(), Want(refuses=True))


# Delegating


def each(c: Choice) -> Task | None:
    listing = c.draw.random() < 0.45
    if listing:
        groups: dict[str, list[str]] = {}
        for name in sorted(c.project.files):
            if "/" in name:
                groups.setdefault(name.rpartition("/")[0], []).append(name)
        fitting = [f for f, names in groups.items() if 2 <= len(names) <= 6]
        fitting = [f for f in fitting if not any(o.startswith(f"{f}/") for o in groups)]
        if not fitting:
            return None
        where_ = c.draw.choice(fitting)
        paths = groups[where_]
        question = c.say("EACH_IN", folder=where_ + c.draw.choice(["/", ""]))
    else:
        paths = c.paths(c.draw.randint(2, 4))
        question = c.say("EACH", paths=_listed(paths))
    reports, lines = _reports(c, paths)

    def script() -> Script:
        yield Ask(question)
        if listing:
            yield [Call("list_dir", {"path": where_})]
        yield [
            _spawn("researcher", f"What does {p} do? Answer in one sentence.", report)
            for p, report in zip(paths, reports, strict=True)
        ]
        yield "\n".join(lines)

    return Task("delegate", ALL_TOOLS, question, script(), Want(tuple(paths), children=len(paths)))


def background(c: Choice) -> Task | None:
    paths = c.paths(c.draw.randint(1, 3))
    question = c.say("BACKGROUND", paths=_listed(paths))
    said = [facts.summary(p, c.project.files[p]) for p in paths]
    ids = [f"a{n + 1}" for n in range(len(paths))]

    def script() -> Script:
        yield Ask(question)
        yield [
            Call(
                "spawn_agent",
                {
                    "role": "researcher",
                    "task": f"What does {p} do? Answer in one sentence.",
                    "background": True,
                },
                f"{i} started in the background; spawn_await gets its report.",
            )
            for p, i in zip(paths, ids, strict=True)
        ]
        blocks = [
            f"[{i}: OK]\n{s}\n[Files read: {p}]" for i, s, p in zip(ids, said, paths, strict=True)
        ]
        if c.draw.random() < 0.3:
            yield Ask(f"A background job has ended.\n{blocks[0]}")
        yield [Call("spawn_await", {"job_ids": "*"}, "\n\n".join(blocks))]
        yield "\n".join(f"- {p}: {s}" for p, s in zip(paths, said, strict=True))

    return Task("delegate", ALL_TOOLS, question, script(), Want(tuple(paths), children=len(paths)))


def child_set(c: Choice) -> Task | None:
    picked = _setting(c)
    if picked is None:
        return None
    path, one = picked
    new = _other_value(c, one.value)
    done = f"Done: {one.name} is now {new} in {path}."
    paths = [p for p in c.paths(c.draw.randint(1, 3)) if p != path] if c.draw.random() < 0.4 else []
    reports, lines = _reports(c, paths)
    kind = "READ_AND_SET" if paths else "CHILD_SET"
    question = c.say(
        kind, name=one.name, value=new, path=path, paths=_listed(paths) if paths else ""
    )
    changed = _replaced(c.project, path, one.line, one.with_value(new))

    def script() -> Script:
        yield Ask(question)
        calls = [
            _spawn("researcher", f"What does {p} do? Answer in one sentence.", report)
            for p, report in zip(paths, reports, strict=True)
        ]
        report = _report(
            c, f"a{len(paths) + 1}", "executor", f"Files modified: {path} (+1/-1 lines)", done
        )
        yield [*calls, _spawn("executor", f"Set {one.name} to {new} in {path}.", report)]
        yield "\n".join([*lines, f"- {path}: {done}"] if lines else [done])

    return Task(
        "delegate",
        ALL_TOOLS,
        question,
        script(),
        Want(files={path: changed}, children=len(paths) + 1),
    )


# What goes wrong


def wrong_path(c: Choice) -> Task | None:
    path = c.path()
    base = path.rpartition("/")[2]
    others = [p for p in c.project.files if p.rpartition("/")[2] == base]
    if len(others) != 1 or "/" not in path:
        return None
    top = c.draw.choice(["", "lib/", "app/", "src/", path.split("/")[0] + "/x/"]) + base
    if top in c.project.files:
        return None
    lost = c.draw.random() < 0.4
    if lost:
        top = top.replace(base, f"{_scrambled(c)}.{base.rpartition('.')[2]}")
    question = c.say("FILE", path=top)

    def script() -> Script:
        yield Ask(question)
        yield [_read(top)]
        name = top.rpartition("/")[2]
        (answer,) = yield [Call("find_files", {"pattern": name})]
        if answer.startswith("[No file"):
            yield f"There is no file {top} in this project."
            return
        found = answer.split("\n")[0]
        (text,) = yield [_read(found)]
        yield f"There is no {top}, but {found}: {_shown(found, text)}"

    said = facts.summary(path, c.project.files[path])
    want = Want(refuses=True) if lost else Want(like=said)
    return Task("wrong path", c.reading_tools(), question, script(), want)


def answers_at_once(c: Choice) -> Task | None:
    kind = c.draw.choice(
        ["OUTSIDE", "OUTSIDE", "COMMAND", "COMMAND", "WEB", "LARGE", "LARGE", "GREETING", "WHO"]
    )
    path = c.path()
    question = c.say(
        kind, file=path, base=path.rpartition("/")[2], word=c.draw.choice(_WORDS),
        place=c.draw.choice(_PLACES), food=c.draw.choice(_FOODS), name=_scrambled(c),
        number=str(c.draw.randint(2, 99)), number2=str(c.draw.randint(2, 99)),
        part=c.draw.choice(c.words.PARTS), task=c.draw.choice(c.words.LARGE_TASKS),
        topic=c.draw.choice(c.words.TOPICS),
    )  # fmt: skip
    said = {
        "OUTSIDE": "I cannot answer that: I only look at the files of this project.",
        "COMMAND": "I cannot do that: I only read and edit files, and run no commands.",
        "WEB": "I cannot do that: I have no access to the web.",
        "LARGE": (
            "I cannot do that well: the task is too large for me. Connect a larger model for it."
        ),
        "GREETING": "Hello. Ask me about the files of this project, or give me a small edit.",
        "WHO": (
            "I read and search the files of this project, make small edits, and give files to"
            " children."
        ),
    }[kind]

    def script() -> Script:
        yield Ask(question)
        yield said

    refused = kind in ("OUTSIDE", "COMMAND", "WEB", "LARGE")
    want = Want(refuses=True) if refused else Want()
    return Task("unanswerable" if refused else "talk", c.reading_tools(), question, script(), want)


def follow_up(c: Choice) -> Task | None:
    paths = c.paths(2)
    if len(paths) < 2:
        return None
    said = [facts.summary(p, c.project.files[p]) for p in paths]
    first, second = c.say("FILE", path=paths[0]), c.say("NEXT_FILE", path=paths[1])
    # An earlier run of the conversation: its calls may be there or not.
    short = c.draw.random() < 0.5

    def script() -> Script:
        yield Ask(first)
        if not short:
            yield [_read(paths[0])]
        yield said[0]
        yield Ask(second)
        yield [_read(paths[1])]
        yield said[1]

    return Task("follow-up", c.reading_tools(), first, script(), Want(like=said[1]))


KINDS: Sequence[tuple[int, Callable[[Choice], Task | None]]] = (
    (10, project), (14, file), (4, files), (3, attached), (5, folder), (6, find), (12, where),
    (5, missing_name), (8, value), (3, version), (13, set_value), (5, set_version), (7, replace),
    (6, append), (8, write), (3, may_not_write), (11, each), (5, background), (8, child_set),
    (5, wrong_path), (10, answers_at_once), (3, follow_up),
)  # fmt: skip


def task(c: Choice) -> Task:
    """A random task in the project of `c`."""
    weights = [weight for weight, _ in KINDS]
    while True:
        (kind,) = c.draw.choices([make for _, make in KINDS], weights)
        if (made := kind(c)) is not None:
            return made


def _edit(path: str, old: str, new: str) -> Call:
    return Call("edit_file", {"path": path, "old_text": old, "new_text": new})


def _spawn(role: str, text: str, report: str) -> Call:
    return Call("spawn_agent", {"role": role, "task": text}, report)


def _report(c: Choice, agent: str, role: str, files_line: str, said: str) -> str:
    turns, tokens = c.draw.randint(2, 4), f"{c.draw.randint(400, 2400):,}"
    calls = "1 tool call" if turns == 2 else f"{turns - 1} tool calls"
    tag = f"report-{_digest(said)}"
    return (
        f"[completed] {agent} {role}: {turns} turns, {calls}, {tokens} tokens,"
        f" {c.draw.random() * 20:.1f}s\n{files_line}\n"
        f'<{tag} from="{agent}">\n{said}\n</{tag}>'
    )


def _reports(c: Choice, paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """The reports of children that look at one file each, and what to say of each."""
    reports, lines = [], []
    for number, path in enumerate(paths, 1):
        said = facts.summary(path, c.project.files[path])
        if c.draw.random() < 0.05:
            why = c.draw.choice(
                ["timeout: the attempt took 300 s", "error: the model does not answer"]
            )
            reports.append(
                f"[ERROR] {why}\n(a{number} researcher: 1 turn, 0 tool calls, 310 tokens,"
                f" {c.draw.random() * 300:.1f}s)\nIt returned no text."
            )
            lines.append(f"- {path}: the child failed ({why.partition(':')[0]}).")
        else:
            reports.append(_report(c, f"a{number}", "researcher", f"Files read: {path}", said))
            lines.append(f"- {path}: {said}")
    return reports, lines


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _setting(c: Choice) -> tuple[str, facts.Setting] | None:
    """A file and a line in it that sets a name, which no other line of the file sets."""
    for _ in range(8):
        path = c.path(
            *c.draw.choice(
                [
                    (".py",),
                    (".toml", ".cfg", ".ini"),
                    (".yml", ".yaml"),
                    (".json",),
                    (".js", ".ts"),
                    (".sh", "Makefile"),
                    ("",),
                ]
            )
        )
        text = c.project.files[path]
        found = [s for s in facts.settings(text) if text.count(s.line) == 1]
        if found:
            one = c.draw.choice(found)
            pattern = re.compile(facts.SETTING.format(name=re.escape(one.name)))
            if sum(bool(pattern.search(line)) for line in text.split("\n")) == 1:
                return path, one
    return None


def _best(found: Sequence[facts.Hit], name: str) -> facts.Hit | None:
    """The first line that gives the name a simple value."""
    for hit in found:
        one = facts.setting(hit.text)
        if one is not None and one.name == name:
            return hit
    return None


def _is_first(c: Choice, path: str, one: facts.Setting) -> bool:
    """Whether a search in the whole project leads to this line."""
    pattern = json.dumps({"pattern": facts.SETTING.format(name=one.name)})
    hit = _best(facts.hits(c.project.call("search_files", pattern)), one.name)
    return hit is not None and (hit.path, hit.text.strip()) == (path, one.line)


def _value_in(line: str, name: str) -> str:
    found = facts.setting(line)
    return found.value if found else line[len(name) :].strip(" =:")


def _versions(project: Project) -> list[facts.Hit]:
    answer = project.call("search_files", json.dumps({"pattern": facts.VERSION}))
    return [hit for hit in facts.hits(answer) if facts.version_of(hit)]


def _other_value(c: Choice, old: str) -> str:
    if old in ("True", "False"):
        return "False" if old == "True" else "True"
    if old in ("true", "false"):
        return "false" if old == "true" else "true"
    if re.fullmatch(r"-?\d+", old):
        return str(
            c.draw.choice([c.draw.randint(0, 20), c.draw.randint(20, 9999), int(old) * 2 + 1])
        )
    if re.fullmatch(r"-?\d+\.\d+", old):
        return f"{c.draw.randint(0, 90)}.{c.draw.randint(0, 9)}"
    if old in ("None", "null"):
        return c.draw.choice(["0", "1", "10"])
    return c.draw.choice(_WORDS)


def _replaced(project: Project, path: str, old: str, new: str) -> str:
    return project.files[path].replace(old, new, 1)


def _scrambled(c: Choice) -> str:
    syllables = ["ka", "lo", "mi", "ter", "sun", "ver", "pix", "rad", "no", "ble", "qua", "zen"]
    return "".join(c.draw.sample(syllables, 3)) + c.draw.choice(["", "_id", "Map", "er"])


_USUAL_PATH = re.compile(r"[\w./@-]{1,80}$")
_IMPERATIVE = re.compile(
    r"(Tell|Summarise|Give|Explain|Describe|Look|Read|Find|Show|Locate|List|Search|Set|Change|Make|Update|Let"
    r"|Bump|Release|Replace|In|Substitute|Fix|Add|Append|Put|Extend|Create|Write|Save|Have|Say|Delegate|Spawn"
    r"|Use|Go|Start|Run|Ask|Turn|Edit|Modify|Switch|Check|Introduce|State|Outline|Configure|Correct|Find"
    r"|Store|Generate|Insert|Attach|Assign|Distribute|Divide|Send|Open|Keep|Sum|Pitch|Hand|Order)\b"
)
_WORDS = [
    "apple",
    "river",
    "stone",
    "garden",
    "window",
    "silver",
    "morning",
    "paper",
    "bridge",
    "forest",
    "lamp",
    "mountain",
    "harbour",
    "cloud",
    "engine",
    "planet",
    "summer",
    "winter",
    "music",
    "coffee",
    "market",
    "orange",
    "purple",
    "little",
    "quick",
    "bright",
    "hidden",
    "common",
    "second",
    "central",
    "public",
    "remote",
    "stable",
    "simple",
    "final",
    "draft",
    "report",
    "sample",
    "tiny",
    "large",
    "green",
    "yellow",
    "north",
    "south",
    "east",
    "west",
    "alpha",
    "beta",
    "gamma",
    "delta",
    "north-star",
    "quiet",
    "early",
    "late",
    "open",
    "closed",
]
_PLACES = [
    "France",
    "Japan",
    "Brazil",
    "Norway",
    "Kenya",
    "Canada",
    "Peru",
    "India",
    "Italy",
    "Egypt",
    "Berlin",
    "Paris",
    "Tokyo",
    "Oslo",
]
_FOODS = [
    "rice",
    "pasta",
    "soup",
    "bread",
    "pancakes",
    "noodles",
    "cheese",
    "salad",
    "tea",
    "pizza",
]
