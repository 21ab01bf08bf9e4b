from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.config.environment import Environment
from retinue.config.mcp_servers import ServerConfiguration, add_servers, configured_servers
from retinue.config.settings import Settings, SettingsLayers
from retinue.config.settings_file import load_settings
from retinue.domain.mcp_server import McpServerSpec, Transport
from retinue.errors import ConfigError

ENVIRONMENT = Environment(
    variables={
        "HOME": "/home/me",
        "PATH": "/bin",
        "TOKEN": "t0ken",
        "OPENAI_API_KEY": "sk-secret",
        "https_proxy": "http://proxy:3128",
        "HTTP_PROXY": "http://me:pa55@proxy:3128",
        "SSL_CERT_FILE": "/etc/ca.pem",
    }
)


def found(
    project: Path, servers: Any = None, *, user: str = "", ours: str = ""
) -> ServerConfiguration:
    """What is configured by these files."""
    if servers is not None:
        text = servers if isinstance(servers, str) else json.dumps({"mcpServers": servers})
        (project / ".mcp.json").write_text(text)
    environment = Environment(variables={"HOME": str(project.parent)})
    settings = environment.user_settings_file
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(user)
    (project / "retinue.toml").write_text(ours)
    return configured_servers(load_settings(environment, project), project)


def ready(found: ServerConfiguration, project: Path) -> McpServerSpec:
    assert found.problems == ()
    (server,) = found.servers
    made = server.ready(project, ENVIRONMENT)
    assert isinstance(made, McpServerSpec)
    return made


def test_project_command(project: Path) -> None:
    server = ready(
        found(
            project,
            {
                "db": {
                    "type": "stdio",
                    "command": "npx",
                    "args": ["-y", "server", "${TOKEN}", "${NONE:-fallback}", "${NONE:-}"],
                    "env": {"KEY": "x-${TOKEN}"},
                    "description": "Known to other tools.",
                }
            },
        ),
        project,
    )
    assert server.command == ("npx", "-y", "server", "t0ken", "fallback", "")
    # Ours stay with us; what the configuration names is given.
    assert server.environment == {
        "HOME": "/home/me",
        "PATH": "/bin",
        "KEY": "x-t0ken",
        # To fetch packages by; a proxy with a password stays with us as well.
        "https_proxy": "http://proxy:3128",
        "SSL_CERT_FILE": "/etc/ca.pem",
    }
    assert (server.source, server.transport) == (".mcp.json", Transport.STDIO)
    assert server.directory == str(project)
    assert server.tools == ("*",)
    assert (server.read, server.trust_hints) == ((), False)


@pytest.mark.parametrize(
    ("entry", "transport"),
    [
        ({"url": "https://example.com/mcp"}, Transport.HTTP),
        ({"type": "http", "url": "https://example.com/mcp"}, Transport.HTTP),
        ({"type": "streamable-http", "url": "https://example.com/mcp"}, Transport.HTTP),
        ({"type": "sse", "url": "https://example.com/mcp"}, Transport.SSE),
        ({"httpUrl": "https://example.com/mcp"}, Transport.HTTP),
    ],
)
def test_http_server(project: Path, entry: dict[str, str], transport: Transport) -> None:
    headers = {"headers": {"Authorization": "Bearer ${TOKEN}"}}
    server = ready(found(project, {"web": {**entry, **headers}}), project)
    assert (server.url, server.transport) == ("https://example.com/mcp", transport)
    assert server.headers == {"Authorization": "Bearer t0ken"}
    assert server.proxy == "http://proxy:3128"
    assert "t0ken" not in repr(server)


def test_user_server(project: Path) -> None:
    server = ready(
        found(
            project,
            user='[mcp.notes]\ncommand = "notes"\nargs = ["--all"]\ntools = ["get_*"]\n'
            'read = ["get_*"]\ntrust_hints = true\ntimeout_s = 5\nstart_timeout_s = 7\ncwd = "sub"',
        ),
        project,
    )
    assert (server.source, server.command) == ("settings", ("notes", "--all"))
    assert (server.tools, server.read, server.trust_hints) == (("get_*",), ("get_*",), True)
    assert (server.timeout_s, server.start_timeout_s) == (5, 7)
    assert server.directory == str(project / "sub")


def test_user_server_runs_in_home_directory(project: Path) -> None:
    """There `npx` and `python -m` would find what the project has put there."""
    user = '[mcp.a]\ncommand = "npx"\nargs = ["--repository", "${RETINUE_PROJECT}"]'
    every = found(project, user=user)
    server = ready(every, project)
    assert server.directory == "/home/me"
    assert server.command == ("npx", "--repository", str(project))
    assert every.servers[0].variables == ()
    server = ready(found(project, user=f'{user}\ncwd = "."'), project)
    assert server.directory == str(project)


def test_precedence_of_equal_names(project: Path) -> None:
    every = found(
        project,
        {"a": {"command": "file"}, "b": {"command": "file"}, "c": {"command": "file"}},
        user='[mcp.a]\ncommand = "user"',
        ours='[mcp.a]\ncommand = "project"\n[mcp.b]\ncommand = "project"',
    )
    sources = {server.name: server.source for server in every.servers}
    assert sources == {"a": "settings", "b": "retinue.toml", "c": ".mcp.json"}
    assert every.problems == (
        "retinue.toml: MCP server a: left out, because settings has one",
        ".mcp.json: MCP server a: left out, because settings has one",
        ".mcp.json: MCP server b: left out, because retinue.toml has one",
    )
    assert [server.of_project for server in every.servers] == [False, True, True]


def test_project_gives_no_server_the_tool_names_of_another_server(project: Path) -> None:
    """A rule of the user for `mcp__git_hub__*` would also allow the tools of a `git.hub`."""
    every = found(
        project,
        {"git.hub": {"command": "theirs"}, "a.b": {"command": "x"}, "a_b": {"command": "x"}},
        user='[mcp.git_hub]\ncommand = "mine"',
    )
    assert [server.name for server in every.servers] == ["a.b", "a_b", "git_hub"]
    assert every.problems == (
        ".mcp.json: MCP server git.hub: left out, because settings has git_hub, whose tools have"
        " the same names",
    )


def test_only_the_user_marks_tools_as_read(
    project: Path,
) -> None:
    brought = '[mcp.a]\ncommand = "x"\nread = ["*"]\ntrust_hints = true\ntools = ["get_*"]'
    server = ready(found(project, ours=brought), project)
    assert (server.tools, server.read, server.trust_hints) == (("get_*",), (), False)
    mine = '[mcp.a]\nread = ["get_one"]\ntools = ["get_one"]\ntimeout_s = 9'
    server = ready(found(project, ours=brought, user=mine), project)
    assert (server.tools, server.read) == (("get_one",), ("get_one",))
    assert (server.trust_hints, server.timeout_s) == (False, 9)


@pytest.mark.parametrize(
    ("servers", "user"),
    [
        ({"a": {"command": "x", "disabled": True}}, ""),
        ({"a": {"command": "x", "enabled": False}}, ""),
        ({"a": {"command": "x"}}, "[mcp.a]\nenabled = false"),
        (None, '[mcp.a]\ncommand = "x"\nenabled = false'),
        ({}, ""),
    ],
)
def test_disabled_servers_are_left_out(project: Path, servers: Any, user: str) -> None:
    assert found(project, servers, user=user) == ServerConfiguration(())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", ".mcp.json: not valid JSON (Input data was truncated)"),
        ("[" * 100_000, ".mcp.json: nested too deeply"),
        ("[]", '.mcp.json: it has no object "mcpServers"'),
        ("{}", '.mcp.json: it has no object "mcpServers"'),
        ('{"mcpServers": 5}', '.mcp.json: it has no object "mcpServers"'),
        ('{"mcpServers": {"a": 5}}', ".mcp.json: MCP server a: it is not an object"),
        ('{"mcpServers": {"a": {}}}', ".mcp.json: MCP server a: it has neither command nor url"),
        (
            '{"mcpServers": {"a b": {"command": "x"}}}',
            ".mcp.json: MCP server a b: a name has 1 to 40 letters, digits and _.- only.",
        ),
        (
            '{"mcpServers": {"a": {"command": "x", "url": "http://x"}}}',
            ".mcp.json: MCP server a: `command` starts a server and `url` names one that runs;"
            " set one.",
        ),
        (
            '{"mcpServers": {"a": {"command": 5}}}',
            ".mcp.json: MCP server a: Expected `str | null`, got `int` - at `$.command`",
        ),
        (
            '{"mcpServers": {"a": {"type": "ws", "url": "ws://x"}}}',
            ".mcp.json: MCP server a: Invalid enum value 'ws' - at `$.type`",
        ),
        (
            '{"mcpServers": {"a": {"command": ""}}}',
            ".mcp.json: MCP server a: `command` and `url` must not be empty.",
        ),
    ],
)  # fmt: skip
def test_invalid_entries_do_not_affect_others(project: Path, text: str, problem: str) -> None:
    every = found(project, text, user='[mcp.mine]\ncommand = "x"')
    assert every.problems == (problem,)
    assert [server.name for server in every.servers] == ["mine"]


def test_byte_order_mark_is_accepted(project: Path) -> None:
    every = found(project, '\ufeff{"mcpServers": {"a": {"command": "x"}}}')
    assert [server.name for server in every.servers] == ["a"]


def test_link_out_of_the_project_is_not_followed(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text('{"mcpServers": {"a": {"command": "x"}}}')
    (project / ".mcp.json").symlink_to(tmp_path / "elsewhere.json")
    every = configured_servers(SettingsLayers(Settings(), Settings()), project)
    assert every == ServerConfiguration(
        (), (".mcp.json: not read, because it leads out of the project",)
    )


def test_choices_for_an_unknown_server(project: Path) -> None:
    assert found(project, user="[mcp.a]\nread = ['*']").problems == (
        "settings: MCP server a: it has neither command nor url, and the project brings none",
    )


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"command": "x", "args": ["${NONE}"]}, "it needs the variable NONE, which is not set"),
        ({"url": "${NONE}"}, "it needs the variable NONE, which is not set"),
        ({"url": "file:///etc/passwd"}, "its url is not a web address"),
    ],
)  # fmt: skip
def test_unresolvable_servers(project: Path, entry: dict[str, Any], problem: str) -> None:
    (server,) = found(project, {"a": entry}).servers
    assert server.ready(project, ENVIRONMENT) == problem


def test_variables_of_a_server_are_known_in_advance(project: Path) -> None:
    entry = {"command": "${HOME}/x", "env": {"A": "${TOKEN}"}, "args": ["${OPENAI_API_KEY:-}"]}
    (server,) = found(project, {"a": entry}).servers
    assert server.variables == ("HOME", "OPENAI_API_KEY", "TOKEN")
    assert server.shown == "${HOME}/x ${OPENAI_API_KEY:-}"


def test_servers_of_the_program_are_the_users_and_narrowed_by_the_settings(project: Path) -> None:
    layers = SettingsLayers(
        msgspec.toml.decode(
            """
            [mcp.time]
            sandbox = true
            read = ["now"]
            [mcp.mine]
            command = "my-own"
            """,
            type=Settings,
        ),
        Settings(),
    )
    given = {name: {"command": "editor", "args": ["x"]} for name in ("time", "mine", "more")}
    configured = configured_servers(add_servers(layers, given), project)
    servers = {server.name: server for server in configured.servers}
    assert {name: server.shown for name, server in servers.items()} == {
        "time": "editor x",
        "mine": "my-own",
        "more": "editor x",
    }
    assert not any(server.of_project for server in servers.values())
    assert servers["time"].confined
    assert servers["time"].settings.read == ("now",)
    assert not servers["more"].confined
    with pytest.raises(ConfigError, match=r"MCP server 'a b': a name has 1 to 40 letters"):
        add_servers(layers, {"a b": {"command": "x"}})
