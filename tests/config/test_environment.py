from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import retinue
from retinue.config.environment import COMMAND_VARIABLES, Environment, secret_variables

SECRETS = {
    "OPENAI_API_KEY": "sk-secret",
    "ANTHROPIC_API_KEY": "sk-secret",
    "AWS_SECRET_ACCESS_KEY": "sk-secret",
    "GITHUB_TOKEN": "sk-secret",
    "SSH_AUTH_SOCK": "/run/sk-secret",
    "DATABASE_URL": "postgres://me:sk-secret@host/db",
    "HTTPS_PROXY": "http://me:sk-secret@proxy:3128",
}


def environment(**variables: str) -> Environment:
    return Environment(variables=variables)


def test_empty_variable_is_unset() -> None:
    assert environment(RETINUE_MODEL="").get("RETINUE_MODEL") is None
    assert environment().get("RETINUE_MODEL") is None
    assert environment(RETINUE_MODEL="x").get("RETINUE_MODEL") == "x"


def test_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_MODEL", "first")
    current = Environment.current()
    monkeypatch.setenv("RETINUE_MODEL", "second")
    assert current.get("RETINUE_MODEL") == "first"


@pytest.mark.parametrize(
    ("variables", "path"),
    [
        ({"HOME": "/home/me"}, "/home/me/.config/retinue/config.toml"),
        ({"HOME": "/home/me", "XDG_CONFIG_HOME": "/etc/me"}, "/etc/me/retinue/config.toml"),
        ({"HOME": "/home/me", "XDG_CONFIG_HOME": ""}, "/home/me/.config/retinue/config.toml"),
    ],
)
def test_user_settings_file(variables: dict[str, str], path: str) -> None:
    assert Environment(variables=variables).user_settings_file == Path(path)


@pytest.mark.parametrize(
    ("variables", "file"),
    [
        ({}, None),
        ({"SSL_CERT_FILE": "/a.pem"}, "/a.pem"),
        ({"REQUESTS_CA_BUNDLE": "/b.pem"}, "/b.pem"),
        ({"SSL_CERT_FILE": "/a.pem", "REQUESTS_CA_BUNDLE": "/b.pem"}, "/a.pem"),
        ({"SSL_CERT_FILE": "", "REQUESTS_CA_BUNDLE": "/b.pem"}, "/b.pem"),
    ],
)
def test_ca_file(variables: dict[str, str], file: str | None) -> None:
    assert Environment(variables=variables).ca_file == file


ONE, TWO = "http://one:3128", "http://two:3128"


@pytest.mark.parametrize(
    ("url", "variables", "proxy"),
    [
        ("https://api.example.com/v1", {}, None),
        ("https://api.example.com/v1", {"HTTPS_PROXY": ONE}, ONE),
        ("https://api.example.com/v1", {"https_proxy": ONE}, ONE),
        ("https://api.example.com/v1", {"HTTP_PROXY": ONE}, None),
        ("http://api.example.com/v1", {"HTTP_PROXY": ONE}, ONE),
        ("https://api.example.com/v1", {"ALL_PROXY": ONE}, ONE),
        ("https://api.example.com/v1", {"ALL_PROXY": ONE, "HTTPS_PROXY": TWO}, TWO),
        # The lower-case name counts, in whatever order they are set, also to say: none.
        ("https://api.example.com/v1", {"HTTPS_PROXY": ONE, "https_proxy": TWO}, TWO),
        ("https://api.example.com/v1", {"https_proxy": TWO, "HTTPS_PROXY": ONE}, TWO),
        ("https://api.example.com/v1", {"https_proxy": "", "HTTPS_PROXY": ONE}, None),
        ("https://api.example.com/v1", {"HTTPS_PROXY": ""}, None),
        # In a CGI script, this one is set by whoever sends the request.
        ("http://api.example.com/v1", {"HTTP_PROXY": ONE, "REQUEST_METHOD": "GET"}, None),
        # This machine is never behind a proxy.
        ("http://localhost:8080/v1", {"HTTP_PROXY": ONE}, None),
        ("http://127.0.0.1:8080/v1", {"ALL_PROXY": ONE}, None),
        ("http://[::1]:8080/v1", {"ALL_PROXY": ONE}, None),
        ("http://192.168.0.7:8080/v1", {"ALL_PROXY": ONE}, ONE),
    ],
)
def test_proxy_for_address(url: str, variables: dict[str, str], proxy: str | None) -> None:
    assert Environment(variables=variables).proxy_for(url) == proxy


@pytest.mark.parametrize(
    ("exceptions", "bypassed"),
    [
        ("", False),
        ("*", True),
        ("api.example.com", True),
        ("API.Example.com", True),
        ("example.com", True),
        (".example.com", True),
        ("ample.com", False),
        ("other.com, example.com", True),
        ("api.example.com:8443", True),
        ("api.example.com:9999", False),
        ("www.example.com", False),
    ],
)
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_no_proxy(exceptions: str, bypassed: bool, name: str) -> None:
    found = Environment(variables={"HTTPS_PROXY": ONE, name: exceptions})
    assert found.proxy_for("https://api.example.com:8443/v1") == (None if bypassed else ONE)


def test_commands_get_no_secrets() -> None:
    mine = {"PATH": "/bin", "HOME": "/home/me", "LANG": "", "TERM": "xterm"}
    passed = Environment(variables=SECRETS | mine | {"EDITOR": "vi"}).for_commands()
    assert passed == {"PATH": "/bin", "HOME": "/home/me", "TERM": "xterm"}
    assert not any(
        word in name for name in COMMAND_VARIABLES for word in ("KEY", "TOKEN", "SOCK", "PROXY")
    )


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("OPENAI_API_KEY", "sk-0123456789", True),
        ("github_token", "0123456789", True),
        ("DB_PASSWORD", "hunter2hunter2", True),
        ("AWS_SECRET_ACCESS_KEY", "0123456789", True),
        ("DB_PASSWORD", "short", False),
        ("KEYBOARD", "0123456789", False),
        ("PATH", "/usr/local/bin:/usr/bin", False),
    ],
)
def test_secret_variables(name: str, value: str, secret: bool) -> None:
    assert secret_variables(Environment(variables={name: value})) == (
        {name: value} if secret else {}
    )


def test_repr_shows_no_values() -> None:
    current = Environment(variables=SECRETS)
    for shown in (repr(current), str(current), f"{[current]}", repr(current.__rich_repr__())):
        assert "secret" not in shown
    assert repr(current) == f"Environment({len(SECRETS)} variables)"


# Nothing else looks


def readings(tree: ast.AST) -> Iterator[str]:
    """The places where code reads the environment of its process."""
    names = {"environ", "environb", "getenv", "getenvb"}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("os" | "posix"), attr=attribute):
                if attribute in names:
                    yield f"{node.lineno}: os.{attribute}"
            case ast.ImportFrom(module="os" | "posix", names=imported):
                yield from (
                    f"{node.lineno}: from os import {alias.name}"
                    for alias in imported
                    if alias.name in names | {"*"}
                )


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("import os\nos.environ['HOME']", 1),
        ("import os\nx = os.getenv('HOME') or os.environb", 2),
        ("from os import environ as e, path", 1),
        ("from os import *", 1),
        ("import os\nos.getcwd()\nfrom os import path\nself.environ", 0),
    ],
)
def test_scan_finds_environment_reads(code: str, count: int) -> None:
    assert len(list(readings(ast.parse(code)))) == count


def test_no_other_module_reads_the_environment() -> None:
    root = Path(retinue.__file__).parent
    # Runs on a node, where nothing of retinue may be installed, and starts a host from there.
    node_actor = root / "ray_cluster" / "node_actor.py"
    found = [
        f"{path.relative_to(root)}:{reading}"
        for path in sorted(root.rglob("*.py"))
        if path.parent != root / "config" and path != node_actor
        for reading in readings(ast.parse(path.read_bytes()))
    ]
    assert found == []
