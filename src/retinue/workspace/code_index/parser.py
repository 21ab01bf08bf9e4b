"""Parses source files with tree-sitter, if the extra is installed, or else with simple patterns."""

from __future__ import annotations

import importlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from retinue.extras import is_installed
from retinue.workspace.code_index import simple_parser
from retinue.workspace.code_index.languages import TYPE_KINDS, Language, is_public
from retinue.workspace.code_index.symbols import Definition, ParsedFile, count_names

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Query

EXTRA = "code"
MAX_SIGNATURE_CHARS = 120
MAX_DEFINITIONS = 5_000
_NOT_CODE = re.compile(r"comment|string|char_literal|heredoc|^regex|raw_text|template_string")
_TEXT_KINDS = frozenset({
    "string", "string_content", "string_fragment", "string_literal", "raw_string_content",
    "raw_string_literal", "interpreted_string_literal", "heredoc_content",
})  # fmt: skip
# Macros hide definitions from the grammar: class SPDLOG_API logger {, or BEGIN_NAMESPACE alone on a
# line. They are blanked out. Other macros, such as one that opens a block, are left to patterns.
_WITH_MACROS = ("c", "cpp")
_MACRO = re.compile(
    rb"(?<=\bclass )[A-Z][A-Z0-9_]{2,}(?= +\w)|(?<=\bstruct )[A-Z][A-Z0-9_]{2,}(?= +\w+ *[:{\n])"
    rb"|^[A-Z][A-Z0-9_]{2,}[ \t]*$",
    re.MULTILINE,
)
# Names that code with errors seems to define.
_NO_NAMES = frozenset({"for", "if", "while", "switch", "sizeof", "return"})
_BY_PATTERN = ("function", "class", "struct", "macro", "module")
_BODY_START = re.compile(r"\s*(?:\{.*|=>?\s*\{?)?$")


class Occurrence(msgspec.Struct, frozen=True, gc=False):
    """A place where code uses a name. `kind` is call, import, type, … or use."""

    line: int
    kind: str
    text: str


@cache
def has_grammars() -> bool:
    return is_installed(EXTRA)


def parse(language: Language, data: bytes) -> ParsedFile:
    """The definitions of a file and the names it uses. Broken code gives what can be read."""
    if not has_grammars():
        return simple_parser.parse(language, data.decode("utf-8", "replace"))
    with_macros = language.name in _WITH_MACROS
    parsed = _MACRO.sub(lambda found: b" " * len(found[0]), data) if with_macros else data
    root = _parser(language).parse(parsed).root_node
    definitions = [d for d in _definitions(language, root, data) if d.name not in _NO_NAMES]
    if root.has_error and with_macros:
        known = {d.name for d in definitions}
        found = simple_parser.parse(language, data.decode("utf-8", "replace")).definitions
        hidden = known | _NO_NAMES
        definitions += [d for d in found if d.name not in hidden and d.kind in _BY_PATTERN]
    return ParsedFile(definitions, count_names(_code_only(language, root, data), definitions))


def occurrences(language: Language, data: bytes, name: str) -> list[Occurrence]:
    """Every use of `name` in the code of a file, outside of comments and strings."""
    word = name.encode("utf-8", "replace")
    places = [
        m.start() for m in re.finditer(rb"(?<![\w$])" + re.escape(word) + rb"(?![\w$])", data)
    ]
    if not places:
        return []
    lines = data.split(b"\n")
    root = _parser(language).parse(data).root_node if has_grammars() else None
    found = []
    for place in places:
        row = data.count(b"\n", 0, place)
        kind = "use" if root is None else _use_kind(root, place, place + len(word))
        if kind:
            text = lines[row].decode("utf-8", "replace").strip()[:MAX_SIGNATURE_CHARS]
            found.append(Occurrence(row + 1, kind, text))
    return found


@cache
def _grammar(language: Language) -> Any:
    from tree_sitter import Language as Grammar

    module, function = language.grammar
    return Grammar(getattr(importlib.import_module(module), function)())


@cache
def _parser(language: Language) -> Parser:
    from tree_sitter import Parser

    return Parser(_grammar(language))


@cache
def _query(language: Language) -> Query:
    from tree_sitter import Query

    folder = files(__package__).joinpath("queries")
    texts = (folder.joinpath(f"{name}.scm").read_text("utf-8") for name in language.queries)
    return Query(_grammar(language), "\n".join(texts))


@cache
def _not_code_query(language: Language) -> Query:
    """Matches comments and strings, whatever a grammar calls them."""
    from tree_sitter import Query

    grammar = _grammar(language)
    named = (
        grammar.node_kind_for_id(number)
        for number in range(grammar.node_kind_count)
        if grammar.node_kind_is_named(number)
    )
    kinds = [kind for kind in named if kind and ("comment" in kind or kind in _TEXT_KINDS)]
    return Query(grammar, " ".join(f"({kind}) @text" for kind in dict.fromkeys(kinds)))


def _code_only(language: Language, root: Node, data: bytes) -> str:
    """The file without comments and strings."""
    from tree_sitter import QueryCursor

    captured = QueryCursor(_not_code_query(language)).captures(root).get("text", ())
    parts, at = [], 0
    for node in sorted(captured, key=lambda node: node.start_byte):
        # An interpolated string contains code, and its pieces are captured themselves.
        if node.start_byte >= at and not (node.type == "string" and node.named_child_count > 1):
            parts.append(data[at : node.start_byte])
            at = node.end_byte
    parts.append(data[at:])
    return b" ".join(parts).decode("utf-8", "replace")


def _definitions(language: Language, root: Node, data: bytes) -> list[Definition]:
    from tree_sitter import QueryCursor

    found: dict[tuple[int, int], tuple[int, str, Node, Node]] = {}
    for pattern, captures in QueryCursor(_query(language)).matches(root):
        kind, (node, *_) = next(
            (k, nodes) for k, nodes in captures.items() if k != "name" and not k.startswith("_")
        )
        for name in captures["name"]:
            # The first pattern of the file that matches a name says what it is.
            place = (name.start_byte, name.end_byte)
            if place not in found or pattern < found[place][0]:
                found[place] = (pattern, kind, node, name)
        if len(found) >= MAX_DEFINITIONS:
            break
    ordered = sorted(found.values(), key=lambda one: (one[2].start_byte, -one[2].end_byte))
    lines = data.split(b"\n")
    definitions: list[Definition] = []
    around: list[tuple[int, Definition]] = []
    for _, kind, node, name_node in ordered:
        while around and around[-1][0] < node.end_byte:
            around.pop()
        definition = _definition(language, kind, node, name_node, lines, around)
        definitions.append(definition)
        if definition.kind in TYPE_KINDS or definition.kind in ("function", "method"):
            around.append((node.end_byte, definition))
    return definitions


def _definition(
    language: Language,
    kind: str,
    node: Node,
    name_node: Node,
    lines: list[bytes],
    around: list[tuple[int, Definition]],
) -> Definition:
    name = (name_node.text or b"").decode("utf-8", "replace").lstrip(":").strip("\"'")
    row, column = name_node.start_point
    line = lines[row]
    before = line[:column].decode("utf-8", "replace")
    if node.start_point[0] < row:
        before = lines[node.start_point[0]].decode("utf-8", "replace") + " " + before
    # `struct Shop { till` is about the field, not about the struct.
    before = re.split("[{;}]", before)[-1]
    parent = around[-1][1] if around else None
    scope_kind = "" if parent is None else parent.kind
    if kind == "function" and scope_kind in TYPE_KINDS - {"module"}:
        kind = "method"
    is_local = any(d.kind in ("function", "method") for _, d in around)
    return Definition(
        name,
        kind,
        row + 1,
        node.end_point[0] + 1,
        _signature(line),
        "" if parent is None else parent.name,
        # A member is public if the type around it is. A Rust impl has no keyword for that.
        not is_local
        and is_public(language, name, before, scope_kind)
        and (parent is None or parent.public or parent.kind in ("impl", "module")),
        _is_documented(language, node),
    )


def _signature(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    return _BODY_START.sub("", text)[:MAX_SIGNATURE_CHARS].rstrip("{ :")


def _is_documented(language: Language, node: Node) -> bool:
    if language.name == "python":
        body = node.child_by_field_name("body")
        first = body.named_child(0) if body is not None and body.named_child_count else None
        if first is not None and first.type == "expression_statement":
            first = first.named_child(0)
        return first is not None and first.type == "string"
    outer: Node | None = node
    while outer is not None:
        before = outer.prev_sibling
        # Attributes and annotations stand between a definition and its documentation.
        while before is not None and ("attribute" in before.type or before.type == "decorator"):
            before = before.prev_sibling
        if before is not None and "comment" in before.type:
            text = (before.text or b"").decode("utf-8", "replace")
            # A Rust line comment ends on the next line.
            near = outer.start_point[0] - before.end_point[0] <= 1 + before.type.count("attribute")
            return near and re.match(language.doc_comment, text) is not None
        parent = outer.parent
        # `export` and `template` start where the definition does.
        if parent is None or parent.type not in (
            "export_statement", "template_declaration", "type_declaration", "const_declaration",
            "var_declaration", "decorated_definition", "declaration",
        ):  # fmt: skip
            return False
        outer = parent
    return False


_USES = (
    ("import", "import"), ("use_declaration", "import"), ("using_directive", "import"),
    ("preproc_include", "import"), ("namespace_use", "import"),
    ("superclass", "inherits"), ("heritage", "inherits"), ("base_list", "inherits"),
    ("base_class", "inherits"), ("super_interfaces", "inherits"), ("base_clause", "inherits"),
    ("call", "call"), ("invocation", "call"), ("object_creation", "call"),
    ("new_expression", "call"),
    ("macro_invocation", "call"), ("decorator", "decorator"), ("annotation", "decorator"),
    ("type", "type"),
)  # fmt: skip


def _use_kind(root: Node, start: int, end: int) -> str:
    """How the code at these bytes uses a name; "" in a comment or a string."""
    node: Node | None = root.descendant_for_byte_range(start, end)
    if node is None or _NOT_CODE.search(node.type):
        return ""
    kind = "type" if node.type == "type_identifier" else "use"
    inner = node
    for _ in range(4):
        node = inner.parent
        if node is None:
            break
        for part, use in _USES:
            if part in node.type and node.type not in ("type_declaration", "call_block"):
                # Only the callee is called; a name among the arguments is used.
                if use == "call" and not _is_callee(node, start, end):
                    return kind
                return use
        if node.type == "class_definition":
            return "inherits"  # In Python, bases are arguments.
        if node.type.endswith(("statement", "declaration", "definition", "block", "body")):
            break
        inner = node
    return kind


def _is_callee(call: Node, start: int, end: int) -> bool:
    for field in ("function", "method", "name", "constructor", "type", "macro"):
        callee = call.child_by_field_name(field)
        if callee is not None and callee.start_byte <= start and end == callee.end_byte:
            return True
    return False
