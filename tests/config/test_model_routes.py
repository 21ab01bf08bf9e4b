from __future__ import annotations

import pytest

from retinue.config.model_routes import ModelRoute, parse_route
from retinue.domain.thinking import ThinkingOptions
from retinue.errors import ConfigError

LOCAL = "http://127.0.0.1:8080/v1"


@pytest.mark.parametrize(
    ("name", "provider", "model", "endpoint"),
    [
        ("openai:gpt-5", "openai", "gpt-5", ""),
        (f"openai:qwen3@{LOCAL}", "openai", "qwen3", LOCAL),
        (f"qwen3@{LOCAL}", "openai", "qwen3", LOCAL),
        ("qwen3", "openai", "qwen3", ""),
        # Ollama's names have a colon of their own, and Hugging Face's have slashes.
        ("qwen3:8b", "openai", "qwen3:8b", ""),
        (f"qwen3:8b@{LOCAL}", "openai", "qwen3:8b", LOCAL),
        (f"openai:qwen3:8b-q4_K_M@{LOCAL}", "openai", "qwen3:8b-q4_K_M", LOCAL),
        (f"hf.co/bartowski/Llama:Q4@{LOCAL}", "openai", "hf.co/bartowski/Llama:Q4", LOCAL),
        (f"  openai:qwen3@{LOCAL}/  ", "openai", "qwen3", LOCAL),
        ("openai:m@https://[::1]:8080/v1", "openai", "m", "https://[::1]:8080/v1"),
        ("openai:m@http://localhost", "openai", "m", "http://localhost"),
        ("anthropic:claude-opus-5", "anthropic", "claude-opus-5", ""),
        (f"anthropic:qwen3:8b@{LOCAL}", "anthropic", "qwen3:8b", LOCAL),
        ("deepseek:deepseek-v4-flash", "deepseek", "deepseek-v4-flash", ""),
        ("groq:openai/gpt-oss-120b", "groq", "openai/gpt-oss-120b", ""),
        ("bedrock:openai.gpt-oss-120b-1:0", "bedrock", "openai.gpt-oss-120b-1:0", ""),
        ("ollama:qwen3:8b", "ollama", "qwen3:8b", ""),
        ("mistral:mistral-large-latest", "mistral", "mistral-large-latest", ""),
        # These are names of Ollama, and no typing errors either.
        ("mistral:7b", "openai", "mistral:7b", ""),
        (f"mixtral:8x7b@{LOCAL}", "openai", "mixtral:8x7b", LOCAL),
        (f"deepseek-r1:8b@{LOCAL}", "openai", "deepseek-r1:8b", LOCAL),
        (f"llama3:latest@{LOCAL}", "openai", "llama3:latest", LOCAL),
        ("openai:command-r+", "openai", "command-r+", ""),
        ("scripted:demo.yaml", "scripted", "demo.yaml", ""),
        # A script is a file, whatever it is called.
        ("scripted:a@b:c.yaml", "scripted", "a@b:c.yaml", ""),
        ("replay:run.jsonl", "replay", "run.jsonl", ""),
        ("replay:run.jsonl@recorded", "replay", "run.jsonl@recorded", ""),
    ],
)
def test_parse_name(name: str, provider: str, model: str, endpoint: str) -> None:
    assert parse_route(name) == ModelRoute(provider=provider, model=model, endpoint=endpoint)


def test_parse_options() -> None:
    route = parse_route(f"anthropic:claude+thinking=8000+effort=low@{LOCAL}")
    assert route == ModelRoute(
        provider="anthropic",
        model="claude",
        endpoint=LOCAL,
        thinking=ThinkingOptions(on=True, budget_tokens=8000, effort="low"),
    )
    with pytest.raises(ConfigError, match="Unknown option 'thinkin'; write thinking, "):
        parse_route("anthropic:claude+thinkin")
    route = parse_route(f"openai:command-r++effort=high@{LOCAL}")
    assert (route.model, route.thinking) == ("command-r+", ThinkingOptions(effort="high"))
    with pytest.raises(ConfigError, match=r"Only Anthropic's API has the option thinking"):
        parse_route("gemini:gemini-3.6-flash+thinking=8000")


def test_bare_name_has_the_default_provider() -> None:
    assert parse_route("haiku+thinking", default_provider="anthropic").provider == "anthropic"
    assert parse_route("openai:haiku", default_provider="anthropic").provider == "openai"


@pytest.mark.parametrize(
    "name",
    [
        "openai:gpt-5",
        f"openai:qwen3:8b@{LOCAL}",
        "scripted:a.yaml",
        f"anthropic:claude+thinking=off@{LOCAL}",
        "anthropic:claude+thinking=2000+effort=max",
        "openai:gpt-5+effort=minimal",
        f"responses:gpt-5+effort=none@{LOCAL}",
    ],
)
def test_route_round_trip(name: str) -> None:
    assert str(parse_route(name)) == name


@pytest.mark.parametrize(
    "name",
    ["", "  ", "openai:", f"openai:@{LOCAL}", f"@{LOCAL}", "anthropic:", "anthropic:+thinking"],
)
def test_name_without_a_model(name: str) -> None:
    provider = "anthropic" if name.startswith("anthropic") else "openai"
    with pytest.raises(ConfigError) as caught:
        parse_route(name)
    written = f"{provider}:MODEL@http://HOST:PORT/v1"
    assert str(caught.value) == f"No model in {name!r}. Write {written}."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scripted:", "Name the script: scripted:FILE.yaml."),
        ("replay:", "Name the recording: replay:FILE.jsonl."),
    ],
)
def test_file_provider_without_a_file(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_route(name)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "provider", "meant"),
    [
        ("opnai:gpt-5", "opnai", "openai"),
        (f"openia:qwen3@{LOCAL}", "openia", "openai"),
        ("script:a.yaml", "script", "scripted"),
        ("antropic:claude", "antropic", "anthropic"),
    ],
)
def test_misspelled_provider(name: str, provider: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_route(name)
    assert str(caught.value) == f"Unknown provider {provider!r} in model {name!r}; write {meant}:…"


@pytest.mark.parametrize(
    "endpoint",
    [
        "localhost:8080",
        "127.0.0.1",
        "ftp://host/v1",
        "http://",
        "http:///v1",
        "//host/v1",
        # These are none to Python's parser either.
        "http://[::1/v1",
        "http://host:port/v1",
        "http://host:99999/v1",
        "http://host:0/v1",
    ],
)
def test_invalid_endpoint(endpoint: str) -> None:
    name = f"openai:qwen3@{endpoint}"
    with pytest.raises(ConfigError) as caught:
        parse_route(name)
    assert str(caught.value) == (
        f"{endpoint!r} in model {name!r} is not a web address;"
        " write openai:MODEL@http://HOST:PORT/v1."
    )


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://sk-secret@host/v1",
        "http://me:sk-secret@host/v1",
        "https://:sk-secret@host/v1",
        "ftp://sk-secret@host",
        "sk-secret@host",
        "http://sk-secret@[host/v1",
    ],
)
def test_key_in_an_address_is_refused_and_not_shown(endpoint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_route(f"openai:qwen3@{endpoint}")
    assert str(caught.value) == "Put the key into OPENAI_API_KEY, not into the model's address."
    with pytest.raises(ConfigError) as caught:
        parse_route(f"anthropic:claude@{endpoint}")
    assert str(caught.value) == "Put the key into ANTHROPIC_API_KEY, not into the model's address."


@pytest.mark.parametrize(
    ("name", "model", "endpoint"),
    [
        ("openai:gemma-3@q8_0@http://box/v1", "gemma-3@q8_0", "http://box/v1"),
        ("gemma-3@q8_0@https://box/v1", "gemma-3@q8_0", "https://box/v1"),
    ],
)
def test_model_name_with_at_sign(name: str, model: str, endpoint: str) -> None:
    route = parse_route(name)
    assert (route.model, route.endpoint) == (model, endpoint)
    assert parse_route(str(route)) == route
