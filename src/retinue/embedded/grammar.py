"""The grammar of a reply of the embedded model: a text, or calls that copy what they name.

The model picks the right step, and copies rare words wrongly. So paths, patterns, the text that an
edit replaces, and names and numbers in texts can only be those that the conversation shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from retinue.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from retinue.embedded.gbnf import escaped, json_literal, literal, one_of, part_of
from retinue.embedded.prompt import MAX_RESULT_CHARS
from retinue.embedded.shown import WORD, Shown

# Fields of a call in the order in which the adapter has learned them, with the rule of each value;
# those with ? may be missing.
_FIELDS = {
    "list_dir": {"path": "path"},
    "find_files": {"pattern": "glob"},
    "read_file": {"path": "path"},
    "search_files": {"pattern": "regex", "path?": "path"},
    "edit_file": {"path": "unread", "old_text": "edit", "all?": '"true"'},
    "write_file": {"path": "unread", "content": "string"},
    "spawn_agent": {"role": "string", "task": "copied", "background?": '"true"'},
    "spawn_await": {"job_ids": "string"},
}
# A file may be read again before and after an edit.
_MAX_SAME_CALLS = 3
_MAX_CUT_CALLS = 2
_MAX_FAILED_EDITS = 3
# If the model forgets a quotation mark, the end of the call must not become a part of the value: a
# path has no braces, and no string has the end of a call.
_TEXTS = r"""
text ::= [^<] rest
rest ::= ([^<] | "<" [^t] | "<t" [^o])*
answer ::= spoken " " spoken " " ([^(<] | "(" [0-9]) rest
spoken ::= [^ (<\n.!?]+ | [^ (<\n.!?A-Za-z0-9_]* rare [^ (<\n.!?A-Za-z0-9_]*
"""
# The files that were found, and not that there are none.
_LISTING = r"""listing ::= about (" " about){0,4} " " found (also found)* ending
about ::= [^ <\nNn] [^ <\n]*
also ::= ", " | " and "
ending ::= (" and " ("more" | "elsewhere"))? "."
"""
_CALLS = r"""anypath ::= "\"" ([^"\\{}<>\x00-\x1F] | escape)* "\""
string ::= "\"" part* open? "\""
part ::= [^"\\<\x00-\x1F] | open? escape | "<" [^"\\/\x00-\x1F] | "</" [^"\\<t\x00-\x1F] | tag
tag ::= "</t" [^"\\<o\x00-\x1F] | "</to" [^"\\<o\x00-\x1F]
open ::= "<" ("/" ("t" "o"?)?)?
escape ::= "\\" (["\\/bfnrt] | "u" hex hex hex hex)
hex ::= [0-9a-fA-F]
copied ::= "\"" content "\""
content ::= (gap | sign)? (run (gap run)*)? (gap | sign)?
lead ::= (gap | sign)? (run gap)*
tail ::= gap (run gap)* run? sign? | sign
run ::= [A-Za-z]+ ("-" [A-Za-z]+)* | rare
gap ::= sign? (space sign?)+
sign ::= [./@+-]+
space ::= [^A-Za-z0-9_./@+"\\<\x00-\x1F-] | escape | "<" | "</" [^"\\<t\x00-\x1F] | tag
anyglob ::= "\"" word? (wild word?)* "\""
wild ::= [*?/.-] | "*." [a-z*?]+
regex ::= "\"" known? (special known?)* "\""
known ::= word | "class" | "const" | "def" | "fn" | "func" "tion"? | "type" | "version"
special ::= [^A-Za-z0-9_"\\<{[\x00-\x1F] | "\\\"" | quoted | "[" [^\]\\"<]* "]" | "{" [0-9,]+ "}"
quoted ::= "\\\\" ([^"\\<\x00-\x1F] | "\\" ["\\])
"""


def call_grammar(tools: Iterable[str], messages: Iterable[Message] = ()) -> str:
    """What a reply may be, for llama.cpp: a text, or calls of these tools with all they need.

    Without it, 5 of 100 calls had a wrong escape, a field of another tool, or no end. It leaves out
    tools whose calls lead nowhere in the conversation.
    """
    known = [name for name in tools if name in _FIELDS]
    if not known:
        return ""
    messages = list(messages)
    excluded = {*_repeated_tools(messages), *_failed_edits(messages)}
    shown = Shown(messages)
    calls = [rule for name in known if name not in excluded for rule in _call_rules(name, shown)]
    said = "answer" if messages and isinstance(messages[-1], ToolMessage) else "text"
    said = "listing" if shown.found else said
    root = f'{said} | call ("\\n" call){{0,7}}' if calls else said
    if shown.file_to_read and "read_file" in known:
        calls = [_call_rule("read_file", {"path": json_literal(shown.file_to_read)})]
        root = "call"
    rules = [f"root ::= {root}", f"rare ::= {one_of(shown.rare_runs())}"]
    if shown.found:
        rules += [f"found ::= {one_of(shown.found)}"]
    if calls:
        rules += _values(shown)
        rules += [rf'call ::= "<tool_call>{{\"name\": " ({" | ".join(calls)}) "}}}}</tool_call>"']
    texts = _TEXTS + (_LISTING if shown.found else "")
    return "\n".join(rules) + texts + (_CALLS if calls else "")


def _call_rules(name: str, shown: Shown) -> Iterator[str]:
    fields = _FIELDS[name]
    if shown.several_places and "all?" in fields:
        fields = {field.rstrip("?"): value for field, value in fields.items()}
    yield _call_rule(name, fields)
    if name == "edit_file":
        for number, path in enumerate(shown.files):
            yield _call_rule(
                name, fields | {"path": json_literal(path), "old_text": f"edit{number}"}
            )


def _call_rule(name: str, fields: Mapping[str, str]) -> str:
    parts = [rf'"\"{name}\", \"arguments\": {{"']
    for number, (field, value) in enumerate(fields.items()):
        part = rf'"{", " if number else ""}\"{field.rstrip("?")}\": " {value}'
        parts.append(f"({part})?" if field.endswith("?") else part)
    return " ".join(parts)


def _values(shown: Shown) -> Iterator[str]:
    """Rules of the values that the conversation decides."""
    yield f"word ::= {one_of(shown.words() or {'0'})}"
    yield rf'glob ::= "\"" ({one_of(shown.globs())}) "\""' if shown.globs() else "glob ::= anyglob"
    if shown.paths:
        names = shown.names | {"."}
        unread = (shown.paths | names) - shown.files.keys()
        yield f"name ::= {one_of(names)}"
        yield f'inside ::= {one_of(shown.paths | names)} | name "/" name'
        yield r'path ::= "\"" inside "\""'
        yield rf'unread ::= "\"" ({one_of(unread)} | name "/" name) "\""'
    else:
        yield "path ::= anypath"
        yield "unread ::= anypath"
    yield from _edits(shown)


def _edits(shown: Shown) -> Iterator[str]:
    """Rules of old and new text, for a file that was not read, and for each that was.

    What users quote is exact. If it stands in the file, it is what an edit replaces, or where
    another quoted text is added. Otherwise the edit adds it: at the beginning or the end of the
    file, or at a line that has words of the question.
    """
    quoted = shown.quoted()
    yield from part_of("asked", shown.asked())
    yield from part_of("result", shown.results)
    parts = 'asked-0 | "[" asked-0 "]"' + (" | result-0" if any(shown.results) else "")
    yield rf'near ::= ({parts}) "\\n"?'
    yield f"adding ::= lead? ({one_of(quoted)}) tail?" if quoted else "adding ::= content"
    anywhere = [_pair("near", "adding"), *_quoted_edits(quoted, quoted)]
    yield f"edit ::= {' | '.join(anywhere)}"
    for number, text in enumerate(shown.files.values()):
        there = [one for one in quoted if one in text]
        is_whole = len(text) < MAX_RESULT_CHARS
        options = [*_quoted_edits(there, quoted)]
        if not quoted:
            yield from part_of(f"file{number}", [text] if is_whole else [text, *shown.asked()])
            options.append(_pair(f'file{number}-0 "\\n"?', "content"))
        elif not there or len(quoted) == 1:
            options += _added_beside_lines(text, quoted, shown.asked(), is_whole)
        yield f"edit{number} ::= {' | '.join(options) or 'edit'}"


def _quoted_edits(old: Iterable[str], quoted: Collection[str]) -> Iterator[str]:
    """Edits that replace or remove one of these texts, or add another one beside it."""
    for text in old:
        others = [other for other in quoted if other != text]
        new = [some for other in others for some in (other, *_beside(text, other))]
        yield _pair(literal(escaped(text)), one_of(new) if new else "content")
        yield _pair(literal(escaped(f"{text}\n")), '""')


def _added_beside_lines(
    text: str, quoted: Iterable[str], asked: Iterable[str], is_whole: bool
) -> Iterator[str]:
    """Edits that add one of these texts at the beginning or the end of a file, or at some line.

    That is a line which has a word of the question that few lines have.
    """
    lines = text.strip("\n").split("\n")
    counts = range(2, len(lines) + 1)
    beginnings = [lines[0].strip(), *("\n".join(lines[:count]) for count in counts)]
    ends = [lines[-1].strip(), *("\n".join(lines[-count:]) for count in counts)]
    for one in quoted:
        for first in [some for some in beginnings if some and text.count(some) == 1][:1]:
            yield _pair(literal(escaped(first)), literal(escaped(f"{one}\n{first}")))
        for last in [some for some in ends if some and text.count(some) == 1][:is_whole]:
            yield _pair(literal(escaped(last)), literal(escaped(f"{last}\n{one}")))
    words = {word for part in asked for word in WORD.findall(part) if len(word) > 3}
    having = {word: [line for line in lines if word in WORD.findall(line)] for word in words}
    found = {line.strip() for some in having.values() if len(some) <= 3 for line in some}
    for line in sorted(line for line in found if text.count(line) == 1):
        new = one_of(some for one in quoted for some in _beside(line, one))
        yield _pair(literal(escaped(line)), f"{new} | adding")


def _beside(line: str, other: str) -> tuple[str, str]:
    return f"{line}\n{other}", f"{other}\n{line}"


def _pair(old: str, new: str) -> str:
    return rf'"\"" {old} "\", \"new_text\": \"" ({new}) "\""'


def _repeated_tools(messages: Iterable[Message]) -> Collection[str]:
    """Tools that the model would call again and again until a limit ends it.

    Those are the tools of the same calls twice in a row, and all tools after one call several
    times, or after calls that were cut off, since its last answer.
    """
    replies: list[set[tuple[str, str]]] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            made = {(call.name, call.arguments) for call in message.calls}
            replies = [*replies, made] if made else []
    times = Counter(call for made in replies for call in made)
    # A call without arguments was cut off, and the next one would be as long.
    cut = sum(count for (_, arguments), count in times.items() if not arguments)
    if cut >= _MAX_CUT_CALLS or any(count >= _MAX_SAME_CALLS for count in times.values()):
        return _FIELDS
    if len(replies) > 1 and replies[-1] == replies[-2]:
        return {name for name, _ in replies[-1]}
    return ()


def _failed_edits(messages: Iterable[Message]) -> Collection[str]:
    """Tools that the model would use in place of an edit that failed, or would guess on with."""
    edits: set[str] = set()
    failed = 0
    for message in messages:
        if isinstance(message, AssistantMessage):
            edits |= {call.id for call in message.calls if call.name == "edit_file"}
        elif isinstance(message, UserMessage):
            failed = 0
        elif isinstance(message, ToolMessage) and message.call_id in edits:
            failed = failed + 1 if message.content.startswith("[ERROR]") else 0
    if not failed:
        return ()
    return ("write_file",) if failed < _MAX_FAILED_EDITS else ("write_file", "edit_file")
