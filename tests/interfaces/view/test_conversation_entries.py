from __future__ import annotations

from retinue.interfaces.view.conversation_entries import Frame, NoticeEntry, ReplyEntry
from retinue.interfaces.view.styled_text import plain_text


def test_streamed_text_looks_like_complete_text() -> None:
    text = "# A\n\none two\n\n```\ncode\n\nmore\n```\n\n| a | b |\n|--|--|\n| c | d |\n\n- x\n\nend"
    growing, frame = ReplyEntry(), Frame(0.0)
    for n in range(0, len(text), 3):
        growing.append(text[n : n + 3])
        shown = growing.lines(30, frame, full=False)
        complete = ReplyEntry(growing.text).lines(30, frame, full=False)
        assert plain_text(shown) == plain_text(complete)
    assert plain_text(growing.lines(12, frame, full=False)) == plain_text(
        ReplyEntry(text).lines(12, frame, full=False)
    )


def test_notice_keeps_lines_and_indent() -> None:
    notice = NoticeEntry("Head\n  one two three four five")
    shown = plain_text(notice.lines(16, Frame(0.0), full=False))
    assert shown == "Head\n  one two three\n  four five"
