"""Presets of model providers: their addresses, APIs, key variables and peculiarities, as data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class ProviderApi(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a provider. `{NAME}` in `url` stands for a variable of the environment."""

    title: str
    url: str = ""
    """Empty: the variable `url_variable` must have the address."""
    dialect: str = "openai"
    """`openai` for chat completions or the Responses API, `anthropic` for Messages."""
    url_variable: str = ""
    url_suffix: str = ""
    """Path to add to the address in `url_variable`: users copy the address without it."""
    key_variable: str = ""
    """Empty: the key comes from `key_command`, or the servers need none."""
    other_key_variables: tuple[str, ...] = ()
    """Variables that the provider's own tools read too, if the first one is not set."""
    key_command: str = ""
    """Command that prints the key, for providers whose keys expire."""
    key_header: str = ""
    """Header that carries the key, in addition to the dialect's own."""
    defaults: Mapping[str, str] = {}
    """Values of variables in `url` that are not set."""
    example: str = ""
    """Full name of one of its models."""
    table: tuple[str, ...] = ()
    """Names of providers in the table of models, whose rows apply to this provider's models."""
    lists_windows: bool = False
    """Whether the provider's list of models has context windows, so that the list is read."""

    @property
    def in_cloud(self) -> bool:
        return bool(self.key_variable or self.key_command)


PROVIDER_APIS = {
    "openai": ProviderApi(
        title="OpenAI",
        url="https://api.openai.com/v1",
        url_variable="OPENAI_BASE_URL",
        key_variable="OPENAI_API_KEY",
        example="openai:gpt-5-mini",
        table=("openai",),
    ),
    "anthropic": ProviderApi(
        title="Anthropic",
        url="https://api.anthropic.com",
        dialect="anthropic",
        url_variable="ANTHROPIC_BASE_URL",
        key_variable="ANTHROPIC_API_KEY",
        example="anthropic:claude-sonnet-4-5",
        table=("anthropic",),
        lists_windows=True,
    ),
    "gemini": ProviderApi(
        title="Gemini",
        url="https://generativelanguage.googleapis.com/v1beta/openai",
        key_variable="GEMINI_API_KEY",
        other_key_variables=("GOOGLE_API_KEY",),
        example="gemini:gemini-3.6-flash",
        table=("gemini",),
    ),
    "xai": ProviderApi(
        title="xAI",
        url="https://api.x.ai/v1",
        key_variable="XAI_API_KEY",
        example="xai:grok-4.7",
        table=("xai",),
    ),
    "deepseek": ProviderApi(
        title="DeepSeek",
        url="https://api.deepseek.com/v1",
        key_variable="DEEPSEEK_API_KEY",
        example="deepseek:deepseek-v4-flash",
        table=("deepseek",),
    ),
    "mistral": ProviderApi(
        title="Mistral",
        url="https://api.mistral.ai/v1",
        key_variable="MISTRAL_API_KEY",
        example="mistral:mistral-medium-latest",
        table=("mistral",),
        lists_windows=True,
    ),
    "groq": ProviderApi(
        title="Groq",
        url="https://api.groq.com/openai/v1",
        key_variable="GROQ_API_KEY",
        example="groq:openai/gpt-oss-120b",
        table=("groq",),
        lists_windows=True,
    ),
    "openrouter": ProviderApi(
        title="OpenRouter",
        url="https://openrouter.ai/api/v1",
        key_variable="OPENROUTER_API_KEY",
        example="openrouter:openai/gpt-oss-120b",
        lists_windows=True,
    ),
    "moonshot": ProviderApi(
        title="Moonshot",
        url="https://api.moonshot.ai/v1",
        key_variable="MOONSHOT_API_KEY",
        example="moonshot:kimi-k3",
        table=("moonshot",),
        lists_windows=True,
    ),
    "zai": ProviderApi(
        title="Z.ai",
        url="https://api.z.ai/api/paas/v4",
        key_variable="ZAI_API_KEY",
        example="zai:glm-5.3",
        table=("zai",),
    ),
    "azure": ProviderApi(
        title="Azure OpenAI",
        url_variable="AZURE_OPENAI_ENDPOINT",
        url_suffix="/openai/v1",
        key_variable="AZURE_OPENAI_API_KEY",
        key_header="api-key",
        example="azure:DEPLOYMENT",
        table=("azure", "openai", "anthropic", "deepseek", "xai", "moonshot"),
    ),
    "bedrock": ProviderApi(
        title="Amazon Bedrock",
        url="https://bedrock-runtime.{AWS_REGION}.amazonaws.com/openai/v1",
        defaults={"AWS_REGION": "us-east-1"},
        key_variable="AWS_BEARER_TOKEN_BEDROCK",
        example="bedrock:openai.gpt-oss-120b-1:0",
        table=("bedrock",),
    ),
    "vertex": ProviderApi(
        title="Vertex AI",
        url="https://{GOOGLE_CLOUD_LOCATION}-aiplatform.googleapis.com/v1/projects"
        "/{GOOGLE_CLOUD_PROJECT}/locations/{GOOGLE_CLOUD_LOCATION}/endpoints/openapi",
        defaults={"GOOGLE_CLOUD_LOCATION": "global"},
        key_command="gcloud auth print-access-token",
        example="vertex:google/gemini-3.6-flash",
        table=("gemini", "anthropic"),
    ),
    "ollama": ProviderApi(
        title="Ollama", url="http://127.0.0.1:11434/v1", url_variable="OLLAMA_HOST"
    ),
    "lmstudio": ProviderApi(title="LM Studio", url="http://127.0.0.1:1234/v1"),
}
# `responses:` always uses the Responses API; `openai:` uses it at some addresses only.
RESPONSES = "responses"
PROVIDER_APIS[RESPONSES] = PROVIDER_APIS["openai"]
