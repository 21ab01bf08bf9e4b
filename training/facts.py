"""What can be said about the files of a project: summaries, definitions, values."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from retinue.embedded.prompt import MAX_RESULT_CHARS

NOTHING_TO_SAY = "It has no description."
DEFINITION = r"(class|def|function|const|type|fn|func) {name}\b"
SETTING = "{name}.{{0,3}}[:=]"
VERSION = "version.{0,3}[:=].{0,2}[0-9]"
_DEFINED = re.compile(
    r"^(?:export (?:default )?)?(?:async )?(?:class|def|function|const|type|fn|func) (\w{4,})", re.M
)
_SETTING = re.compile(
    r"""^[ \t]*(?P<head>(?:const |let |var |export )*["']?(?P<name>[A-Za-z][\w-]{2,})["']?
    (?:\s*:\s*\w+)?\s*[:=]\s*)
    (?P<value>-?\d+(?:\.\d+)?|True|False|true|false|None|null|"[^"\n{}$\\]{1,24}"|'[^'\n{}$\\]{1,24}'|[a-z]{2,12})
    (?P<tail>[ \t]*[;,]?[ \t]*(?:\#.*)?)$""",
    re.X,
)
_VERSION_LINE = re.compile(
    r"""^\s*["']?(?:__version__|version|VERSION)["']?\s*(?::\s*\w+\s*)?[:=]\s*["']?v?(\d+(?:\.\d+)[\w.+-]*)"""
)
_VERSION_FILE = re.compile(
    r"(^|/)(pyproject\.toml|package\.json|setup\.(py|cfg)|__init__\.py|_?version\.py|Cargo\.toml|about\.py|__about__\.py)$"
)
_KEYWORDS = {"self", "return", "lambda", "print", "else", "true", "false", "none", "version"}


class Setting(NamedTuple):
    """A line that gives a name a simple value. `line` has no white space around it."""

    name: str
    value: str
    line: str

    def with_value(self, value: str) -> str:
        """The line with another value, quoted as before."""
        start = self.line.index(self.value, len(self.name))
        quote = self.value[0] if self.value[0] in "\"'" else ""
        end = start + len(self.value)
        return f"{self.line[:start]}{quote}{value}{quote}{self.line[end:]}"


class Hit(NamedTuple):
    """A line of the answer of search_files."""

    path: str
    line: int
    text: str


def hits(answer: str) -> list[Hit]:
    """What the model sees of the lines that were found."""
    rows = (
        re.match(r"([^:\n]+):(\d+): (.*)$", row) for row in answer[:MAX_RESULT_CHARS].split("\n")
    )
    return [Hit(row[1], int(row[2]), row[3]) for row in rows if row]


def definitions(text: str) -> list[str]:
    return [name for name in _DEFINED.findall(text) if not name.startswith("_")]


def setting(line: str) -> Setting | None:
    match = _SETTING.match(line)
    if match is None or match["name"].lower() in _KEYWORDS:
        return None
    is_word = re.fullmatch("[a-z]+", match["value"])
    if is_word and is_word[0] not in ("true", "false", "null") and ":" not in match["head"]:
        return None  # An expression, not a value.
    return Setting(match["name"], match["value"], line.strip())


def settings(text: str) -> list[Setting]:
    return [found for line in text.split("\n") if len(line) < 120 and (found := setting(line))]


def version_of(hit: Hit) -> str | None:
    """The version that a line of a project's own files declares."""
    match = _VERSION_LINE.match(hit.text)
    return match[1] if match and _VERSION_FILE.search(hit.path) else None


def summary(path: str, text: str) -> str:
    """One sentence about a file, from what the model sees of it."""
    shown = text[:MAX_RESULT_CHARS]
    if path.endswith(".py"):
        said = _python(shown)
    elif path.endswith((".md", ".rst", ".txt")):
        said = _prose(shown)
    elif path.endswith(".json"):
        said = _json(shown)
    elif path.endswith((".toml", ".cfg", ".ini")):
        said = _toml(shown)
    elif path.endswith((".yml", ".yaml")):
        said = _yaml(shown)
    elif path.endswith((".sh", "Makefile", ".gitignore")):
        said = _shell(shown)
    else:
        said = _script(shown)
    return said or _defined(shown) or NOTHING_TO_SAY


def first_sentence(text: str) -> str | None:
    text = re.sub(r"\s+", " ", text).strip(" *-=#>|")
    if len(re.findall(r"[A-Za-z]{2,}", text)) < 4:
        return None
    match = re.match(r"(.{12,220}?[.!?])(?=\s|$)", text)
    if match:
        return match[1]
    cut = text[:200].rsplit(" ", 1)[0] if len(text) > 200 else text
    return cut.rstrip(" ,;:.") + "."


def _python(text: str) -> str | None:
    match = re.match(r'(?:\s*#[^\n]*\n|\s*\n)*\s*[rRuU]?("""|\'\'\')(.*?)\1', text, re.S)
    if match is None:
        return None
    said = match[2].strip().split("\n\n")
    plain = [part for part in said if not re.match(r"[-=~:.#]|\S+\n[=~-]{3,}$", part.strip())]
    found = first_sentence(plain[0]) if plain else None
    return None if found and re.search(r"copyright|licen[sc]e", found, re.I) else found


def _prose(text: str) -> str | None:
    # An HTML tag may go on in the next line.
    text = re.sub(r"<br\s*/?>", " ", text, flags=re.I)
    text = re.sub(r"```.*?(```|\Z)|<[A-Za-z/!?][^<>]*>", "", text, flags=re.S)
    text = re.sub(r"^(=|-|~|\^){3,}\s*$", "", text, flags=re.M)
    for part in re.split(r"\n\s*\n", text):
        lines = [
            x
            for x in part.strip().split("\n")
            if not re.match(r"\s*(#|\.\. |:\w+:|[-*] |[|!<\[=+])", x)
        ]
        plain = re.sub(
            r"\[([^\]]+)\]\([^)]*\)|`{1,2}([^`]*)`{1,2}(?:_+)?", r"\1\2", " ".join(lines)
        )
        plain = re.sub(r"[*_]{1,3}(\S[^*_]*?)[*_]{1,3}", r"\1", plain)
        found = first_sentence(plain)
        if found and re.match(r"[A-Z`\"a-z]", found):
            return found
    titles = re.findall(r"^#+ +(.+)$", text, re.M)
    return f"It is about {titles[0].strip()}." if titles else None


def _json(text: str) -> str | None:
    name = re.search(r'"name":\s*"([^"]+)"', text)
    about = re.search(r'"description":\s*"([^"]+)"', text)
    if name and about:
        return f"It describes {name[1]}: {about[1].rstrip('.')}."
    keys = list(dict.fromkeys(re.findall(r'^\s{0,4}"([^"]+)":', text, re.M)))
    return f"It has the keys {_listed(keys)}." if keys else None


def _toml(text: str) -> str | None:
    name = re.search(r'^name = "([^"]+)"', text, re.M)
    about = re.search(r'^description = "([^"]+)"', text, re.M)
    if name and about:
        return f"It describes {name[1]}: {about[1].rstrip('.')}."
    tables = list(dict.fromkeys(re.findall(r"^\[+([\w.\- ]+)\]+", text, re.M)))
    return f"It has the sections {_listed(tables)}." if tables else None


def _yaml(text: str) -> str | None:
    keys = list(dict.fromkeys(re.findall(r"^([\w.-]+):", text, re.M)))
    return f"It has the keys {_listed(keys)}." if keys else None


def _shell(text: str) -> str | None:
    for line in text.split("\n"):
        if line.startswith("#") and not line.startswith("#!") and (said := first_sentence(line)):
            return said
    targets = re.findall(r"^([\w-]+):", text, re.M)
    return f"It has the targets {_listed(targets)}." if targets else None


def _script(text: str) -> str | None:
    match = re.match(r"\s*(?:['\"]use strict['\"];?\s*)?(?:#!.*\n\s*)?/\*+(.*?)\*/", text, re.S)
    said = match[1] if match else ""
    if not said and (lines := re.match(r"\s*((?://[^\n]*\n)+)", text)):
        said = re.sub(r"^//+", "", lines[1], flags=re.M)
    said = re.sub(r"^\s*\*", "", said, flags=re.M)
    said = re.split(r"@\w+|\n\s*\n", said.strip())[0]
    found = first_sentence(said)
    return None if found and re.search(r"copyright|licen[sc]e|eslint", found, re.I) else found


def _defined(text: str) -> str | None:
    names = [name for name in dict.fromkeys(_DEFINED.findall(text)) if not name.startswith("_")]
    return f"It defines {_listed(names)}." if names else None


def _listed(names: list[str]) -> str:
    if len(names) > 4:
        return ", ".join(names[:4]) + " and more"
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" and {names[-1]}"


def loads(arguments: str) -> dict[str, object]:
    return dict(json.loads(arguments))
