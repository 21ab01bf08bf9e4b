"""Answers to questions about the code, as text for a model."""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from math import sqrt

from retinue.domain.plural import plural
from retinue.workspace.code_index.database import Index, is_under
from retinue.workspace.code_index.entry_points import Read, is_generated, named_entry_points
from retinue.workspace.code_index.languages import TYPE_KINDS, is_secondary, language_of
from retinue.workspace.code_index.parser import Occurrence, occurrences
from retinue.workspace.code_index.symbols import MIN_NAME_CHARS, Definition

MAX_DEFINITIONS = 40
MAX_REFERENCES = 60
MAX_REFERENCE_FILES = 60
MAX_UNDOCUMENTED = 150
MAX_AMBIGUITY = 8
"""A name that more files define than this is ignored: nothing says which file is meant."""
_CHARS_PER_TOKEN = 2.7
"""A map has fewer characters in a token than prose: 2.4 (C) to 4 (C#), by four tokenizers."""
MAX_HEADS_READ = 60
"""The files at the top of a map are read, to see whether a program has written them."""
_SHOWN_KINDS = (TYPE_KINDS - {"impl", "module"}) | {"function", "method", "type", "macro"}
_CODE = ("function", "method")
MAX_ENTRY_POINTS = 10
METHOD_WEIGHT = 0.3
"""Weight of a use of a method's name, which methods of other classes may have too."""
_ENTRY_NAMES = frozenset({
    "main", "app", "index", "cli", "server", "lib", "mod", "__main__", "__init__", "program",
    "startup", "application", "manage", "cmd", "run",
})  # fmt: skip

# Programs that help those who work on a project, and are not what it is for.
_SIDE_PROGRAM = re.compile(
    r"(?:metrics|support|scripts?|tools?|contrib|ci|build|proto|perf[\w-]*)/|(?:.*/)?(?:build\.rs|setup\.py)$"
)


def overview(index: Index, under: str, max_tokens: int, paths: Collection[str], read: Read) -> str:
    """A map of the files and symbols that others refer to most, in at most `max_tokens`.

    `paths` are all files of the project, also those that are not in the index.
    """
    named = [path for path in named_entry_points(paths, read) if is_under(path, under)]
    scores = _rank(index, under, named)
    if not scores:
        return f"[No source files that the index knows are in '{under}'.]"
    files = sorted(scores, key=lambda path: (-scores[path].total, path))
    written = [path for path in files[:MAX_HEADS_READ] if is_generated(read(path))]
    files = [*(path for path in files if path not in written), *written]
    text = _summary(files)
    if entries := _entry_points(files, named, scores):
        text += f"\nentry points: {', '.join(entries)}"
    elif under == ".":
        text += "\nno entry point: a library; the files that others use most come first"
    left = int(max_tokens * _CHARS_PER_TOKEN) - len(text) - 60
    shown = 0
    blocks: list[list[str]] = []
    for path in files:
        score = scores[path]
        # The best files get more lines.
        most = 8 if shown < 5 else 5 if shown < 15 else 3
        block = [path]
        block += [f"  {d.line}: {d.signature}" for d in sorted(score.best(most), key=_line)]
        size = sum(len(line) + 1 for line in block)
        if size > left:
            while len(block) > 2 and size > left:
                size -= len(block.pop()) + 1
            if size > left:
                break
        left -= size
        blocks.append(block)
        shown += 1
    rest = len(files) - shown
    tail = [f"[{rest:,} more files; give a path to see a part]"] if rest > 0 else []
    return "\n".join([text, *("\n".join(block) for block in blocks), *tail])


def _entry_points(
    files: Sequence[str], named: Sequence[str], scores: Mapping[str, _Score]
) -> list[str]:
    """Those that manifests name, then files with a main function, then those in upper folders."""
    found = [path for path in files if scores[path].is_entry]
    found.sort(key=lambda path: (not scores[path].has_main, path.count("/")))
    return list(dict.fromkeys((*named, *found)))[:MAX_ENTRY_POINTS]


class _Score:
    """How important a file is, and its definitions."""

    def __init__(
        self, path: str, definitions: list[Definition], names: Mapping[str, int], *, named: bool
    ) -> None:
        self.path = path
        self.has_main = any(d.name in ("main", "Main") and d.kind in _CODE for d in definitions)
        # A file that only exports what others define has names without definitions.
        is_entry = _has_entry_name(path) and bool(definitions or names)
        self.is_entry = named or (
            (self.has_main or is_entry) and not (is_secondary(path) or _SIDE_PROGRAM.match(path))
        )
        self.definitions = [d for d in definitions if d.kind in _SHOWN_KINDS]
        self.references: dict[str, float] = {}
        self.methods = {d.name for d in definitions if d.kind == "method"}
        self.methods -= {d.name for d in definitions if d.kind != "method"}

    @property
    def total(self) -> float:
        value = sum(sqrt(n) for n in self.references.values())
        value += 0.1 * sum(d.public for d in self.definitions)
        if self.is_entry and self.definitions:
            value = 1.5 * value + 15
        return value * (0.1 if is_secondary(self.path) else 1)

    def best(self, most: int) -> list[Definition]:
        weight = {"class": 3, "interface": 3, "struct": 2, "function": 2, "impl": 0, "module": 0}

        def key(d: Definition) -> tuple[float, int]:
            used = self.references.get(d.name, 0.0)
            main = 50.0 if d.name in ("main", "Main") else 0.0
            return (-(main + used + weight.get(d.kind, 1) * (2 if d.public else 0.5)), d.line)

        chosen: dict[str, Definition] = {}
        for d in sorted(self.definitions, key=key):
            chosen.setdefault(d.name, d)
        return list(chosen.values())[:most]


def _rank(index: Index, under: str, named: Collection[str]) -> dict[str, _Score]:
    """Count for each file how often others use the names that it defines."""
    scores: dict[str, _Score] = {}
    where: defaultdict[str, list[str]] = defaultdict(list)
    for path, definitions, names in index.files():
        if is_under(path, under):
            scores[path] = _Score(path, definitions, names, named=path in named)
        for name in {d.name for d in definitions if d.kind in _SHOWN_KINDS}:
            if len(name) >= MIN_NAME_CHARS and len(where[name]) <= MAX_AMBIGUITY:
                where[name].append(path)
    for path, _, names in index.files():
        # A test uses what it tests: that counts, but less than use by the program itself.
        weight = 0.3 if is_secondary(path) else 1.0
        for name, count in names.items():
            owners = where.get(name, ())
            if not 0 < len(owners) <= MAX_AMBIGUITY or path in owners:
                continue
            for owner in owners:
                if (score := scores.get(owner)) is not None:
                    share = weight * sqrt(count) / len(owners)
                    share *= METHOD_WEIGHT if name in score.methods else 1
                    score.references[name] = score.references.get(name, 0.0) + share
    return scores


def _has_entry_name(path: str) -> bool:
    stem = posixpath.splitext(posixpath.basename(path))[0].lower()
    return stem in _ENTRY_NAMES and path.count("/") <= 3


def _summary(files: Sequence[str]) -> str:
    """How many files of which kind lie in which folders, on one line."""
    counts = Counter(posixpath.dirname(path).split("/")[0] or "." for path in files)
    parts = [
        f"{folder}/ {n}" if folder != "." else f"top {n}" for folder, n in counts.most_common(8)
    ]
    kinds = Counter(language.name for p in files if (language := language_of(p)))
    names = ", ".join(name for name, _ in kinds.most_common(4))
    return f"{len(files):,} source files ({names}): {', '.join(parts)}"


def _line(definition: Definition) -> int:
    return definition.line


def find_symbol(index: Index, name: str, under: str, read: Read) -> str:
    """Definitions of a name, and the places that use it. `Class.method` narrows to one class."""
    scope, _, last = name.replace("::", ".").replace("#", ".").strip(".()").rpartition(".")
    wanted_scope = scope.rpartition(".")[2]
    found = [
        (path, d)
        for path, d in index.definitions_of(last)
        if (not wanted_scope or d.scope == wanted_scope) and is_under(path, under)
    ]
    found.sort(key=lambda one: (is_secondary(one[0]), one[1].kind == "local", one[0], one[1].line))
    used = _references(index, last, under, read, {(p, d.line) for p, d in found})
    if not found and not used:
        similar = ", ".join(n for n in index.similar_names(last, 10) if n != last)
        hint = f" Similar names: {similar}." if similar else " Use search_files for text."
        return f"[No definition or use of '{name}'.{hint}]"
    lines = [plural(len(found), "definition")] if found else ["[Not defined here.]"]
    lines += [
        f"{path}:{d.line}: {d.kind}{f' in {d.scope}' if d.scope else ''}: {d.signature}"
        for path, d in found[:MAX_DEFINITIONS]
    ]
    if used:
        lines.append("uses")
        lines += [f"{path}:{o.line}: {o.kind}: {o.text}" for path, o in used[:MAX_REFERENCES]]
    if len(found) > MAX_DEFINITIONS or len(used) > MAX_REFERENCES:
        lines.append("[there are more: narrow with path]")
    return "\n".join(lines)


def _references(
    index: Index, name: str, under: str, read: Read, defined: set[tuple[str, int]]
) -> list[tuple[str, Occurrence]]:
    found: list[tuple[str, Occurrence]] = []
    for _, path in index.paths_using(name, under)[:MAX_REFERENCE_FILES]:
        language, data = language_of(path), read(path)
        if language is None or data is None:
            continue
        here = [o for o in occurrences(language, data, name) if (path, o.line) not in defined]
        found += [(path, o) for o in {o.line: o for o in here}.values()]
        if len(found) > MAX_REFERENCES:
            break
    return found


def docs_coverage(index: Index, under: str) -> str:
    """Public symbols without documentation, and how many have some."""
    documented = total = 0
    missing: list[str] = []
    by_file: Counter[str] = Counter()
    for path, definitions, _ in index.files(under):
        if is_secondary(path):
            continue
        for d in definitions:
            if not d.public or d.kind not in _SHOWN_KINDS:
                continue
            if d.name.startswith("__") and d.kind == "method":
                continue
            total += 1
            if d.documented:
                documented += 1
            else:
                by_file[path] += 1
                missing.append(
                    f"{path}:{d.line}: {d.kind} {f'{d.scope}.' if d.scope else ''}{d.name}"
                )
    if not total:
        return f"[No public symbols in '{under}'.]"
    share = 100 * documented // total
    head = f"{documented:,} of {total:,} public symbols are documented ({share} %)."
    lines = [head, *missing[:MAX_UNDOCUMENTED]]
    if len(missing) > MAX_UNDOCUMENTED:
        worst = ", ".join(f"{path} ({n})" for path, n in by_file.most_common(5))
        lines.append(
            f"[{len(missing) - MAX_UNDOCUMENTED:,} more; the most in {worst}; narrow with path]"
        )
    return "\n".join(lines)
