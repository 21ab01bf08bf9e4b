from __future__ import annotations

import pytest

from retinue.config.environment import Environment
from retinue.config.web_search import search_settings
from retinue.domain.web_search import SearchSettings
from retinue.errors import ConfigError


@pytest.mark.parametrize(
    ("setting", "variables", "found"),
    [
        (None, {}, None),
        (None, {"BRAVE_API_KEY": "k"}, SearchSettings("brave", "", "k")),
        (None, {"TAVILY_API_KEY": "k"}, SearchSettings("tavily", "", "k")),
        (
            "tavily",
            {"TAVILY_API_KEY": "k", "BRAVE_API_KEY": "b"},
            SearchSettings("tavily", "", "k"),
        ),
        ("searxng:http://s:8888", {}, SearchSettings("searxng", "http://s:8888")),
    ],
)
def test_the_setting_comes_before_keys(
    setting: str | None, variables: dict[str, str], found: SearchSettings | None
) -> None:
    assert search_settings(setting, Environment(variables=variables)) == found


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("brave", "needs BRAVE_API_KEY"),
        ("searxng", "write searxng:http://HOST:PORT, brave or tavily"),
        ("searxng:host", "write searxng:http://HOST:PORT"),
        ("duck", "web_search cannot be 'duck'"),
    ],
)
def test_wrong_settings_say_what_to_write(setting: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        search_settings(setting, Environment(variables={}))
    assert words in str(refused.value)


def test_a_key_is_never_shown() -> None:
    assert "secret" not in repr(SearchSettings("brave", key="secret"))
