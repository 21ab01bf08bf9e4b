"""The text of a script as a tree: of YAML, which knows its lines, or of JSON where no YAML can be
read."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from retinue.errors import ConfigError, MissingExtra
from retinue.extras import is_importable, missing_message


class Node(Protocol):
    """A mapping has `fields`, a list `items`, anything else `text`; the others are None."""

    @property
    def place(self) -> str:
        """Where it stands: ", line 3", or nothing where that is not known."""

    @property
    def fields(self) -> list[tuple[Node, Node]] | None: ...

    @property
    def items(self) -> list[Node] | None: ...

    @property
    def text(self) -> str | None:
        """As it is written, without quotes: also of a number."""

    def value(self) -> Any:
        """What it means, as plain data. ValueError says why it means nothing."""


def tree(text: str, source: str) -> Node | None:
    """The root of a script; None for an empty one. ConfigError for what cannot be read."""
    if is_importable("yaml"):
        return _yaml(text, source)
    try:
        return _JsonNode(msgspec.json.decode(text)) if text.strip() else None
    except msgspec.DecodeError:
        reader = missing_message("formats", "What reads YAML")
        raise MissingExtra(f"{source} is not JSON. {reader}") from None


def _yaml(text: str, source: str) -> Node | None:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigError(
            f"{source}, line {line}: this is not YAML ({problem}). Quote texts that hold : or #."
        ) from None
    return None if root is None else _YamlNode(root)


class _YamlNode:
    def __init__(self, node: Any) -> None:
        self._node = node

    @property
    def place(self) -> str:
        return f", line {self._node.start_mark.line + 1}"

    @property
    def fields(self) -> list[tuple[Node, Node]] | None:
        if self._node.id != "mapping":
            return None
        return [(_YamlNode(key), _YamlNode(value)) for key, value in self._node.value]

    @property
    def items(self) -> list[Node] | None:
        return [_YamlNode(one) for one in self._node.value] if self._node.id == "sequence" else None

    @property
    def text(self) -> str | None:
        return str(self._node.value) if self._node.id == "scalar" else None

    def value(self) -> Any:
        import yaml

        loader = yaml.SafeLoader("")
        try:
            return loader.construct_document(self._node)
        except yaml.YAMLError as error:
            raise ValueError(getattr(error, "problem", None) or "it cannot be read") from None
        finally:
            loader.dispose()


class _JsonNode:
    place = ""

    def __init__(self, value: Any) -> None:
        self._value = value

    @property
    def fields(self) -> list[tuple[Node, Node]] | None:
        if not isinstance(self._value, dict):
            return None
        return [(_JsonNode(key), _JsonNode(value)) for key, value in self._value.items()]

    @property
    def items(self) -> list[Node] | None:
        return list(map(_JsonNode, self._value)) if isinstance(self._value, list) else None

    @property
    def text(self) -> str | None:
        if isinstance(self._value, dict | list):
            return None
        whole = isinstance(self._value, str)
        return self._value if whole else msgspec.json.encode(self._value).decode()

    def value(self) -> Any:
        return self._value
