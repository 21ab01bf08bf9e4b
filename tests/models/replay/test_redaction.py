from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.models.replay.redaction import Redaction


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("key sk-proj-abcdefghijklmnop0123 here", "key ⟨hidden⟩ here"),
        ("GH_TOKEN=ghp_0123456789abcdefghijABCDEFGHIJ012345", "GH_TOKEN=⟨hidden⟩"),
        ("AKIAIOSFODNN7EXAMPLE", "⟨hidden⟩"),
        ("gsk_0123456789abcdefghijABCDEFGHIJ0123456789", "⟨hidden⟩"),
        ("xai-0123456789abcdefghijABCDEFGHIJ0123456789", "⟨hidden⟩"),
        ("sk_live_0123456789abcdefghijABCD", "⟨hidden⟩"),
        ("authorization: bearer abcdef0123456789abcdef", "authorization: bearer ⟨hidden⟩"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ⟨hidden⟩"),
        ("X-Api-Key: 0123456789abcdef", "X-Api-Key: ⟨hidden⟩"),
        ("x-api-key: 0123456789abcdef", "x-api-key: ⟨hidden⟩"),
        ("https://h/v1?a=1&api_key=0123456789ab&b=2", "https://h/v1?a=1&api_key=⟨hidden⟩&b=2"),
        ("authorization: Bearer abcdef0123456789abcdef", "authorization: Bearer ⟨hidden⟩"),
        ("git clone https://me:pa55@host/x.git", "git clone https://⟨hidden⟩@host/x.git"),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2QT4", "⟨hidden⟩"),
        (
            "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb",
            "a\n⟨hidden⟩\nb",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE that was cut off", "⟨hidden⟩"),
    ],
)
def test_keys_are_hidden(text: str, hidden: str) -> None:
    assert Redaction().redact(text) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "src/sk-estimator-html-documentation-link.css",
        "hf_internal and npm_config_registry and ghp_short",
        "mail me@example.org, see https://example.org/@me",
        "the Bearer of good news",
        "Basic authentication, and a page with ?key=value&token=$TOKEN",
        "eyJust a word.with.dots",
    ],
)
def test_similar_texts_are_not_hidden(text: str) -> None:
    assert Redaction().redact(text) == text


def test_the_values_of_secret_variables_are_hidden_by_name() -> None:
    redaction = Redaction(secrets={"DB_PASSWORD": "hunter2hunter2", "MORE": "hunter2hunter2-more"})
    assert redaction.redact({"role": "tool", "content": ["x hunter2hunter2-more", 3, None]}) == {
        "role": "tool",
        "content": ["x ⟨hidden MORE⟩", 3, None],
    }
    assert redaction.redact("(hunter2hunter2)") == "(⟨hidden DB_PASSWORD⟩)"


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("Directory: /home/me/app", "Directory: ⟨project⟩"),
        ("/home/me/app/a.txt", "⟨project⟩/a.txt"),
        ("It is in /home/me/app.", "It is in ⟨project⟩."),
        ("/home/me/app2 /home/me/app-old /home/me/app.bak", None),
    ],
)
def test_the_project_can_be_moved(text: str, marked: str | None) -> None:
    there = Redaction(directory="/home/me/app")
    assert there.redact(text) == (marked or text)
    here = Redaction(directory="/srv/x")
    assert here.restore(there.redact(text)) == (marked or text).replace("⟨project⟩", "/srv/x")


def test_a_project_at_the_root_of_the_file_system_has_no_mark() -> None:
    assert Redaction(directory="/").redact("a/b") == "a/b"


@given(st.text())
def test_redaction_is_idempotent(text: str) -> None:
    redaction = Redaction(directory="/p", secrets={"TOKEN": "0123456789"})
    once = redaction.redact(text)
    assert redaction.redact(once) == once


def test_lone_surrogate_is_replaced() -> None:
    assert Redaction().redact("caf\udce9") == "caf?"
