"""How many of the definitions that universal-ctags finds the code index finds too.

Usage: python -m benchmarks.ctags FOLDER [--missing LANGUAGE]

FOLDER has a checkout of a repository in each of its folders. A name that ctags finds counts if the
index has a definition of that name in the same file. What ctags lists for imports is no definition.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from retinue.workspace.code_index import parser, simple_parser
from retinue.workspace.code_index.database import MAX_FILE_BYTES
from retinue.workspace.code_index.languages import language_of

LANGUAGES = "Python,JavaScript,TypeScript,Go,Rust,Java,C,C++,Ruby,C#,PHP"
IMPORTS = {
    "Python": {"unknown", "namespace"},
    "PHP": {"alias"},
    "Go": {"packageName"},
    "C#": {"typedef"},
}
# In TypeScript without semicolons, ctags takes the first word of the next line for a name.
WORDS = """
abstract any as async await boolean const declare else enum export expect false for function if
import in interface is let never new null number return static string symbol true try type typeof
undefined unknown var void while
"""
CODE = {"function", "func", "method", "class", "interface", "struct", "type", "typedef", "enum"}


def tags(folder: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Path, language, kind and name of each definition that ctags finds."""
    command = ["ctags", "-R", "--output-format=json", "--fields=+KnlE", f"--languages={LANGUAGES}"]
    done = subprocess.run([*command, "-f", "-", str(folder)], capture_output=True, check=True)
    for line in done.stdout.splitlines():
        tag = json.loads(line)
        if "anonymous" in tag.get("extras", "") or tag["name"].startswith("__anon"):
            continue
        if tag["language"] == "C++" and tag["kind"] == "variable" and tag["pattern"][2] in " \t":
            continue  # A local variable in a block that a macro opens, such as TEST_CASE.
        if tag["language"] in ("C", "C++") and tag["kind"] == "function" and tag["name"].isupper():
            continue  # A macro such as TEST(name), which ctags takes for a function.
        if tag["language"] == "TypeScript" and _is_misread(tag):
            continue
        if tag["kind"] not in IMPORTS.get(tag["language"], ()):
            yield Path(tag["path"]), tag["language"], tag["kind"], tag["name"]


def _is_misread(tag: dict[str, str]) -> bool:
    """`import { type A, B }` makes B an alias for ctags, and 0x23 an enumerator `x23`."""
    kind, name, line = tag["kind"], tag["name"], tag["pattern"]
    is_import = kind == "alias" and "=" not in line and "<" not in line
    is_number = kind == "enumerator" and name[0] == "x" and f"0{name}" in line
    return name in WORDS.split() or is_import or is_number


def plain(name: str) -> str:
    for separator in ("::", ".", "\\"):
        name = name.split(separator)[-1]
    return name.lstrip("#$:~").replace(" ", "")


def main(folder: str, missing: str = "") -> None:
    found: dict[Path, list[tuple[str, str, str]]] = defaultdict(list)
    for path, of, kind, name in tags(Path(folder)):
        found[path].append((of, kind, name))
    total: Counter[str] = Counter()
    hits: dict[str, Counter[str]] = defaultdict(Counter)
    for path, wanted in found.items():
        language, data = language_of(str(path)), path.read_bytes()
        if language is None or len(data) > MAX_FILE_BYTES:
            continue
        patterns = simple_parser.parse(language, data.decode("utf-8", "replace"))
        by_grammar = {plain(d.name) for d in parser.parse(language, data).definitions}
        by_pattern = {plain(d.name) for d in patterns.definitions}
        for of, kind, name in wanted:
            total[of] += 1
            hits["grammars"][of] += plain(name) in by_grammar
            hits["patterns"][of] += plain(name) in by_pattern
            if kind in CODE:
                total[f"{of} code"] += 1
                hits["patterns"][f"{of} code"] += plain(name) in by_pattern
            if missing == of and plain(name) not in by_grammar:
                print(f"{path}: {kind} {name}")
    print(
        "language, definitions, found by grammars, by patterns, of functions and types by patterns"
    )
    for of in sorted(name for name in total if not name.endswith(" code")):
        code = f"{of} code"
        counts = (("grammars", of), ("patterns", of), ("patterns", code))
        shares = [
            f"{100 * hits[how][one] / total[one]:.1f} %" if total[one] else "none"
            for how, one in counts
        ]
        print(f"{of:<12} {total[of]:>6,}  {'  '.join(shares)}")


if __name__ == "__main__":
    main(*[argument for argument in sys.argv[1:] if argument != "--missing"])
