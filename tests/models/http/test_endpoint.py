from __future__ import annotations

from retinue.models.http.endpoint import Endpoint

SECRET = Endpoint(
    base_url="https://ann:letmein@example.org/v1",
    model="m",
    api_key="sk-top-secret",
    proxy="http://bob:hunter22@proxy:3128",
)


def test_no_representation_shows_a_secret() -> None:
    for text in (repr(SECRET), str(SECRET), f"{SECRET}", repr(SECRET.__rich_repr__())):
        for secret in ("sk-top-secret", "letmein", "hunter22", "ann", "bob"):
            assert secret not in text
        assert "***" in text
        assert "example.org" in text


def test_missing_key_is_shown_as_none() -> None:
    assert "api_key=None" in repr(Endpoint(base_url="http://h/v1", model="m"))


def test_address_has_no_user_and_password() -> None:
    assert SECRET.address == "https://example.org/v1"
    assert Endpoint(base_url="http://h:1/v1", model="m").address == "http://h:1/v1"
    assert "letmein" not in Endpoint(base_url="http://a:letmein@[bad", model="m").address
