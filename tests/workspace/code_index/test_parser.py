"""Definitions and uses, with grammars and without, in every language."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.workspace.code_index import simple_parser
from retinue.workspace.code_index.languages import LANGUAGES, Language, is_secondary, language_of
from retinue.workspace.code_index.parser import occurrences, parse

SOURCES = {
    "a.py": (
        'LIMIT = 3\n\nclass Shop:\n    """Sells."""\n    def sell(self): pass\n\n'
        "async def _open(): pass\n",
        {("LIMIT", "variable"), ("Shop", "class"), ("sell", "method"), ("_open", "function")},
        {"LIMIT", "Shop", "sell"},
        {"Shop"},
    ),
    "a.ts": (
        "/** Sells. */\nexport class Shop {\n  private till = 1;\n  sell(): void {}\n}\n"
        "export interface Item { price: number }\nfunction hidden() {}\n"
        "export const open = () => 1;\nexport enum Size { Small }\n",
        {("Shop", "class"), ("till", "field"), ("sell", "method"), ("Item", "interface"),
         ("price", "field"), ("hidden", "function"), ("open", "function"), ("Size", "enum"),
         ("Small", "constant")},
        {"Shop", "sell", "Item", "price", "open", "Size", "Small"},
        {"Shop"},
    ),
    "a.js": (
        "class Shop { sell() {} }\nfunction open() {}\nexports.close = function () {};\n",
        {("Shop", "class"), ("sell", "method"), ("open", "function"), ("close", "method")},
        {"close"},
        set(),
    ),
    "a.go": (
        "package shop\n\n// Shop sells.\ntype Shop struct { till int }\n\n"
        "func (s *Shop) Sell() {}\nfunc open() {}\nconst Limit = 3\n",
        {("shop", "package"), ("Shop", "type"), ("till", "field"), ("Sell", "method"),
         ("open", "function"), ("Limit", "constant")},
        {"Shop", "Sell", "Limit"},
        {"Shop"},
    ),
    "a.rs": (
        "/// Sells.\npub struct Shop { till: u8 }\nimpl Shop { pub fn sell(&self) {} }\n"
        "fn open() {}\npub trait Open {}\nmacro_rules! shop { () => {} }\n",
        {("Shop", "struct"), ("till", "field"), ("Shop", "impl"), ("sell", "method"),
         ("open", "function"), ("Open", "interface"), ("shop", "macro")},
        {"Shop", "sell", "Open"},
        {"Shop"},
    ),
    "A.java": (
        "/** Sells. */\npublic class Shop {\n  private int till;\n  public void sell() {}\n}\n"
        "enum Size { SMALL }\n",
        {("Shop", "class"), ("till", "field"), ("sell", "method"), ("Size", "enum"),
         ("SMALL", "constant")},
        {"Shop", "sell"},
        {"Shop"},
    ),
    "a.c": (
        "#define LIMIT 3\n/* Sells. */\nint sell(int a) { return a; }\nstatic int hidden(void)"
        " { return 1; }\nstruct shop { int till; };\ntypedef struct shop shop_t;\n",
        {("LIMIT", "macro"), ("sell", "function"), ("hidden", "function"), ("shop", "struct"),
         ("till", "field"), ("shop_t", "type")},
        {"LIMIT", "sell", "shop", "till", "shop_t"},
        {"sell"},
    ),
    "a.cpp": (
        "namespace store {\nclass Shop { int till; void sell() {} };\n}\n"
        "void store::open() {}\nusing Name = int;\n",
        {("store", "module"), ("Shop", "class"), ("till", "field"), ("sell", "method"),
         ("open", "method"), ("Name", "type")},
        {"store", "Shop", "till", "sell", "open", "Name"},
        set(),
    ),
    "a.rb": (
        "# Sells.\nclass Shop\n  attr_reader :till\n  def sell; end\n  def self.open; end\nend\n"
        "LIMIT = 3\n",
        {("Shop", "class"), ("till", "accessor"), ("sell", "method"), ("open", "method"),
         ("LIMIT", "constant")},
        {"Shop", "till", "sell", "open", "LIMIT"},
        {"Shop"},
    ),
    "a.cs": (
        "/// <summary>Sells.</summary>\npublic class Shop {\n  int till;\n"
        "  public int Price { get; set; }\n  public void Sell() {}\n}\n",
        {("Shop", "class"), ("till", "field"), ("Price", "field"), ("Sell", "method")},
        {"Shop", "Price", "Sell"},
        {"Shop"},
    ),
    "a.php": (
        "<?php\n/** Sells. */\nclass Shop {\n  private $till;\n  public function sell() {}\n}\n"
        "function open() {}\nconst LIMIT = 3;\n",
        {("Shop", "class"), ("till", "field"), ("sell", "method"), ("open", "function"),
         ("LIMIT", "constant")},
        {"Shop", "sell", "open", "LIMIT"},
        {"Shop"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", SOURCES)
def test_definitions(path: str) -> None:
    source, expected, public, documented = SOURCES[path]
    language = language_of(path)
    assert language is not None
    found = parse(language, source.encode()).definitions
    assert {(d.name, d.kind) for d in found} == expected
    assert {d.name for d in found if d.public} == public
    assert {d.name for d in found if d.documented} == documented
    lines = source.split("\n")
    assert all(d.name in lines[d.line - 1] for d in found)


@pytest.mark.parametrize("path", SOURCES)
def test_simple_parser_finds_types_and_functions(path: str) -> None:
    source, expected, _, _ = SOURCES[path]
    language = language_of(path)
    assert language is not None
    found = {d.name for d in simple_parser.parse(language, source).definitions}
    wanted = {name for name, kind in expected if kind in ("class", "struct", "interface", "type")}
    if path not in ("a.js", "a.cpp", "a.rs"):  # Patterns see the first definition of a line.
        wanted |= {"sell"} & {name for name, _ in expected}
    assert wanted <= found


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        (
            "a.cpp",
            "MY_BEGIN\nclass MY_API Shop : public Base {\n  int price_;\n};\nMY_END\n",
            {"Shop", "price_"},
        ),
        # A block that one macro opens and another one closes.
        (
            "a.c",
            "void first(void)\n{\n  BEGIN {\n  FAIL();\n  END }}\n}\n\nvoid second(void)\n{\n}\n"
            "API(int) third(void)\n{\n  if (x) { y(); }\n}\n",
            {"first", "second", "third"},
        ),
        # The second line of a condition, and a label, look like functions.
        (
            "c.c",
            "void first(void)\n{\n  BEGIN {\n  if (sum(a) != 1 ||\n      size(b) > 2) {\n  }\n"
            "again:\tswitch (c = g(d)) {\n  }\n  END }}\n}\n",
            {"first"},
        ),
        (
            "b.c",
            "#if X\nstatic int counter, rows[3];\n#else\nint other = 1;\n#endif\n",
            {"counter", "rows", "other"},
        ),
        ("a.ts", "function f() {\n  const { a, b: c } = g(), [d] = h()\n}\n", {"f", "a", "c", "d"}),
    ],
)
def test_definitions_that_macros_and_patterns_hide(
    path: str, source: str, expected: set[str]
) -> None:
    language = language_of(path)
    assert language is not None
    assert {d.name for d in parse(language, source.encode()).definitions} == expected


def test_names_count_uses_and_not_comments() -> None:
    language = language_of("a.py")
    assert language is not None
    source = b"# Shop Shop\nclass Shop: pass\nname = 'Shop'\nShop()\nhelp(Shop)\n"
    assert parse(language, source).names == {"Shop": 2, "class": 1, "pass": 1, "help": 1}


def test_kinds_of_uses() -> None:
    language = language_of("a.py")
    assert language is not None
    source = (
        b"from shop import Shop\n# Shop\nclass Big(Shop): pass\nx: Shop = Shop(1)\nprint('Shop')\n"
        b"run(Shop)\n"
    )
    found = [(o.line, o.kind) for o in occurrences(language, source, "Shop")]
    assert found == [(1, "import"), (3, "inherits"), (4, "type"), (4, "call"), (6, "use")]


def test_secondary_files() -> None:
    for path in ("tests/test_a.py", "test.c", "src/a.test.ts", "pkg/a_test.go", "vendor/x.go"):
        assert is_secondary(path)
    for path in ("src/testing.py", "src/contest.go", "app/latest.rb"):
        assert not is_secondary(path)
    for path in ("src/test/java/com/shop/A.java", "samples/a/src/main/java/com/shop/A.java"):
        assert is_secondary(path)
    for path in ("src/main/java/com/example/A.java", "app/src/main/kotlin/com/example/A.kt"):
        assert not is_secondary(path), "a Java package is called com.example"


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_any_bytes_are_parsed(language: Language) -> None:
    @given(st.binary(max_size=400))
    def check(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        for found in (parse(language, data), simple_parser.parse(language, text)):
            assert all(d.line >= 1 for d in found.definitions)
            assert all(count > 0 for count in found.names.values())

    check()
