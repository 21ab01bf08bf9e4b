"""What the training and the evaluation say about a file."""

from __future__ import annotations

from training.facts import summary


def test_summary_of_a_page_leaves_out_tags_of_several_lines() -> None:
    text = (
        '# Sails\n\n<img align="right" title="Logo"\n     src="https://sails.example/logo.svg">\n\n'
        "A tiny library that draws sails. It needs nothing else.\n"
    )
    assert summary("README.md", text) == "A tiny library that draws sails."


def test_summary_of_a_page_keeps_text_between_signs() -> None:
    text = "# Sizes\n\nA width < 3 is too small for a page, and a height > 9 is too large.\n"
    assert "too small for a page" in summary("README.md", text)
