"""The picture: a bar per contestant, on a logarithmic scale, as plain SVG."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from benchmarks.race import Heat, Score

_WIDTH = 760
_LEFT = 130
_RIGHT = 150
_TOP = 64
_ROW = 34
_BAR = 20

# The picture is transparent and follows the reader's scheme; the first colours are also the ones
# shown by viewers that know no scheme, and are readable on white and on near-black.
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #6e7781 }
  .title { font-size: 15px; font-weight: 600 }
  .tick { font-size: 11px }
  .grid { stroke: #8b949e; stroke-opacity: .35 }
  .floor { fill: #8b949e } .retinue { fill: #2f81f7 } .peer { fill: #d08b3c }
  @media (prefers-color-scheme: light) { text { fill: #32383f } }
  @media (prefers-color-scheme: dark) { text { fill: #c9d1d9 } }
"""


def _kind(score: Score) -> str:
    name = score.contender.name
    return name if name in ("floor", "retinue") else "peer"


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade within the scale."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    return [value for value in values if low <= value <= high]


def draw(heat: Heat) -> str:
    scores = sorted(heat.scores, key=lambda score: score.cpu_ms)
    # A logarithmic scale has no zero. It begins at half of the shortest bar, so that this one
    # is seen too, and the grid says what the lengths mean.
    low, high = scores[0].cpu_ms / 2, scores[-1].cpu_ms * 1.1
    span = _WIDTH - _LEFT - _RIGHT

    def x(value: float) -> float:
        return _LEFT + span * math.log(value / low) / math.log(high / low)

    bottom = _TOP + _ROW * len(scores)
    title = f"CPU per child, {heat.floor.children:,} children (ms, logarithmic)"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 34}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{_LEFT}" y="24">{escape(title)}</text>',
        f'<text class="tick" x="{_LEFT}" y="44">4 model calls and 3 tool calls a child; '
        "shorter is better</text>",
    ]
    for tick in _ticks(low, high):
        at = f"{x(tick):.1f}"
        parts.append(f'<line class="grid" x1="{at}" y1="{_TOP}" x2="{at}" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{at}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>'
        )
    for row, score in enumerate(scores):
        top = _TOP + _ROW * row + (_ROW - _BAR) / 2
        baseline = f"{top + _BAR / 2 + 4.5:.1f}"
        end = x(score.cpu_ms)
        value = f"{score.cpu_ms:.2f} ms · {heat.times_floor(score):.1f}×"
        parts += [
            f'<text x="{_LEFT - 10}" y="{baseline}" text-anchor="end">'
            f"{escape(score.contender.name)}</text>",
            f'<rect class="{_kind(score)}" x="{_LEFT}" y="{top:.1f}" '
            f'width="{end - _LEFT:.1f}" height="{_BAR}" rx="2"/>',
            f'<text x="{end + 8:.1f}" y="{baseline}">{value}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
