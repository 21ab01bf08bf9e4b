"""Renders Markdown as styled lines."""

from __future__ import annotations

from retinue.interfaces.view.formatting import printable_lines
from retinue.interfaces.view.styled_text import Line, styled

# A wider line goes to a file or a pipe.
MIN_WIDTH, MAX_WIDTH = 8, 10_000
CONTINUABLE = ("bullet_list_open", "ordered_list_open", "blockquote_open", "table_open",
               "code_block")  # fmt: skip


class MarkdownText:
    """A Markdown text that may grow. Blocks before its last one are rendered once."""

    def __init__(self) -> None:
        self._width = 0
        self._source = ""
        """The text of the blocks that are rendered."""
        self._rendered: list[Line] = []
        self.last_block_chars = 0

    def lines(self, text: str, width: int) -> list[Line]:
        """`text` as lines of at most `width` cells; as it is, for a pipe."""
        if width > MAX_WIDTH:
            return list(map(styled, printable_lines(text)))
        from retinue.interfaces.view import markdown_blocks as blocks

        width = max(MIN_WIDTH, width)
        text = "\n".join(printable_lines(text))
        if width != self._width or not text.startswith(self._source):
            self._width, self._source, self._rendered = width, "", []
        rest = text[len(self._source) :]
        found = blocks.parse_blocks(rest)
        open_blocks = 1
        if len(found) > 1 and found[-2][0].type in CONTINUABLE:
            place = found[-1][0].map
            # A line that is not complete may still belong to the block before it.
            open_blocks = 2 if place is not None and place[0] >= rest.count("\n") else 1
        complete, growing = found[:-open_blocks], found[-open_blocks:]
        if complete and (place := growing[0][0].map) is not None:
            for block in complete:
                self._rendered = _joined(self._rendered, blocks.draw_block(block, width))
            self._source += "".join(rest.splitlines(keepends=True)[: place[0]])
        self.last_block_chars = len(text) - len(self._source)
        lines = self._rendered
        for block in growing:
            lines = _joined(lines, blocks.draw_block(block, width))
        return lines


def render_markdown(text: str, width: int) -> list[Line]:
    """`text` as lines of at most `width` cells."""
    return MarkdownText().lines(text, width)


def _joined(first: list[Line], second: list[Line]) -> list[Line]:
    """Both lists, with an empty line between them."""
    return [*first, styled(), *second] if first and second else [*first, *second]
