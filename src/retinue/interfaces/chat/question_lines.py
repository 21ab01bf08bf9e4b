"""The open question on the screen: what is asked, and how to answer."""

from __future__ import annotations

from retinue.domain.approval import agent_label
from retinue.interfaces.chat.questions import Question
from retinue.interfaces.view.approvals import always_text, explanation_lines, request_lines
from retinue.interfaces.view.formatting import printable_lines
from retinue.interfaces.view.styled_text import Line, Tone, styled, wrap


def question_lines(question: Question, width: int) -> list[Line]:
    """The question, whole."""
    if question.request is not None:
        request = question.request
        return [*request_lines(request, width), *explanation_lines(request, width)]
    lines: list[Line] = []
    if question.path:
        lines += wrap(styled((f"{agent_label(question.path)} asks", Tone.STOPPED)), width)
    for text in printable_lines(question.text):
        lines += wrap(styled(text), width)
    return lines


def answer_lines(question: Question, more: str, width: int) -> list[Line]:
    """The keys that answer the question. `more` says which part is not in view."""
    request = question.request
    if request is None:
        keys = "" if question.choices else "Type your answer, then enter."
    elif request.children:
        keys = "y yes   n no, with a reason   a always for all like this"
    else:
        keys = f"y yes   n no, with a reason   a always {always_text(request)}   e edit that rule"
    lines = [styled((more, Tone.STOPPED))] if more else []
    return lines + (wrap(styled((keys, Tone.DIM)), width) if keys else [])
