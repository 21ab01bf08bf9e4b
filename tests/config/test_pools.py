from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.settings import EndpointSettings, PoolStrategy
from retinue.config.settings_file import read_settings
from tests.config.settings_texts import refusal, written


def test_pools_and_servers_are_read(tmp_path: Path) -> None:
    text = """
[pools.smart]
endpoints = ["openai:m@http://a/v1", "fast"]
weights = [3, 0.5]

[pools.spare]
endpoints = ["openai:m@http://a/v1"]
strategy = "order"

[servers."http://a"]
slots = 4
patience_s = 30
"""
    settings = read_settings(written(tmp_path / "config.toml", text))
    assert settings.pools["smart"].weights == (3.0, 0.5)
    strategies = [pool.strategy for pool in settings.pools.values()]
    assert strategies == [PoolStrategy.WEIGHTED, PoolStrategy.ORDER]
    server = settings.servers["http://a"]
    assert server == EndpointSettings(slots=4, patience_s=30)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pools.a]\n", "line 1, key pools.a: object missing required field `endpoints`."),
        (
            "[pools.a]\nendpoints = []\n",
            "line 1, key pools.a: endpoints must name at least one model: endpoints ="
            ' ["openai:MODEL@http://…/v1"].',
        ),
        (
            "[pools.a]\nendpoints = ['m', 'b']\n[pools.b]\nendpoints = ['m']\n",
            "line 1, key pools.a: 'b' is a pool, and a pool lists models; name its models.",
        ),
        (
            "[models]\nmine = 'a'\n[pools.a]\nendpoints = ['m', 'mine']\n",
            "line 3, key pools.a: 'mine' is a pool, and a pool lists models; name its models.",
        ),
        (
            "[pools.a]\nendpoints = ['a']\n",
            "line 1, key pools.a: 'a' is a pool, and a pool lists models; name its models.",
        ),
        (
            "[models]\nmine = 'm'\n[pools.a]\nendpoints = ['m', 'mine']\n",
            "line 3, key pools.a: 'mine' is listed twice; give it a weight of 2 instead.",
        ),
        (
            "[models]\na = 'm'\n[pools.a]\nendpoints = ['m']\n",
            "line 3, key pools.a: models.a has the same name; keep one.",
        ),
        (
            "[pools.'a b']\nendpoints = ['m']\n",
            "line 1, key pools.a b: a name has letters, digits and _.- only.",
        ),
        (
            "[pools.a]\nendpoints = ['m', 'n']\nweights = [1]\n",
            "line 1, key pools.a: there are 2 endpoints and 1 weights.",
        ),
        (
            "[pools.a]\nendpoints = ['m', 'n']\nweights = [1, 0]\n",
            "line 1, key pools.a: a weight must be more than 0; remove a model that should not be"
            " asked.",
        ),
        (
            "[pools.a]\nendpoints = ['m']\nweights = [1]\nstrategy = 'order'\n",
            'line 1, key pools.a: weights have no meaning with strategy = "order"; leave one of'
            " them out.",
        ),
        (
            "[pools.a]\nendpoints = ['m']\nstrategy = 'best'\n",
            "line 3, key pools.a.strategy: invalid enum value 'best'; there are: weighted, order.",
        ),
        (
            "[servers.a]\nslots = 1\n",
            "line 1, key servers.a: is not the address of a server; write it like"
            " http://127.0.0.1:8080.",
        ),
        (
            "[servers.'http://me:secret@a']\nslots = 1\n",
            "line 1, key servers.http://me:secret@a: is not the address of a server; write it like"
            " http://127.0.0.1:8080.",
        ),
        (
            "[servers.'http://a']\nslots = 0\n",
            "line 1, key servers.http://a: slots must be more than 0, not 0.",
        ),
        (
            "[servers.'http://a']\nidle_timeout_s = -2.5\n",
            "line 1, key servers.http://a: idle_timeout_s must be more than 0, not -2.5.",
        ),
        (
            "[servers.'http://a']\nkey_variable = 'K'\nkey_command = 'k'\n",
            "line 1, key servers.http://a: `key_variable` and `key_command` both name the key; set"
            " one.",
        ),
        # The value may be the key, so it is not shown.
        (
            "[servers.'http://a']\nkey_variable = 'sk-very-secret'\n",
            "line 1, key servers.http://a: key_variable is the name of a variable, such as"
            " MY_API_KEY, and not the key.",
        ),
    ],
)
def test_invalid_pools_and_servers(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path / "config.toml", text) == message
