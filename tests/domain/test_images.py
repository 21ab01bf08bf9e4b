"""Image files: recognised by their first bytes, measured by their header, made smaller."""

from __future__ import annotations

import base64
import io
import struct
import subprocess
import sys
from contextlib import suppress
from typing import Any
from zlib import compress, crc32

import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain import images
from retinue.domain.images import MAX_EDGE, MAX_IMAGE_BYTES, Image, is_image, read_image
from retinue.errors import ToolFailure

MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\x00\x00\x00\x00WEBP")


def made(kind: str, size: tuple[int, int] = (60, 40), **options: Any) -> bytes:
    buffer = io.BytesIO()
    PIL.Image.new(options.pop("mode", "RGB"), size, "red").save(buffer, kind, **options)
    return buffer.getvalue()


def noise(size: tuple[int, int]) -> bytes:
    """A PNG that cannot be compressed."""
    buffer = io.BytesIO()
    PIL.Image.effect_noise(size, 100).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def decoded(image: Image) -> PIL.Image.Image:
    return PIL.Image.open(io.BytesIO(base64.b64decode(image.data)))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("GIF", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"exif": b"Exif\0\0" + bytes(5_000)}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"mode": "RGBA"}),
    ],
)
def test_a_small_image_is_sent_as_it_is(kind: str, options: dict[str, Any]) -> None:
    data = made(kind, **options)
    image = read_image("a", data)
    assert is_image(data)
    assert (image.media_type, image.width, image.height) == (f"image/{kind.lower()}", 60, 40)
    assert base64.b64decode(image.data) == data


def test_text_and_other_formats_are_no_images() -> None:
    for data in (b"", b"<svg/>", b"BM\0\0", b"%PDF-1.7", made("BMP"), made("TIFF")):
        assert not is_image(data)
    with pytest.raises(ToolFailure, match="is no image that can be sent; models see PNG"):
        read_image("a.bmp", made("BMP"))


def test_a_large_image_is_made_smaller() -> None:
    image = read_image("shot.png", made("PNG", (3_136, 1_000)))
    assert (image.width, image.height) == (MAX_EDGE, 500)
    assert decoded(image).size == (MAX_EDGE, 500)
    assert image.media_type == "image/png"


def test_a_photograph_becomes_a_jpeg() -> None:
    data = noise((2_000, 1_500))
    image = read_image("photo.png", data)
    assert image.media_type == "image/jpeg"
    assert len(image.data) < len(data) // 4


def test_a_photograph_is_turned_as_the_camera_says() -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    image = read_image("photo.jpg", made("JPEG", (2_000, 1_000), exif=exif))
    assert (image.width, image.height) == (MAX_EDGE // 2, MAX_EDGE)


def test_transparency_is_kept() -> None:
    assert decoded(read_image("a", made("PNG", (2_000, 10), mode="RGBA"))).mode == "RGBA"


def test_a_decompression_bomb_is_not_decoded() -> None:
    data = bytearray(made("PNG"))
    data[16:24] = (50_000).to_bytes(4, "big") * 2
    with pytest.raises(ToolFailure, match=r"'a' has 50,000×50,000 pixels; at most 50,000,000"):
        read_image("a", bytes(data))


READ_BY_CHILDREN = """
import io, resource, threading
import PIL.Image
from retinue.domain.images import read_image
buffer = io.BytesIO()
PIL.Image.new("RGB", (7_000, 7_000)).save(buffer, "PNG", compress_level=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
threads = [threading.Thread(target=read_image, args=("a", buffer.getvalue())) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_large_images_are_decoded_once_and_one_at_a_time() -> None:
    """The first image of the program is one decoded image already: 200 MB."""
    done = subprocess.run(
        [sys.executable, "-c", READ_BY_CHILDREN], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) / 1024 < 150


def test_a_second_header_does_not_hide_a_bomb() -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data))

    def header(edge: int) -> bytes:
        return chunk(b"IHDR", struct.pack(">IIBBBBB", edge, edge, 8, 0, 0, 0, 0))

    pixels = chunk(b"IDAT", compress(bytes(8_001 * 8_000)))
    rest = chunk(b"prVt", bytes(MAX_IMAGE_BYTES)) + pixels + chunk(b"IEND", b"")
    with pytest.raises(ToolFailure, match=r"8,000×8,000 pixels; at most 50,000,000 are read"):
        read_image("bomb.png", MAGIC[0] + header(10) + header(8_000) + rest)


def test_a_broken_image_is_named() -> None:
    with pytest.raises(ToolFailure, match="'a' cannot be read as an image: "):
        read_image("a", made("PNG", (2_000, 2_000))[:200])


class TestWithoutTheExtra:
    @pytest.fixture(autouse=True)
    def _without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(images, "is_installed", lambda extra: False)

    def test_what_providers_take_is_sent_as_it_is(self) -> None:
        image = read_image("a", made("PNG", (3_000, 2_000)))
        assert (image.width, image.height) == (3_000, 2_000)

    def test_what_they_refuse_is_refused_with_the_way_out(self) -> None:
        data = noise((1_500, 1_500))
        assert len(data) > MAX_IMAGE_BYTES
        with pytest.raises(ToolFailure, match=r"make it smaller, or let us: pip install"):
            read_image("a", data)
        with pytest.raises(ToolFailure, match="9,000×10 pixels"):
            read_image("a", made("PNG", (9_000, 10)))


@given(st.sampled_from(MAGIC), st.binary(max_size=200))
def test_any_bytes_are_an_image_or_one_clear_error(magic: bytes, rest: bytes) -> None:
    with suppress(ToolFailure):
        image = read_image("a", magic + rest)
        assert image.width > 0
        assert image.height > 0


@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_an_image_costs_about_what_providers_charge(width: int, height: int) -> None:
    tokens = Image("image/png", "", width, height).tokens
    assert 17 <= tokens <= 56 * 56 + 16
    scale = min(1.0, MAX_EDGE / max(width, height))
    # Anthropic documents width * height / 750, after its own scaling.
    assert tokens >= width * scale * height * scale / 784
