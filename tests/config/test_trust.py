from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.trust import TrustDecision, TrustRequest, TrustStore
from retinue.errors import ConfigError

REQUEST = TrustRequest("MCP server", "db", ".mcp.json", "starts db-server", b"db-server")


@pytest.fixture
def trust(tmp_path: Path) -> TrustStore:
    return TrustStore(tmp_path / "trust")


def test_decision_is_for_one_folder_by_its_real_path(
    trust: TrustStore, project: Path, tmp_path: Path
) -> None:
    trust.grant(project, [REQUEST], now=1.0)
    link = tmp_path / "link"
    link.symlink_to(project)
    assert trust.decision(link) == trust.decision(project)
    assert trust.decision(tmp_path).trusted == ()
    (decision,) = trust.all()
    assert (decision.path, decision.time) == (str(project.resolve()), 1.0)
    assert decision.trusted == (REQUEST.digest,)


def test_trust_can_be_revoked(trust: TrustStore, project: Path) -> None:
    assert not trust.revoke(project)
    trust.grant(project, [REQUEST], now=1.0)
    assert trust.revoke(project)
    assert trust.decision(project).trusted == ()
    assert trust.all() == []


def test_invalid_file_is_no_decision(trust: TrustStore, project: Path, tmp_path: Path) -> None:
    trust.grant(project, [REQUEST], now=1.0)
    folder = tmp_path / "trust"
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    whole = file.read_bytes()
    for broken in (b"", whole[:-5], b"{}", whole.replace(b"project", b"another")):
        file.write_bytes(broken)
        assert trust.decision(project) == TrustDecision(path=str(project.resolve()))
    file.write_bytes(whole)
    assert trust.decision(project).trusted == (REQUEST.digest,)


def test_folder_that_cannot_be_written(project: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    trust = TrustStore(tmp_path / "file" / "trust")
    with pytest.raises(ConfigError) as caught:
        trust.grant(project, (), now=1.0)
    assert str(caught.value) == (
        f"{tmp_path}/file/trust cannot be written (Not a directory);"
        " your decision cannot be stored."
    )
