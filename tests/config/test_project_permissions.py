from __future__ import annotations

import json
import pwd
from pathlib import Path
from typing import Any

import pytest

from retinue.config.environment import Environment
from retinue.config.project_permissions import ProjectPermissions, project_permissions
from retinue.config.settings_file import load_settings
from retinue.config.trust import TrustStore
from retinue.errors import ApprovalNeeded, ConfigError

REMOTE = 'model = "openai:m@https://models.example.com/v1"'
SERVER = {"db": {"command": "db-server", "args": ["--all"], "env": {"KEY": "${TOKEN}"}}}


class Folder:
    """A project, and a user who decides on it."""

    def __init__(self, root: Path) -> None:
        self.path = root / "project"
        self.path.mkdir()
        self.settings = root / ".config/retinue/config.toml"
        self.settings.parent.mkdir(parents=True)
        self.variables = {"HOME": str(root), "TOKEN": "t"}

    def say(self, servers: Any = None, *, ours: str = "", user: str = "") -> None:
        if servers is not None:
            (self.path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        (self.path / "retinue.toml").write_text(ours)
        self.settings.write_text(user)

    def permissions(self, **more: Any) -> ProjectPermissions:
        environment = Environment(variables=self.variables)
        layers = load_settings(environment, self.path)
        return project_permissions(layers, self.path, environment, **more)

    @property
    def trust(self) -> TrustStore:
        return TrustStore(Environment(variables=self.variables).trust_dir)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def names(found: ProjectPermissions) -> list[str]:
    return [server.name for server in found.servers]


def test_project_server_needs_trust(folder: Folder) -> None:
    folder.say(SERVER, user='[mcp.mine]\ncommand = "x"')
    found = folder.permissions()
    assert names(found) == ["mine"]
    assert [str(request) for request in found.pending] == [
        "MCP server db (.mcp.json): it starts db-server --all in the sandbox, without network,"
        " and is given TOKEN"
    ]
    assert found.notes == (
        "without MCP server db: this folder is not trusted; `retinue trust` allows it",
    )
    folder.trust.grant(folder.path, found.pending, now=1.0)
    found = folder.permissions()
    assert names(found) == ["db", "mine"]
    assert (found.pending, found.denied, found.notes) == ((), (), ())


@pytest.mark.parametrize(
    "other",
    [
        {"command": "db-server", "args": ["--none"], "env": {"KEY": "${TOKEN}"}},
        {"command": "evil", "args": ["--all"], "env": {"KEY": "${TOKEN}"}},
        {"command": "db-server", "args": ["--all"], "env": {"KEY": "${OPENAI_API_KEY}"}},
        {"command": "db-server", "args": ["--all"], "env": {"KEY": "${TOKEN}"}, "cwd": "sub"},
        {"url": "https://example.com/mcp"},
    ],
)
def test_changed_server_needs_new_trust(folder: Folder, other: dict[str, Any]) -> None:
    folder.say(SERVER)
    folder.trust.grant(folder.path, folder.permissions().pending, now=1.0)
    folder.say({"db": other})
    found = folder.permissions()
    assert (names(found), len(found.pending)) == ([], 1)
    # Another name is another server.
    folder.say({"other": SERVER["db"]})
    assert names(folder.permissions()) == []
    # Spelled in another way, it is the same.
    (folder.path / ".mcp.json").write_text(json.dumps({"mcpServers": SERVER}, indent=8))
    assert names(folder.permissions()) == ["db"]


def test_new_server_does_not_block_trusted_ones(folder: Folder) -> None:
    folder.say(SERVER)
    folder.trust.grant(folder.path, folder.permissions().pending, now=1.0)
    folder.say({**SERVER, "new": {"url": "https://example.com/${TOKEN}"}})
    found = folder.permissions()
    assert names(found) == ["db"]
    assert [str(request) for request in found.pending] == [
        "MCP server new (.mcp.json): it asks https://example.com/${TOKEN}, and is given TOKEN"
    ]


def test_refusal_is_stored(folder: Folder) -> None:
    folder.say(SERVER)
    folder.trust.refuse(folder.path, folder.permissions().pending, now=1.0)
    found = folder.permissions()
    assert (names(found), found.pending, found.notes) == ([], (), ())
    assert [request.name for request in found.denied] == ["db"]


def test_refusal_keeps_approvals_and_approval_replaces_refusal(folder: Folder) -> None:
    folder.say(SERVER)
    folder.trust.grant(folder.path, folder.permissions().pending, now=1.0)
    folder.say({**SERVER, "new": {"command": "x"}})
    folder.trust.refuse(folder.path, folder.permissions().pending, now=2.0)
    assert names(folder.permissions()) == ["db"]
    folder.trust.grant(folder.path, folder.permissions().requests, now=3.0)
    assert names(folder.permissions()) == ["db", "new"]


def test_trust_argument_overrides_the_decision(folder: Folder) -> None:
    folder.say(SERVER)
    assert names(folder.permissions(trust=True)) == ["db"]
    folder.trust.grant(folder.path, folder.permissions().pending, now=1.0)
    assert names(folder.permissions(trust=False)) == []


# The model


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (REMOTE, "it is sent prompts, and so your files"),
        ('model = "scripted:a.yaml"', "it is a script of the project, which then decides what"),
    ],
)
def test_project_model_needs_trust(folder: Folder, ours: str, words: str) -> None:
    folder.say(ours=ours)
    found = folder.permissions()
    (request,) = found.pending
    assert words in str(request)
    with pytest.raises(ConfigError, match="this folder is not trusted: it is ") as caught:
        found.check()
    assert str(caught.value).endswith("`retinue trust` allows it; or choose a model with -m.")
    folder.trust.grant(folder.path, found.requests, now=1.0)
    folder.permissions().check()


@pytest.mark.parametrize(
    "model",
    [
        "gpt-5-mini",
        "openai:gpt-5-mini",
        "openai:m@http://127.0.0.1:8080/v1",
        "openai:m@http://localhost:8080/v1",
        "openai:m@http://[::1]:8080/v1",
        "openai:m@http://known.example.com/v1",
        "openai:m@http://short.example.com/v1",
    ],
)
def test_model_at_a_known_address_needs_no_trust(folder: Folder, model: str) -> None:
    user = (
        'endpoints = ["http://known.example.com/v1"]\n[models]\nx = "m@http://short.example.com/v1"'
    )
    folder.say(ours=f'model = "{model}"', user=user)
    found = folder.permissions()
    assert found.requests == ()
    found.check()


@pytest.mark.parametrize(
    "model",
    [
        "openai:m@http://127.0.0.1.example.com/v1",
        "openai:m@http://localhost.example.com/v1",
        "openai:m@http://known.example.com:81/v1",
        "openai:m@https://known.example.com/v1",
    ],
)
def test_similar_address_needs_trust(folder: Folder, model: str) -> None:
    folder.say(ours=f'model = "{model}"', user='endpoints = ["http://known.example.com/v1"]')
    with pytest.raises(ConfigError):
        folder.permissions().check()


def test_unused_model_is_not_asked_about(folder: Folder) -> None:
    folder.say(ours=REMOTE)
    assert folder.permissions(model_is_chosen=True).pending == ()
    folder.permissions(model_is_chosen=True).check()
    folder.say(ours=REMOTE, user='model = "mine"')
    assert folder.permissions().pending == ()
    folder.say(ours=REMOTE)
    folder.variables["RETINUE_MODEL"] = "mine"
    assert folder.permissions().pending == ()
    # Who trusts the folder trusts all of it.
    assert [request.kind for request in folder.permissions().requests] == ["model"]


@pytest.mark.parametrize("place", ["home", "above", "/", "owner", ".ssh", ".gnupg", ".aws", "keys"])
def test_private_directory_needs_trust(
    folder: Folder, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "home":
        folder.variables["HOME"] = str(folder.path)
    elif place == "above":
        folder.variables["HOME"] = str(folder.path / "users" / "me")
    elif place == "/":
        folder.path = Path("/")
    elif place == "owner":
        owner = pwd.getpwuid(folder.path.stat().st_uid)
        entry = pwd.struct_passwd((*owner[:5], str(folder.path), owner[6]))
        monkeypatch.setattr(pwd, "getpwuid", lambda _: entry)
    elif place == "keys":
        folder.path = folder.path / ".ssh"
        folder.path.mkdir()
    else:
        (folder.path / place).mkdir()
    with pytest.raises(ApprovalNeeded, match=r"contains private files.* `retinue trust /.*`\."):
        folder.permissions(model_is_chosen=True).check()
    folder.permissions(trust=True).check()
    folder.trust.grant(folder.path, folder.permissions().requests, now=0.0)
    folder.permissions().check()


def test_other_directories_need_no_trust(folder: Folder) -> None:
    (folder.path / ".config").mkdir()
    assert folder.permissions().requests == ()
