"""Colours that everybody can read and tell apart."""

from __future__ import annotations

import pytest
from rich.color import Color

from retinue.interfaces.view.palettes import DARK, LIGHT, PALETTES, Palette, Tone
from retinue.interfaces.view.styled_text import segments, styled, use_palette

# Backgrounds of widely used terminal themes: `auto` does not paint its own.
BACKGROUNDS = {
    "light": ("#fcfcfc", "#ffffff", "#fdf6e3", "#fbf1c7", "#eff1f5"),
    "dark": ("#16181d", "#000000", "#002b36", "#282828", "#1e1e2e", "#300a24"),
}
# How people without one kind of cones see linear RGB (Viénot, Brettel and Mollon).
COLOR_BLINDNESS = {
    "protanopia": ((0.11, 0.89, 0.0), (0.11, 0.89, 0.0), (0.004, -0.004, 1.0)),
    "deuteranopia": ((0.29, 0.71, 0.0), (0.29, 0.71, 0.0), (-0.02, 0.02, 1.0)),
    "tritanopia": ((1.0, 0.15, -0.15), (0.0, 0.87, 0.13), (0.0, 0.87, 0.13)),
}


def linear(color: str) -> list[float]:
    parts = [value / 255 for value in Color.parse(color).get_truecolor()]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]


def luminance(color: str) -> float:
    red, green, blue = linear(color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: list[float]) -> tuple[float, float, float]:
    red, green, blue = (min(1.0, max(0.0, value)) for value in rgb)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def difference(one: str, other: str, kind: str) -> float:
    """How different two colours look to a person with a colour blindness (CIE 1976)."""
    rows = COLOR_BLINDNESS[kind]
    seen = []
    for color in (one, other):
        parts = linear(color)
        seen.append(lab([sum(f * v for f, v in zip(row, parts, strict=True)) for row in rows]))
    return float(sum((a - b) ** 2 for a, b in zip(*seen, strict=True)) ** 0.5)


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=lambda palette: palette.name)
def test_text_can_be_read_on_usual_backgrounds(palette: Palette) -> None:
    for background in BACKGROUNDS[palette.name]:
        for color in (palette.dim, palette.code, palette.running, palette.good, palette.bad,
                      palette.warning, palette.literal):  # fmt: skip
            assert contrast(color, background) >= 4.5, (color, background)
    assert contrast(palette.text, palette.background) >= 7


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=lambda palette: palette.name)
@pytest.mark.parametrize("kind", COLOR_BLINDNESS)
def test_color_blind_people_can_tell_states_apart(palette: Palette, kind: str) -> None:
    # Just noticeable is 2.3. What is closer than this has another symbol: ● and ✓, ✗ and ■.
    assert difference(palette.good, palette.bad, kind) >= 25
    assert difference(palette.good, palette.warning, kind) >= 25
    assert difference(palette.running, palette.bad, kind) >= 25


@pytest.mark.parametrize("palette", PALETTES.values(), ids=lambda palette: palette.name)
def test_lines_have_the_colours_of_the_palette_in_use(palette: Palette) -> None:
    use_palette(palette)
    try:
        (segment,) = segments(styled(("x", Tone.FAILED)))
    finally:
        use_palette(PALETTES["terminal"])
    assert segment.style is not None
    assert segment.style.color == Color.parse(palette.bad)
