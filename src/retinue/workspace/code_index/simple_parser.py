"""Finds definitions without grammars: Python with its own parser, other languages by patterns.

Patterns see one line at a time. They find most definitions, and some text that looks like one.
"""

from __future__ import annotations

import ast
import re
import warnings

from retinue.workspace.code_index.languages import Language, is_public
from retinue.workspace.code_index.symbols import Definition, ParsedFile, count_names

_NAME = r"(?P<name>[A-Za-z_$][\w$]*)"
_WORDS = r"(?:[\w<>\[\],.*&:?]+\s+)*"
_MODIFIERS = (
    r"(?:(?:public|private|protected|internal|static|final|abstract|sealed|partial|async|override"
    r"|virtual|readonly|export|default|declare|new|unsafe|extern|const|volatile)\s+)*"
)
_PUB = r"\s*(?:pub(?:\([^)]*\))?\s+)?"
_TYPE = r"(?!return|package|import|using|throw|new|else)[\w<>\[\],.?]+"
_NO_CALL = r"(?!if|for|while|switch|catch|return)"
_NO_FUNCTION = r"(?!return|else|if|for|while|switch|catch|sizeof|typedef|#)"
# Macros of upper case stand before names: CJSON_PUBLIC(int) f(void), class SPDLOG_API logger.
_MACRO = r"(?:[A-Z_]{3,}(?:\([^()]*\))?\s+)?"
_PATTERNS: dict[str, tuple[tuple[str, str], ...]] = {
    "javascript": (
        ("class", rf"{_MODIFIERS}class\s+{_NAME}"),
        ("interface", rf"{_MODIFIERS}interface\s+{_NAME}"),
        ("type", rf"{_MODIFIERS}type\s+{_NAME}"),
        ("enum", rf"{_MODIFIERS}(?:const\s+)?enum\s+{_NAME}"),
        ("function", rf"\s*{_MODIFIERS}function\s*\*?\s+{_NAME}"),
        ("variable", rf"(?:export\s+)?(?:const|let|var)\s+{_NAME}"),
        ("local", rf"\s+(?:const|let|var)\s+{_NAME}"),
        ("method", rf"\s+{_MODIFIERS}{_NO_CALL}#?{_NAME}\s*\([^;]*\{{\}}?$"),
    ),
    "go": (
        ("method", rf"func\s+\([^)]*\)\s*{_NAME}"),
        ("function", rf"func\s+{_NAME}"),
        ("type", rf"type\s+{_NAME}"),
        ("constant", rf"const\s+{_NAME}"),
        ("variable", rf"var\s+{_NAME}"),
    ),
    "rust": (
        ("function", rf"{_PUB}(?:(?:async|const|unsafe|extern \"C\")\s+)*fn\s+{_NAME}"),
        ("struct", rf"{_PUB}(?:struct|union)\s+{_NAME}"),
        ("enum", rf"{_PUB}enum\s+{_NAME}"),
        ("interface", rf"{_PUB}(?:unsafe\s+)?trait\s+{_NAME}"),
        ("module", rf"{_PUB}mod\s+{_NAME}"),
        ("type", rf"{_PUB}type\s+{_NAME}"),
        ("constant", rf"{_PUB}(?:const|static)\s+(?:mut\s+)?{_NAME}"),
        ("macro", rf"\s*macro_rules!\s+{_NAME}"),
    ),
    "java": (
        ("class", rf"\s*{_MODIFIERS}(?:class|record)\s+{_NAME}"),
        ("interface", rf"\s*{_MODIFIERS}@?interface\s+{_NAME}"),
        ("enum", rf"\s*{_MODIFIERS}enum\s+{_NAME}"),
        ("struct", rf"\s*{_MODIFIERS}struct\s+{_NAME}"),
        ("method", rf"\s+{_MODIFIERS}{_TYPE}\s+{_NAME}(?:<[^>]*>)?\s*\((?:[^;]*$|.*=>)"),
        ("field", rf"\s+{_MODIFIERS}{_TYPE}\s+{_NAME}\s*(?:=.*|;|\{{.*)$"),
    ),
    "c": (
        ("macro", rf"#\s*define\s+{_NAME}"),
        ("class", rf"\s*(?:template\s*<.*>\s*)?class\s+{_MACRO}{_NAME}(?:.*\{{|[^;]*$)"),
        ("struct", rf"\s*(?:typedef\s+)?(?:struct|union)\s+{_MACRO}{_NAME}(?:.*\{{|[^;]*$)"),
        ("enum", rf"\s*(?:typedef\s+)?enum\s+(?:class\s+)?{_NAME}[^;]*$"),
        ("module", rf"\s*namespace\s+{_NAME}"),
        ("type", rf"\s*typedef\s+.*?{_NAME}\s*;$"),
        ("type", rf"\s*using\s+{_NAME}\s*="),
        ("function", rf"{_NO_FUNCTION}{_MACRO}{_WORDS}[*&]*(?:\w+::)*{_NAME}\s*\((?:[^;]*$|.*\{{)"),
        ("function", rf"\s+{_NO_FUNCTION}{_WORDS}[*&]*{_NAME}\s*\([^;]*\)[\w\s]*\{{"),
    ),
    "ruby": (
        ("class", rf"\s*class\s+(?:\w+::)*{_NAME}"),
        ("module", rf"\s*module\s+(?:\w+::)*{_NAME}"),
        ("method", r"\s*def\s+(?:self\.|\w+\.)?(?P<name>[\w?!=]+)"),
        ("constant", r"\s*(?P<name>[A-Z]\w*)\s*=[^=]"),
    ),
    "php": (
        ("class", rf"\s*{_MODIFIERS}class\s+{_NAME}"),
        ("interface", rf"\s*(?:interface|trait)\s+{_NAME}"),
        ("enum", rf"\s*enum\s+{_NAME}"),
        ("method", rf"\s+{_MODIFIERS}function\s+&?{_NAME}"),
        ("function", rf"function\s+&?{_NAME}"),
        ("constant", rf"\s*{_MODIFIERS}const\s+(?:\w+\s+)?{_NAME}\s*="),
        ("field", r"\s*(?:public|private|protected|static|readonly|var)\s+.*?\$(?P<name>\w+)"),
    ),
}  # fmt: skip
_SAME_AS = {"typescript": "javascript", "tsx": "javascript", "cpp": "c", "csharp": "java"}
_PATTERNS_BY_LANGUAGE = {
    name: tuple((kind, re.compile(pattern)) for kind, pattern in patterns)
    for name, patterns in _PATTERNS.items()
}
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', re.DOTALL)


def parse(language: Language, text: str) -> ParsedFile:
    if language.name == "python":
        found = _parse_python(language, text)
    else:
        found = _parse_lines(language, text)
    return ParsedFile(found, count_names(_COMMENT.sub(" ", text), found))


def _parse_lines(language: Language, text: str) -> list[Definition]:
    patterns = _PATTERNS_BY_LANGUAGE[_SAME_AS.get(language.name, language.name)]
    found: list[Definition] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        # The patterns backtrack: a generated line of a megabyte would take minutes.
        if not line.strip() or len(line) > 500:
            continue
        for kind, pattern in patterns:
            match = pattern.match(line.rstrip())
            # The second line of a condition ends more parentheses than it begins.
            if match is not None and line.count(")") <= line.count("("):
                before = line[: match.start("name")]
                public = is_public(language, match["name"], before, "")
                above = lines[number - 2].strip() if number > 1 else ""
                documented = re.match(rf"{language.doc_comment}|\*", above) is not None
                signature = line.strip().rstrip("{ ")[:120]
                found.append(
                    Definition(
                        match["name"], kind, number, number, signature, "", public, documented
                    )
                )
                break
    return found


def _parse_python(language: Language, text: str) -> list[Definition]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[Definition] = []
    lines = text.split("\n")

    def add(node: ast.AST, name: str, kind: str, scope: str, public: bool, docs: bool) -> None:
        line, end = getattr(node, "lineno", 1), getattr(node, "end_lineno", 1)
        signature = lines[line - 1].strip().rstrip(": ")[:120]
        public = public and is_public(language, name, "", "")
        found.append(Definition(name, kind, line, end, signature, scope, public, docs))

    def visit(body: list[ast.stmt], scope: str, public: bool, in_class: bool) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                documented = ast.get_docstring(node, clean=False) is not None
                add(node, node.name, "class", scope, public, documented)
                visit(node.body, node.name, public and not node.name.startswith("_"), True)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                kind = "method" if in_class else "function"
                documented = ast.get_docstring(node, clean=False) is not None
                add(node, node.name, kind, scope, public, documented)
                visit(node.body, node.name, False, False)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and (in_class or not scope):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        add(node, target.id, "variable", scope, public, False)
            else:
                for field in ("body", "orelse", "finalbody"):
                    visit(getattr(node, field, []), scope, public, in_class)

    visit(tree.body, "", True, False)
    return found
