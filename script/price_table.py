"""Writes the table of cloud models, and costs to check it, from genai-prices and LiteLLM's table.

Runs in the environment that `script/prices` makes. A row is: window, longest output, dollars per
million tokens of input, output, cached input and cache writes, abilities (t: tools, r: reasoning,
v: images, a: adaptive thinking), and tiers (above how many input tokens, and the same four prices).
"""

import json
import random
import re
import sys
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import distribution, version
from pathlib import Path

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import TieredPrices, Usage

# Our name, the name in genai-prices, and LiteLLM's providers.
PROVIDERS = {
    "openai": ("openai", {"openai"}),
    "anthropic": ("anthropic", {"anthropic"}),
    "gemini": ("google", {"gemini"}),
    "xai": ("x-ai", {"xai"}),
    "deepseek": ("deepseek", {"deepseek"}),
    "mistral": ("mistral", {"mistral"}),
    "groq": ("groq", {"groq"}),
    "moonshot": ("moonshotai", {"moonshot"}),
    "zai": ("zai", {"zai"}),
    "bedrock": ("aws", {"bedrock_converse", "bedrock_mantle"}),
    "azure": ("azure", set()),
}
NO_CHAT = re.compile(
    r"embed|rerank|whisper|\btts\b|dall-e|moderation|transcri|realtime|audio|image|\bsora\b|ocr"
    r"|davinci|babbage|curie|\bada\b|instruct-0914|veo|lyria|imagen|voice|live|search|guard"
    r"|-\d+p$|1-month|6-month|container|ft:|^(us|eu|ap|apac|global|au|jp|ca|sa)[.-]|speech",
    re.IGNORECASE,
)
# Models of the generations that no provider serves any more only cost space.
GONE = re.compile(
    r"claude-(v?[123]|instant)|^in\.|^gpt-3|^gpt-4(-|$)|titan|jurassic|j2-|^o1-(mini|p)"
    r"|gemini-(1|2[.-]0|pro|flash|exp|nano)|gemma|palm|bison|llama-?[23]|command-|^open-mi|^mixtral|^grok-[23]"
)
NOW = datetime.now(UTC)
PRICES = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")


def normal(name: str) -> str:
    """As `model_table.py` looks a name up, after the name itself."""
    name = name.lower().rpartition("/")[2].replace(".", "-").replace("@", "-")
    name = re.sub(r"^(us|eu|apac|global|au|jp)-(?=[a-z]+-)", "", name)
    name = re.sub(r"-v\d+(:\d+)?$", "", name)
    return re.sub(r"-(latest|20\d{6}|20\d\d-\d\d-\d\d|2[3-6](0[1-9]|1[0-2]))$", "", name)


def highest_price(model):
    """The price of today; of several in the course of a day, the highest."""
    hours = (NOW.replace(hour=hour, minute=30) for hour in range(24))
    return max(map(model.get_prices, hours), key=lambda price: price_rows(price)[0][0] or 0)


def number(value: Decimal) -> float | int:
    return int(value) if value == int(value) else float(value)


def price_rows(price) -> tuple[list, list]:
    values = [getattr(price, key) for key in PRICES]
    tiered = [v for v in values if isinstance(v, TieredPrices)]
    starts = sorted({tier.start for v in tiered for tier in v.tiers})

    def at(start: int):
        found = []
        for value in values:
            if isinstance(value, TieredPrices):
                steps = [tier.price for tier in value.tiers if tier.start <= start]
                value = steps[-1] if steps else value.base
            found.append(None if value is None else number(value))
        return found

    return at(-1), [[start, *at(start)] for start in starts]


def abilities(card: dict) -> str:
    flags = {
        "t": "supports_function_calling",
        "r": "supports_reasoning",
        "v": "supports_vision",
        "a": "supports_adaptive_thinking",
    }
    return "".join(letter for letter, key in flags.items() if card.get(key))


def equal_names(match) -> list[str]:
    found = [match.equals] if hasattr(match, "equals") else []
    for clause in getattr(match, "or_", ()):
        found += equal_names(clause)
    return found


def make_table(providers: dict, cards: dict) -> tuple[dict, dict]:
    """The rows by provider and name, and for each provider the names that lead to a row."""
    table, known = {}, {}
    for ours, (theirs, owners) in PROVIDERS.items():
        provider = providers[theirs]
        listed = {
            key.removeprefix(f"{ours}/").rpartition("/")[2] if ours != "groq"
            else key.removeprefix("groq/"): card
            for key, card in sorted(cards.items())
            if card.get("litellm_provider") in owners and card.get("mode") in ("chat", "responses")
        }  # fmt: skip
        names = {*listed, *(m.id for m in provider.models)}
        names |= {name for model in provider.models for name in equal_names(model.match)}
        rows: dict[str, list] = {}
        known[ours] = []
        by_normal = {normal(name): card for name, card in listed.items()}
        # Short names first: a longer one is left out if its row would be the same.
        for name in sorted(names, key=lambda name: (len(normal(name)), len(name), name)):
            if NO_CHAT.search(name) or GONE.search(name):
                continue
            if ours in ("gemini", "bedrock") and name.startswith("claude"):
                continue  # Vertex has Anthropic's prices; Bedrock's names begin with the maker.
            model = provider.find_model(name)
            if model is None:
                continue
            base, tiers = price_rows(highest_price(model))
            if base[0] is None or base[1] is None:
                continue
            card = listed.get(name) or by_normal.get(normal(name)) or by_normal.get(model.id) or {}
            window = model.context_window or card.get("max_input_tokens")
            if window is None:
                continue
            row = [window, card.get("max_output_tokens"), *base, abilities(card), *tiers]
            # A row without a card knows less than the one that a lookup would find.
            same = slice(None) if card else slice(2, 6)
            known[ours].append(name)
            found = rows.get(normal(name))
            if found is not None and found[same] == row[same]:
                continue
            key = normal(name) if normal(name) not in rows else name.lower()
            rows[key] = row
        table[ours] = dict(sorted(rows.items()))
    # Azure has the models of others at their prices; only those that differ are kept.
    others = table["openai"] | table["anthropic"] | table["deepseek"] | table["xai"]
    table["azure"] = {
        k: row for k, row in table["azure"].items() if row[2:6] != others.get(k, [])[2:6]
    }
    return table, known


def make_costs(providers: dict, known: dict) -> list[list]:
    """Twenty usages for each provider, and what genai-prices says that they cost."""
    chosen = random.Random(NOW.date().isoformat())
    found = []
    for ours, (theirs, _) in PROVIDERS.items():
        models = {name: providers[theirs].find_model(name) for name in known[ours]}
        # genai-prices charges by the hour where we take the highest price of the day.
        names = [n for n, m in models.items() if highest_price(m) == m.get_prices(NOW)]
        for index in range(20):
            name = names[index * len(names) // 20] if len(names) > 20 else chosen.choice(names)
            model = models[name]
            tokens_in = chosen.choice((900, 20_000, 190_000, 250_000, 400_000, 900_000))
            cached = chosen.randrange(tokens_in)
            written = chosen.randrange(tokens_in - cached)
            tokens_out = chosen.randrange(60_000)
            price = model.calc_price(
                Usage(
                    input_tokens=tokens_in,
                    cache_read_tokens=cached,
                    cache_write_tokens=written,
                    output_tokens=tokens_out,
                ),
                providers[theirs],
                genai_request_timestamp=NOW,
            ).total_price
            found.append([ours, name, tokens_in, cached, written, tokens_out, float(price)])
    return found


def main(table_file: str, costs_file: str) -> None:
    providers = {provider.id: provider for provider in get_snapshot().providers}
    path = distribution("litellm").locate_file(
        "litellm/model_prices_and_context_window_backup.json"
    )
    cards = json.loads(Path(str(path)).read_text())
    table, known = make_table(providers, cards)
    sources = " and ".join(f"{name} {version(name)}" for name in ("genai-prices", "litellm"))
    parts = [f'"date": "{NOW.date()}",\n"source": "{sources}"']
    for provider, rows in table.items():
        lines = ",\n".join(
            f"{json.dumps(name)}:{json.dumps(_short(row), separators=(',', ':'))}"
            for name, row in rows.items()
        )
        parts.append(f'"{provider}": {{\n{lines}\n}}')
    Path(table_file).write_text("{\n" + ",\n".join(parts) + "\n}\n")
    costs = ",\n".join(json.dumps(cost) for cost in make_costs(providers, known))
    Path(costs_file).write_text(f"[\n{costs}\n]\n")


def _short(row: list) -> list:
    row = list(row)
    while row and row[-1] in (None, ""):
        row.pop()
    return row


if __name__ == "__main__":
    main(*sys.argv[1:])
