"""The user's search provider: from the setting `web_search`, or from the variable with a key."""

from __future__ import annotations

from retinue.config.environment import Environment
from retinue.domain.web_search import SearchSettings
from retinue.errors import ConfigError

KEY_VARIABLES = {"brave": "BRAVE_API_KEY", "tavily": "TAVILY_API_KEY"}
SEARXNG = "searxng"
HOW_TO_SEARCH = (
    'set web_search = "searxng:http://HOST:PORT" in your settings, or BRAVE_API_KEY or'
    " TAVILY_API_KEY"
)


def search_settings(setting: str | None, environment: Environment) -> SearchSettings | None:
    """The provider; None if there is none. Raises ConfigError."""
    if setting is None:
        for provider, variable in KEY_VARIABLES.items():
            if key := environment.get(variable):
                return SearchSettings(provider, key=key)
        return None
    provider, _, url = setting.partition(":")
    if provider == SEARXNG and url.startswith(("http://", "https://")):
        return SearchSettings(SEARXNG, url)
    if provider in KEY_VARIABLES and (not url or url.startswith(("http://", "https://"))):
        key = environment.get(KEY_VARIABLES[provider])
        if not key:
            raise ConfigError(f"web_search is {setting!r}, which needs {KEY_VARIABLES[provider]}.")
        return SearchSettings(provider, url, key)
    raise ConfigError(
        f"web_search cannot be {setting!r}; write searxng:http://HOST:PORT, brave or tavily."
    )
