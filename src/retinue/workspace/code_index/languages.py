"""The languages of the index: their files, grammars, and rules for what is public."""

from __future__ import annotations

import posixpath
import re
from importlib.resources import files

import msgspec.toml


class Language(msgspec.Struct, frozen=True, kw_only=True):
    """`queries` are files in `queries/`, `grammar` is a module and the function that loads it."""

    name: str
    extensions: tuple[str, ...]
    grammar: tuple[str, str]
    queries: tuple[str, ...]
    public: str = ""
    """The text before a public name matches this; for Go and Python, the name itself does."""
    private: str = ""
    """The text before a name that is not public matches this."""
    doc_comment: str = r"/\*\*|///|//!"
    """How documentation begins, in the comment before a definition."""


LANGUAGES = msgspec.toml.decode(
    files(__package__).joinpath("languages.toml").read_bytes(), type=dict[str, tuple[Language, ...]]
)["languages"]
_BY_EXTENSION = {ext: language for language in LANGUAGES for ext in language.extensions}
_TEST_FILE = re.compile(
    r"(?i:(?:^|/)(?:tests?|__tests__|specs?|testdata|fixtures|examples?|bench(?:marks?|es)?|vendor"
    r"|third_party|node_modules|docs?|samples?)/|(?:^|/)(?:test_|tests?\.|conftest\.)"
    r"|[._-](?:test|tests|spec|min)\.\w+$)|Tests?\.\w+$"
)
# What follows is the name of a Java package, such as com.example.shop, and no folder of examples.
_MAIN_SOURCE = re.compile(r"(?:^|(?<=/))src/main/(?:java|kotlin|scala|groovy)/.*")
# The members of these are public if nothing says otherwise.
OPEN_SCOPES = frozenset({"interface", "enum"})
TYPE_KINDS = frozenset({"class", "struct", "interface", "enum", "impl", "module"})


def language_of(path: str) -> Language | None:
    """The language of a file, by the end of its name."""
    return _BY_EXTENSION.get(posixpath.splitext(path)[1].lower())


def is_secondary(path: str) -> bool:
    """Whether a file is a test, an example or a foreign library: not what others build on."""
    return _TEST_FILE.search(_MAIN_SOURCE.sub("", path)) is not None


def is_public(language: Language, name: str, before: str, scope_kind: str) -> bool:
    """Whether a definition is public, by its name and the text before it on its line."""
    match language.name:
        case "python":
            return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))
        case "go":
            return name[:1].isupper()
    if language.private and re.search(language.private, before):
        return False
    if not language.public or re.search(language.public, before):
        return True
    # A member of a public type: TypeScript has no keyword, interfaces and enums need none.
    return scope_kind in OPEN_SCOPES or (
        language.name in ("javascript", "typescript", "tsx") and scope_kind in TYPE_KINDS
    )
