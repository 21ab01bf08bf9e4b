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
from collections.abc import Generator, Sequence
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


class Slip(list[Call]):
    """Calls that a good agent does not make; what comes after them is learned."""


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
        # A text that is quoted without quotes stays as it is.
        is_open = template.endswith("}")
        roll = self.draw.random()
        if template[0] not in "{/" and roll < 0.3 and hasattr(self.words, "BEFORE_QUESTIONS"):
            asked = text.endswith("?") or not _IMPERATIVE.match(text)
            before = self.draw.choice(
                self.words.BEFORE_QUESTIONS if asked else self.words.BEFORE_COMMANDS
            )
            text = before + text[0].lower() + text[1:] if before else text
            if before.split()[:1] in (["Could"], ["Would"], ["Can"]) and not is_open:
                text = text.rstrip(".") + "?"
        elif template[0] != "{" and roll < 0.4:
            text = text[0].lower() + (text[1:] if is_open else text[1:].rstrip(".?"))
        if not is_open and self.draw.random() < 0.12 and hasattr(self.words, "AFTER"):
            text += ("" if text[-1] in ".?!" else ".") + self.draw.choice(self.words.AFTER)
        return text

    def word(self) -> str:
        """A word, often one of the project's own."""
        if self.draw.random() < 0.4:
            return self.draw.choice(WORDS)
        text = self.draw.choice(list(self.project.files.values()))
        at = self.draw.randrange(max(1, len(text) - 400))
        found = _WORD.findall(text[at : at + 400])
        return self.draw.choice(found) if found else self.draw.choice(WORDS)

    def phrase(self, least: int, most: int) -> str:
        return " ".join(self.word() for _ in range(self.draw.randint(least, most)))

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


def listed(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else ", ".join(paths[:-1]) + f" and {paths[-1]}"


def read_call(path: str) -> Call:
    return Call("read_file", {"path": path})


def search_call(pattern: str, path: str | None = None) -> Call:
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
        yield [read_call(source)]
        yield said

    return Task("project", c.reading_tools(), question, script(), Want(like=said))


def file(c: Choice) -> Task | None:
    path = c.path(*c.draw.choice([(".py",), (".py",), (".js", ".ts"), (".md",), (".rst",), ("",)]))
    said = facts.summary(path, c.project.files[path])
    question = c.say("FILE", path=c.draw.choice([path, path, path, f"`{path}`"]))

    def script() -> Script:
        yield Ask(question)
        yield [read_call(path)]
        yield said

    return Task("file", c.reading_tools(), question, script(), Want(like=said))


def files(c: Choice) -> Task | None:
    paths = c.paths(2)
    question = c.say("FILES", paths=listed(paths))
    said = [facts.summary(p, c.project.files[p]) for p in paths]

    def script() -> Script:
        yield Ask(question)
        yield [read_call(p) for p in paths]
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
            yield f"{path} has {listed(entries)}."

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
        (answer,) = yield [search_call(facts.DEFINITION.format(name=name))]
        found = facts.hits(answer)
        if not found:
            (answer,) = yield [search_call(facts.SETTING.format(name=name))]
            found = facts.hits(answer)
        if not found:
            yield f"I found no definition of {name} in this project."
            return
        places = [f"{hit.path}, line {hit.line}" for hit in found[:3]]
        more = " and elsewhere" if len(found) > 3 else ""
        yield f"{name} is defined in {listed(places) if not more else ', '.join(places)}{more}."
        if follow:
            yield Ask(then)
            (text,) = yield [read_call(found[0].path)]
            yield _shown(found[0].path, text)

    return Task("where", c.reading_tools(), question, script(), Want((path,)))


def missing_name(c: Choice) -> Task | None:
    name = c.draw.choice(
        ["Frobnicator", "WIDGET_LIMIT", "launch_rocket", "QuantumSorter", "undo_all"]
    )
    name = c.draw.choice([name, name + str(c.draw.randint(2, 99)), invented_name(c)])
    if any(name in text for text in c.project.files.values()):
        return None
    definition = c.draw.random() < 0.6
    question = c.say("WHERE", name=name) if definition else c.say("VALUE", name=name, where="")

    def script() -> Script:
        yield Ask(question)
        if definition:
            yield [search_call(facts.DEFINITION.format(name=name))]
        yield [search_call(facts.SETTING.format(name=name))]
        yield f"I found no {'definition of ' if definition else ''}{name} in this project."

    return Task("unanswerable", c.reading_tools(), question, script(), Want(refuses=True))


def value(c: Choice) -> Task | None:
    picked = pick_setting(c)
    if picked is None:
        return None
    path, one = picked
    words = f" in {path}" if c.draw.random() < 0.6 else ""
    question = c.say("VALUE", name=one.name, where=words)
    searched = path if path in question else None
    if searched is None and not found_first(c, path, one):
        return None

    def script() -> Script:
        yield Ask(question)
        (answer,) = yield [search_call(facts.SETTING.format(name=one.name), searched)]
        hit = first_setting(facts.hits(answer), one.name)
        if hit is None:
            yield f"I found no value of {one.name} in this project."
            return
        found = facts.setting(hit.text)
        assert found is not None
        yield f"{one.name} is {found.value} ({hit.path}, line {hit.line})."

    return Task("value", c.reading_tools(), question, script(), Want((one.value.strip("\"'"),)))


def version(c: Choice) -> Task | None:
    declared = declared_versions(c.project)
    if not declared:
        return None
    question = c.say("VERSION")
    hit = declared[0]
    said = facts.version_of(hit)

    def script() -> Script:
        yield Ask(question)
        yield [search_call(facts.VERSION)]
        yield f"The version is {said} ({hit.path})."

    return Task("value", c.reading_tools(), question, script(), Want((str(said),)))


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
        question = c.say("EACH", paths=listed(paths))
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
    question = c.say("BACKGROUND", paths=listed(paths))
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
    picked = pick_setting(c)
    if picked is None:
        return None
    path, one = picked
    new = other_value(c, one.value)
    if new == one.value.strip("\"'"):
        return None
    done = f"Done: {one.name} is now {new} in {path}."
    paths = [p for p in c.paths(c.draw.randint(1, 3)) if p != path] if c.draw.random() < 0.4 else []
    reports, lines = _reports(c, paths)
    kind = "READ_AND_SET" if paths else "CHILD_SET"
    question = c.say(
        kind, name=one.name, value=new, path=path, paths=listed(paths) if paths else ""
    )
    changed = replaced(c.project, path, one.line, one.with_value(new))

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


def reads_itself(c: Choice) -> Task | None:
    """What a child does that got the words of its parent: the work itself."""
    paths = c.paths(c.draw.randint(1, 3))
    question = c.say(c.draw.choice(["EACH", "BACKGROUND"]), paths=listed(paths))
    said = [facts.summary(p, c.project.files[p]) for p in paths]

    def script() -> Script:
        yield Ask(question)
        yield [read_call(p) for p in paths]
        yield "\n".join(f"- {p}: {s}" for p, s in zip(paths, said, strict=True))

    tools = c.draw.choice([READ_TOOLS, EDITING_TOOLS])
    return Task("no children", tools, question, script(), Want(like=" ".join(said)))


def sets_itself(c: Choice) -> Task | None:
    picked = pick_setting(c)
    if picked is None:
        return None
    path, one = picked
    new = other_value(c, one.value)
    if new == one.value.strip("\"'"):
        return None
    question = c.say("CHILD_SET", name=one.name, value=new, path=path)
    now = one.with_value(new)

    def script() -> Script:
        yield Ask(question)
        yield [search_call(facts.SETTING.format(name=one.name), path)]
        yield [edit_call(path, one.line, now)]
        yield f"Done: {one.name} is now {new} in {path}."

    want = Want(files={path: replaced(c.project, path, one.line, now)})
    return Task("no children", EDITING_TOOLS, question, script(), want)


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
        top = top.replace(base, f"{invented_name(c)}.{base.rpartition('.')[2]}")
    question = c.say("FILE", path=top)

    def script() -> Script:
        yield Ask(question)
        yield [read_call(top)]
        name = top.rpartition("/")[2]
        (answer,) = yield [Call("find_files", {"pattern": name})]
        if answer.startswith("[No file"):
            yield f"There is no file {top} in this project."
            return
        found = answer.split("\n")[0]
        (text,) = yield [read_call(found)]
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
        kind, file=path, base=path.rpartition("/")[2], word=c.draw.choice(WORDS),
        place=c.draw.choice(_PLACES), food=c.draw.choice(_FOODS), name=invented_name(c),
        number=str(c.draw.randint(2, 99)), number2=str(c.draw.randint(2, 99)),
        part=c.draw.choice(c.words.PARTS), task=c.draw.choice(c.words.LARGE_TASKS),
        topic=c.draw.choice(c.words.TOPICS), feature=c.draw.choice(c.words.FEATURES),
    )  # fmt: skip
    said = {
        "OUTSIDE": "I cannot answer that: I only look at the files of this project.",
        "COMMAND": "I cannot do that: I only read and edit files, and run no commands.",
        "WEB": "I cannot do that: I have no access to the web.",
        "LARGE": ("I cannot do that: the task is too large for me. Connect a larger model for it."),
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
            yield [read_call(paths[0])]
        yield said[0]
        yield Ask(second)
        yield [read_call(paths[1])]
        yield said[1]

    return Task("follow-up", c.reading_tools(), first, script(), Want(like=said[1]))


def edit_call(path: str, old: str, new: str) -> Call:
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


def pick_setting(c: Choice) -> tuple[str, facts.Setting] | None:
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


def first_setting(found: Sequence[facts.Hit], name: str) -> facts.Hit | None:
    """The first line that gives the name a simple value."""
    for hit in found:
        one = facts.setting(hit.text)
        if one is not None and one.name == name:
            return hit
    return None


def found_first(c: Choice, path: str, one: facts.Setting) -> bool:
    """Whether a search in the whole project leads to this line."""
    pattern = json.dumps({"pattern": facts.SETTING.format(name=one.name)})
    hit = first_setting(facts.hits(c.project.call("search_files", pattern)), one.name)
    return hit is not None and (hit.path, hit.text.strip()) == (path, one.line)


def value_in(line: str, name: str) -> str:
    found = facts.setting(line)
    return found.value if found else line[len(name) :].strip(" =:")


def declared_versions(project: Project) -> list[facts.Hit]:
    answer = project.call("search_files", json.dumps({"pattern": facts.VERSION}))
    return [hit for hit in facts.hits(answer) if facts.version_of(hit)]


def other_value(c: Choice, old: str) -> str:
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
    return c.draw.choice(
        [
            c.word(),
            c.word(),
            c.word().upper(),
            c.phrase(2, 3),
            f"{c.word()}-{c.word()}",
            f"{c.word()}_{c.word()}",
            f"{c.word()}{c.draw.randint(0, 99)}",
            f"{c.draw.randint(0, 9)}.{c.draw.randint(0, 20)}.{c.draw.randint(0, 9)}",
            f"20{c.draw.randint(10, 39)}-{c.draw.randint(10, 12)}-{c.draw.randint(10, 28)}",
            f"{c.word()}/{c.word()}.{c.draw.choice(['txt', 'py', 'log', 'md'])}".lower(),
        ]
    )


def replaced(project: Project, path: str, old: str, new: str) -> str:
    return project.files[path].replace(old, new, 1)


def invented_name(c: Choice) -> str:
    if c.draw.random() < 0.5:
        words = [c.word().lower(), c.word().lower()]
        return c.draw.choice(["_".join(words), "".join(w.title() for w in words)])
    syllables = ["ka", "lo", "mi", "ter", "sun", "ver", "pix", "rad", "no", "ble", "qua", "zen"]
    return "".join(c.draw.sample(syllables, 3)) + c.draw.choice(["", "_id", "Map", "er"])


_WORD = re.compile(r"\b[A-Za-z][a-z]{2,11}\b")
_USUAL_PATH = re.compile(r"[\w./@-]{1,80}$")
_IMPERATIVE = re.compile(
    r"(Tell|Summarise|Give|Explain|Describe|Look|Read|Find|Show|Locate|List|Search|Set|Change|Make|Update|Let"
    r"|Bump|Release|Replace|In|Substitute|Fix|Add|Append|Put|Extend|Create|Write|Save|Have|Say|Delegate|Spawn"
    r"|Use|Go|Start|Run|Ask|Turn|Edit|Modify|Switch|Check|Introduce|State|Outline|Configure|Correct|Find"
    r"|Rename|Remove|Delete|Take|Drop|Erase|Prepend|Exchange|Lower|Raise|Reduce|Increase|Define|Reset|Pin|Enter"
    r"|Apply|Overwrite|Choose|Move|Modify|Bring|Tune|Begin|Complete|Finish|Enlarge|Implement|Build|Integrate"
    r"|Support|Develop|Provide|Enable|Rewrite|Refactor|Review|Simplify|Split|Download|Execute|Install|Delete"
    r"|Store|Generate|Insert|Attach|Assign|Distribute|Divide|Send|Open|Keep|Sum|Pitch|Hand|Order)\b"
)
WORDS = [
    "apple", "river", "stone", "garden", "window", "silver", "morning", "paper", "bridge",
    "forest", "lamp", "mountain", "harbour", "cloud", "engine", "planet", "summer", "winter",
    "music", "coffee", "market", "orange", "purple", "little", "quick", "bright", "hidden",
    "common", "second", "central", "public", "remote", "stable", "simple", "final", "draft",
    "report", "sample", "tiny", "large", "green", "yellow", "north", "south", "east", "west",
    "alpha", "beta", "gamma", "delta", "north-star", "quiet", "early", "late", "open", "closed",
]  # fmt: skip
_PLACES = [
    "France", "Japan", "Brazil", "Norway", "Kenya", "Canada", "Peru", "India", "Italy", "Egypt",
    "Berlin", "Paris", "Tokyo", "Oslo",
]  # fmt: skip
_FOODS = [
    "rice", "pasta", "soup", "bread", "pancakes", "noodles", "cheese", "salad", "tea", "pizza",
]  # fmt: skip
