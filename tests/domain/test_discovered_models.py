"""What a newcomer reads who named no model."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.domain.discovered_models import (
    SHOWN,
    DiscoveredModels,
    InspectedServer,
    ServerAddress,
)
from retinue.domain.server_info import ServedModel, ServerInventory

OPENAI = ServerAddress(
    provider="openai",
    title="OpenAI",
    key_variable="OPENAI_API_KEY",
    address="https://api.openai.com/v1",
    example="openai:gpt-5-mini",
)
HERE = "http://127.0.0.1:8080/v1"
CHOOSE = '-m NAME, or RETINUE_MODEL=NAME, or model = "NAME" in ~/.config/retinue/config.toml'


def inspected(
    *names: str, address: str = HERE, server: str = "llama.cpp", **place: Any
) -> InspectedServer:
    models = tuple(ServedModel(model=name, server=server) for name in names)
    return at(ServerInventory(address=address, server=server, models=models), **place)


def at(inventory: ServerInventory, **place: Any) -> InspectedServer:
    return InspectedServer(
        ServerAddress(address=inventory.address, title="a server", **place), inventory
    )


def nobody(**place: Any) -> InspectedServer:
    problem = "nothing listens there"
    return at(ServerInventory(address=HERE, problem=problem, no_server=True), **place)


def found(*looks: InspectedServer, clouds: tuple[ServerAddress, ...] = ()) -> DiscoveredModels:
    return DiscoveredModels(servers=looks, clouds=clouds)


# One


def test_the_only_model_is_used() -> None:
    option = found(nobody(), inspected("qwen3")).only_option
    assert option is not None
    assert option.name == f"openai:qwen3@{HERE}"


def test_named_servers_come_before_found_ones() -> None:
    there = "http://192.168.0.7:11434/v1"
    discovery = found(inspected("a"), inspected("b", address=there, named_by="OLLAMA_HOST"))
    assert discovery.only_option is not None
    assert discovery.only_option.name == f"openai:b@{there}"


def test_named_server_without_models_leaves_found_ones() -> None:
    discovery = found(nobody(named_by="OLLAMA_HOST"), inspected("a"))
    assert discovery.only_option is not None


def test_default_address_of_a_provider_is_left_out_of_the_name() -> None:
    discovery = found(
        inspected("a", provider="anthropic", is_default=True, named_by="ANTHROPIC_BASE_URL")
    )
    assert discovery.only_option is not None
    assert discovery.only_option.name == "anthropic:a"


def test_option_description() -> None:
    model = ServedModel(model="q", server="Ollama", window=4096, slots=2, loaded=False)
    (option,) = at(ServerInventory(address=HERE, models=(model,))).options
    assert str(option) == f"openai:q@{HERE}  (Ollama, 4,096 tokens, 2 at a time, not loaded)"
    (bare,) = at(ServerInventory(address=HERE, models=(ServedModel(model="q"),))).options
    assert str(bare) == f"openai:q@{HERE}"


# Several


def test_explanation_for_several_models() -> None:
    discovery = found(inspected("a", "b"))
    assert discovery.only_option is None
    assert discovery.explanation == (
        f"No model was named, and there are several. Choose one: {CHOOSE}.\n"
        f"  openai:a@{HERE}  (llama.cpp)\n"
        f"  openai:b@{HERE}  (llama.cpp)"
    )
    assert discovery.question == (
        "No model was named. There are:\n"
        f"  1  openai:a@{HERE}  (llama.cpp)\n"
        f"  2  openai:b@{HERE}  (llama.cpp)\n"
        f"To set a default: {CHOOSE}."
    )


def test_explanation_for_many_models() -> None:
    lines = found(inspected(*(f"m{n}" for n in range(SHOWN + 5)))).explanation.splitlines()
    assert len(lines) == 1 + SHOWN + 1
    assert lines[-1] == "  and 5 more; `retinue models` lists them"


def test_cloud_key_makes_the_choice_ambiguous() -> None:
    discovery = found(inspected("a"), clouds=(OPENAI,))
    assert discovery.only_option is None
    assert discovery.explanation == (
        f"No model was named, and there are several. Choose one: {CHOOSE}.\n"
        f"  openai:a@{HERE}  (llama.cpp)\n"
        "  openai:gpt-5-mini, or another of OpenAI's; `retinue models` lists them"
    )
    assert "\n  openai:gpt-5-mini, or" in discovery.question


def test_cloud_model_is_not_used_by_default() -> None:
    model = ServedModel(model="big-cloud", server="Ollama", remote=True, window=163_840)
    discovery = found(at(ServerInventory(address=HERE, server="Ollama", models=(model,))))
    assert discovery.only_option is None
    assert discovery.explanation == (
        f"No model was named, and this is in a cloud. Choose one: {CHOOSE}.\n"
        f"  openai:big-cloud@{HERE}  (Ollama's cloud, 163,840 tokens)"
    )


def test_local_and_loaded_models_come_first() -> None:
    models = (
        ServedModel(model="cloud", remote=True),
        ServedModel(model="unloaded", loaded=False),
        ServedModel(model="loaded", loaded=True),
    )
    options = found(at(ServerInventory(address=HERE, models=models))).options
    assert [option.served.model for option in options] == ["loaded", "unloaded", "cloud"]


# None


def test_explanation_for_a_key_alone() -> None:
    assert found(nobody(), clouds=(OPENAI,)).explanation == (
        f"OPENAI_API_KEY is set, but no model was named. Choose one: {CHOOSE}.\n"
        "  openai:gpt-5-mini, or another of OpenAI's; `retinue models` lists them"
    )


LAST = (
    "Or set the key of a provider, such as OPENAI_API_KEY, and name a model with -m."
    " `retinue doctor` shows what was tried."
)


def test_explanation_for_nothing_found() -> None:
    assert found(nobody(), nobody()).explanation.splitlines() == [
        "No model was named, and no model server was found on this machine.",
        "Start one: llama-server -m MODEL.gguf, or ollama serve, or LM Studio's server, or vllm"
        " serve MODEL.",
        LAST,
    ]


@pytest.mark.parametrize(
    ("look", "problem"),
    [
        (
            nobody(named_by="OLLAMA_HOST"),
            f"{HERE} (OLLAMA_HOST): nothing listens there.",
        ),
        (
            at(ServerInventory(address=HERE, problem="it answers 503 (Loading model)")),
            f"{HERE}: it answers 503 (Loading model).",
        ),
        (
            at(ServerInventory(address=HERE, server="Ollama")),
            f"Ollama at {HERE} has no model to talk to: ollama pull qwen3:8b.",
        ),
        (
            at(ServerInventory(address=HERE, server="LM Studio")),
            f"LM Studio at {HERE} serves no model.",
        ),
        (at(ServerInventory(address=HERE)), f"The server at {HERE} serves no model."),
    ],
)
def test_explanation_for_a_server_with_a_problem(look: InspectedServer, problem: str) -> None:
    assert look.problem == problem
    assert found(nobody(), look).explanation.splitlines() == [
        "No model was named, and none was found.",
        problem,
        LAST,
    ]


def test_other_program_on_a_default_port_is_ignored() -> None:
    web = at(
        ServerInventory(
            address=HERE, problem="it answers 404; is that a model server?", no_server=True
        )
    )
    assert web.problem is None
    assert "404" not in found(web).explanation


def test_explanation_when_discovery_is_off() -> None:
    assert found().explanation.splitlines() == [
        "No model was named, and discovery is off in the settings.",
        f"Name one: {CHOOSE}, such as openai:MODEL@http://127.0.0.1:8080/v1.",
        LAST,
    ]
