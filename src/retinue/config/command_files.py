"""Command files: parses the slash commands of retinue and of other coding agents."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from retinue.config.agent_files import one_line
from retinue.config.agent_folders import AgentFolder, InvalidFile, read_folder
from retinue.config.frontmatter import (
    as_prose,
    as_text,
    as_tools,
    normalize_key,
    parse_front_matter,
)
from retinue.config.tool_translation import BUILTIN_TOOLS, Dialect, our_names, split_pattern
from retinue.domain.permissions import ASK_USER
from retinue.domain.slash_command import SlashCommand

MAX_DESCRIPTION = 200
_USED = ("description", "model", "agent", "tools", "allowedtools", "argumenthint")
_TOOLS = (*BUILTIN_TOOLS, ASK_USER)
# Opencode's own agent for ordinary work is our lead.
_LEAD_NAMES = ("build", "default")


def read_commands(
    folder: AgentFolder, models: Mapping[str, str]
) -> Iterator[SlashCommand | InvalidFile]:
    """The commands of a folder, by name. `models` are the user's short names, in lower case."""
    for file in read_folder(folder):
        if file.problem:
            yield InvalidFile(file.display_path, file.problem)
            continue
        stem = file.name.removesuffix(".md")
        name = stem.replace("/", ":")
        if folder.dialect is Dialect.OPENCODE:
            fields = parse_front_matter(file.text, known=_USED).fields
            name = as_text(fields.get("name")) or stem
        if not name.isprintable() or len(name.split()) != 1:
            yield InvalidFile(file.display_path, "a name has no spaces")
            continue
        ignored = ("name",) if folder.dialect is Dialect.OPENCODE else ()
        yield parse_command(file.text, name, file.display_path, folder, models, ignored)


def parse_command(
    text: str,
    name: str,
    place: str,
    folder: AgentFolder,
    models: Mapping[str, str],
    ignored: Collection[str] = (),
) -> SlashCommand | InvalidFile:
    """The command of a file, also of a `SKILL.md` that only people may start.

    `ignored` fields need no remark if they have no effect.
    """
    matter = parse_front_matter(text, known=_USED)
    if not matter.body:
        return InvalidFile(place, "it has no text")
    fields = {normalize_key(key): value for key, value in matter.fields.items()}
    problems = list(matter.problems)
    if unused := sorted(key for key in fields if key not in (*_USED, *ignored)):
        problems.append(f"fields without effect: {', '.join(unused)}")
    wanted = as_text(fields.get("model"))
    model = models.get((wanted or "").casefold())
    if wanted and model is None and wanted.casefold() not in ("inherit", "default"):
        problems.append(f"model {wanted!r} is not in your [models]; the usual model is used")
    listed = fields.get("tools", fields.get("allowedtools"))
    tools: list[str] = []
    for tool in as_tools(listed):
        ours = our_names(split_pattern(tool)[0], folder.dialect, _TOOLS)
        tools += ours
        if not ours:
            problems.append(f"unknown tool: {tool}")
    agent = as_text(fields.get("agent"))
    description = as_prose(fields.get("description")) or matter.body.partition("\n")[0]
    return SlashCommand(
        name=name,
        description=one_line(description, MAX_DESCRIPTION),
        body=matter.body,
        place=place,
        of_project=folder.within is not None,
        first=0 if folder.dialect is Dialect.CLAUDE else 1,
        last_takes_rest=folder.dialect is Dialect.OPENCODE,
        model=model,
        agent=None if agent in _LEAD_NAMES else agent,
        tools=None if listed is None else tuple(sorted(set(tools))),
        problems=tuple(one_line(problem, MAX_DESCRIPTION) for problem in problems),
    )
