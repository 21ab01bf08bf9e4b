from __future__ import annotations

import pytest

from retinue.config.environment import Environment
from retinue.config.model_providers import PROVIDER_APIS
from retinue.config.server_addresses import (
    KeySource,
    address_of,
    cloud_providers,
    deduplicate,
    default_addresses,
    key_source,
    key_variable,
    named_addresses,
    ollama_address,
    provider_url,
)
from retinue.config.settings import EndpointSettings, Settings
from retinue.errors import ConfigError


def environment(**variables: str) -> Environment:
    return Environment(variables=variables)


def test_default_ports_get_no_key() -> None:
    assert [(place.title, place.address) for place in default_addresses()] == [
        ("llama.cpp", "http://127.0.0.1:8080/v1"),
        ("Ollama", "http://127.0.0.1:11434/v1"),
        ("LM Studio", "http://127.0.0.1:1234/v1"),
        ("vLLM", "http://127.0.0.1:8000/v1"),
    ]
    assert not any(place.key_variable or place.named_by for place in default_addresses())


def test_named_addresses() -> None:
    named = named_addresses(
        environment(
            OPENAI_BASE_URL="https://llm.example.com/v1/",
            ANTHROPIC_BASE_URL="https://claude.example.com",
            OLLAMA_HOST="192.168.0.7",
        ),
        Settings(
            endpoints=("http://10.0.0.1:8080/v1",),
            models={"fast": "openai:q@http://10.0.0.2:8080/v1", "big": "openai:gpt-5"},
        ),
    )
    assert [(p.named_by, p.address, p.provider, p.key_variable, p.is_default) for p in named] == [
        ("OPENAI_BASE_URL", "https://llm.example.com/v1", "openai", "OPENAI_API_KEY", True),
        (
            "ANTHROPIC_BASE_URL",
            "https://claude.example.com/v1",
            "anthropic",
            "ANTHROPIC_API_KEY",
            True,
        ),
        # The key that there is belongs to somebody else.
        ("OLLAMA_HOST", "http://192.168.0.7:11434/v1", "openai", "", False),
        ("endpoints", "http://10.0.0.1:8080/v1", "openai", "OPENAI_API_KEY", False),
        ("models.fast", "http://10.0.0.2:8080/v1", "openai", "OPENAI_API_KEY", False),
    ]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:11434/v1"),
        ("127.0.0.1:4000", "http://127.0.0.1:4000/v1"),
        (":4000", "http://127.0.0.1:4000/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:4000", "http://127.0.0.1:4000/v1"),
        ("[::]:4000", "http://127.0.0.1:4000/v1"),
        ("[::1]:4000", "http://[::1]:4000/v1"),
        ("box", "http://box:11434/v1"),
        (" box:4000/ ", "http://box:4000/v1"),
        ("http://box:4000", "http://box:4000/v1"),
        ("http://box", "http://box:80/v1"),
        ("https://box/", "https://box:443/v1"),
    ],
)
def test_ollama_address(host: str, address: str) -> None:
    assert ollama_address(host) == address


@pytest.mark.parametrize("host", ["box:many", "ftp://box", "[::1"])
def test_invalid_ollama_host(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ollama_address(host)
    assert str(caught.value) == (
        f"OLLAMA_HOST is {host!r}, which is not an address; write it like 127.0.0.1:11434."
    )


def test_invalid_address_is_reported_without_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        named_addresses(environment(OPENAI_BASE_URL="me:secret@box"), Settings())
    assert str(caught.value) == (
        "OPENAI_BASE_URL has 'box', which is not a web address; write it like"
        " http://127.0.0.1:8080/v1."
    )


def test_duplicate_addresses_are_removed() -> None:
    named = named_addresses(environment(OLLAMA_HOST="localhost"), Settings())
    places = deduplicate([*named, *default_addresses()])
    assert [place.named_by for place in places] == ["OLLAMA_HOST", "", "", ""]


@pytest.mark.parametrize(
    ("variables", "providers"),
    [
        ({}, []),
        ({"OPENAI_API_KEY": "k"}, ["openai"]),
        ({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, ["openai", "anthropic"]),
        # The key is for what is at that address.
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://box/v1"}, []),
    ],
)
def test_key_with_an_address_is_no_cloud_provider(
    variables: dict[str, str], providers: list[str]
) -> None:
    assert [cloud.provider for cloud in cloud_providers(environment(**variables))] == providers


def test_only_trusted_addresses_get_a_key() -> None:
    name = "openai:m@http://box/v1"
    trusted = address_of(name, "RETINUE_MODEL", environment(), Settings())
    assert trusted is not None
    assert trusted.key_variable == "OPENAI_API_KEY"
    theirs = address_of(name, "retinue.toml", environment(), None)
    assert theirs is not None
    assert theirs.key_variable == ""
    assert address_of("scripted:a.yaml", "RETINUE_MODEL", environment(), Settings()) is None


@pytest.mark.parametrize(
    ("provider", "variables", "url"),
    [
        ("azure", {}, None),
        (
            "azure",
            {"AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com/"},
            "https://mine.openai.azure.com/openai/v1",
        ),
        (
            "azure",
            {"AZURE_OPENAI_ENDPOINT": "https://mine.openai.azure.com/openai/v1"},
            "https://mine.openai.azure.com/openai/v1",
        ),
        ("bedrock", {}, "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1"),
        (
            "bedrock",
            {"AWS_REGION": "eu-west-1"},
            "https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1",
        ),
        ("vertex", {"GOOGLE_CLOUD_LOCATION": "us-east1"}, None),
        (
            "vertex",
            {"GOOGLE_CLOUD_PROJECT": "p"},
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/endpoints/openapi",
        ),
        (
            "vertex",
            {"GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": "us-east1"},
            "https://us-east1-aiplatform.googleapis.com/v1/projects/p/locations/us-east1"
            "/endpoints/openapi",
        ),
        ("ollama", {"OLLAMA_HOST": ":4000"}, "http://127.0.0.1:4000/v1"),
        ("deepseek", {}, "https://api.deepseek.com/v1"),
    ],
)
def test_provider_address(provider: str, variables: dict[str, str], url: str | None) -> None:
    assert provider_url(PROVIDER_APIS[provider], environment(**variables)) == url


SERVERS = {
    "https://llm.example.com": EndpointSettings(key_variable="TEAM_KEY"),
    "https://hour.example.com": EndpointSettings(key_command="print-token"),
}


@pytest.mark.parametrize(
    ("provider", "url", "source"),
    [
        ("openai", "http://10.0.0.1/v1", KeySource(variable="OPENAI_API_KEY")),
        # The address of a provider is sent the key of that provider, for any API.
        ("openai", "https://api.deepseek.com/v1", KeySource(variable="DEEPSEEK_API_KEY")),
        ("anthropic", "https://api.deepseek.com/anthropic", KeySource(variable="DEEPSEEK_API_KEY")),
        ("deepseek", "https://proxy.example.com/v1", KeySource(variable="DEEPSEEK_API_KEY")),
        ("openai", "https://LLM.example.com:443/v1", KeySource(variable="TEAM_KEY")),
        ("anthropic", "https://hour.example.com", KeySource(command="print-token")),
        (
            "azure",
            "https://mine.openai.azure.com/openai/v1",
            KeySource(variable="AZURE_OPENAI_API_KEY", header="api-key"),
        ),
        ("vertex", "https://x/v1", KeySource(command="gcloud auth print-access-token")),
        ("ollama", "http://127.0.0.1:11434/v1", KeySource()),
    ],
)
def test_key_of_an_address(provider: str, url: str, source: KeySource) -> None:
    assert key_source(provider, url, environment(), SERVERS) == source


def test_a_preset_accepts_the_other_variable_of_its_provider() -> None:
    gemini = PROVIDER_APIS["gemini"]
    both = {"GEMINI_API_KEY": "a", "GOOGLE_API_KEY": "b"}
    assert key_variable(gemini, Environment(variables=both)) == "GEMINI_API_KEY"
    only = Environment(variables={"GOOGLE_API_KEY": "b"})
    assert key_variable(gemini, only) == "GOOGLE_API_KEY"
    assert key_variable(gemini, Environment(variables={})) == "GEMINI_API_KEY"
    assert [one.key_variable for one in cloud_providers(only)] == ["GOOGLE_API_KEY"]
