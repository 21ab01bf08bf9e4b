"""Parses Markdown into blocks and draws them, with markdown-it and rich.

Importing both slows the start of a command, so only texts that are drawn on a terminal import this
module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import markdown as rich_markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.syntax import Syntax

from retinue.interfaces.view.styled_text import (
    Line,
    Tone,
    code_theme,
    from_segments,
    rendering_console,
    styled,
)

CHECKBOXES = {"[ ] ": "☐ ", "[x] ": "☑ ", "[X] ": "☑ "}
RULE_WIDTH = 24
MAX_HIGHLIGHTED_CHARS = 8_000


class _Heading(rich_markdown.Heading):
    LEVEL_ALIGN: ClassVar = {}


class _CodeBlock(rich_markdown.CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip("\n")
        # Colours of more code take so long that keys would wait.
        lexer = self.lexer_name if len(code) <= MAX_HIGHLIGHTED_CHARS else "text"
        yield Syntax(code, lexer, theme=code_theme(), word_wrap=True, padding=(0, 2))


class _Rule(rich_markdown.HorizontalRule):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield styled(("─" * min(options.max_width, RULE_WIDTH), Tone.DIM))


class _Markdown(rich_markdown.Markdown):
    elements: ClassVar = {
        **rich_markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "hr": _Rule,
    }

    def __init__(self, tokens: Sequence[Token]) -> None:
        super().__init__("")
        self.parsed = list(tokens)


@cache
def _parser() -> MarkdownIt:
    # Without HTML, a tag that a model writes about is text. Tables and strikethrough are GitHub's.
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def markdown_html(text: str) -> str:
    """`text` as HTML. Tags and scripts in it are shown, and do nothing."""
    return str(_parser().render(text))


def parse_blocks(text: str) -> list[list[Token]]:
    """The tokens of each paragraph, list, table and so on."""
    blocks: list[list[Token]] = []
    for token in _parser().parse(text):
        if token.level == 0 and token.nesting >= 0:
            blocks.append([])
        blocks[-1].append(token)
    return blocks


def draw_block(block: Sequence[Token], width: int) -> list[Line]:
    for index, token in enumerate(block):
        if token.children:
            token.children = list(_adapted(token.children))
            in_item = index > 1 and block[index - 2].type == "list_item_open"
            start = token.children[0]
            if in_item and (box := CHECKBOXES.get(start.content[:4])):
                start.content = box + start.content[4:]
    console = rendering_console()
    options = console.options.update(width=width)
    rendered = console.render_lines(_Markdown(block), options, pad=False)
    lines = [from_segments(segments) for segments in rendered]
    for shown in lines:
        shown.rstrip()
    while lines and not lines[-1].plain:
        lines.pop()
    while lines and not lines[0].plain:
        del lines[0]
    return lines


def _adapted(inline: Sequence[Token]) -> Iterator[Token]:
    """Keep line breaks, which models mean, and show the address of a link: not all terminals do."""
    address = text = ""
    for token in inline:
        if token.type == "softbreak":
            token.type = "hardbreak"
        elif token.type == "link_open":
            address, text = str(token.attrs.get("href", "")), ""
        text += token.content
        yield token
        if token.type == "link_close" and text != address:
            yield Token("text", "", 0, content=f" ({address})")
