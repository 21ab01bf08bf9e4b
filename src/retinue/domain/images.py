"""Images for models that can see: what is sent of an image file, and what it costs in tokens.

PNG, JPEG, GIF and WebP are sent; every provider takes these four. Their headers say how large they
are, so that nothing needs to be decoded. With the extra `images`, larger images are made smaller.
"""

from __future__ import annotations

import base64
import hashlib
import io
import struct
import threading
import warnings
from collections.abc import Callable

import msgspec

from retinue.errors import ToolFailure
from retinue.extras import install_command, is_installed

# Providers make larger images smaller themselves (Anthropic at 1,568 pixels, OpenAI at 2,048), so
# that more pixels cost time and bytes and show nothing more.
MAX_EDGE = 1_568
# Anthropic refuses more than 5 MB of base64, and more than 8,000 pixels a side.
MAX_IMAGE_BYTES = 3_750_000
MAX_SENT_EDGE = 8_000
# Decoding takes four bytes a pixel: 200 MB. A phone takes pictures of 50 million pixels.
MAX_PIXELS = 50_000_000
# A side of the squares that vision models cut an image into: Qwen has 28 pixels, Anthropic charges
# a token for 750 pixels, OpenAI has 32 pixels. A few tokens are around them.
PATCH_EDGE = 28
_AROUND_TOKENS = 16
_PIXELS_PER_TOKEN_BYTE = 4  # An estimate takes four bytes of text for a token.
_QUALITY = 85
# One image at a time: a decoded one takes hundreds of MB, and children read images in parallel.
_DECODING = threading.Lock()
_KINDS = "PNG, JPEG, GIF and WebP"


class Image(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An image in a message. `data` is base64: a large string, which stores keep once.

    `width` and `height` are those of the data, in pixels.

    ```python
    image = retinue.Image("image/png", "iVBORw0KGgo=", width=800, height=600, name="shot.png")
    message = retinue.UserMessage("What is on it?", (image,))
    assert image.tokens > 500
    ```
    """

    media_type: str
    data: str
    width: int
    height: int
    name: str = ""

    @property
    def tokens(self) -> int:
        """An estimate of what it takes in a prompt, after the provider has made it smaller."""
        longest = max(self.width, self.height, 1)
        scale = min(1.0, MAX_EDGE / longest)
        across, down = (-(-int(edge * scale) // PATCH_EDGE) for edge in (self.width, self.height))
        return max(across, 1) * max(down, 1) + _AROUND_TOKENS

    @property
    def text_bytes(self) -> int:
        """Bytes of text with about as many tokens."""
        return self.tokens * _PIXELS_PER_TOKEN_BYTE

    @property
    def sha256(self) -> str:
        """Hash of the data."""
        return hashlib.sha256(self.data.encode()).hexdigest()

    def __str__(self) -> str:
        return f"image {self.name or 'without a name'} ({self.width}×{self.height} pixels)"


class _Header(msgspec.Struct, frozen=True, gc=False):
    media_type: str
    width: int
    height: int


def is_image(data: bytes) -> bool:
    """Whether `data` is an image that models can be sent, by its first bytes."""
    return _media_type(data) is not None


def read_image(name: str, data: bytes) -> Image:
    """The image in a file, small enough to be sent. Raises ToolFailure."""
    header = _header(data)
    if header is None:
        raise ToolFailure(f"'{name}' is no image that can be sent; models see {_KINDS}")
    width, height = header.width, header.height
    _check_pixels(name, width, height)
    media_type = header.media_type
    fits = max(width, height) <= MAX_EDGE and len(data) <= MAX_IMAGE_BYTES
    if not fits and is_installed("images"):
        media_type, data, width, height = _smaller(name, data)
        fits = len(data) <= MAX_IMAGE_BYTES
    if not fits and (len(data) > MAX_IMAGE_BYTES or max(width, height) > MAX_SENT_EDGE):
        raise ToolFailure(
            f"'{name}' has {width:,}×{height:,} pixels and {len(data):,} bytes, and providers take"
            f" {MAX_SENT_EDGE:,} pixels a side and {MAX_IMAGE_BYTES:,} bytes: make it smaller"
            + ("" if is_installed("images") else f", or let us: {install_command('images')}")
        )
    return Image(media_type, base64.b64encode(data).decode(), width, height, name)


def _check_pixels(name: str, width: int, height: int) -> None:
    if width * height > MAX_PIXELS or not (width and height):
        raise ToolFailure(
            f"'{name}' has {width:,}×{height:,} pixels; at most {MAX_PIXELS:,} are read"
        )


def _smaller(name: str, data: bytes) -> tuple[str, bytes, int, int]:
    """The image with at most MAX_EDGE pixels a side; for an animation, its first frame."""
    import PIL.Image  # takes 40 ms, and most runs have no image
    import PIL.ImageOps

    try:
        with _DECODING, warnings.catch_warnings():
            # Pillow warns of damaged metadata, which is not sent.
            warnings.simplefilter("ignore")
            with PIL.Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "GIF", "WEBP")) as file:
                # A file can have two headers, and Pillow takes the last one.
                _check_pixels(name, *file.size)
                file.draft("RGB", (MAX_EDGE, MAX_EDGE))  # JPEG is decoded at a fraction of its size
                has_alpha = file.mode in ("RGBA", "LA", "PA") or "transparency" in file.info
                mode = "RGBA" if has_alpha else "RGB"
                # Made smaller in place first: each copy of the whole image is another 200 MB.
                made: PIL.Image.Image = file if file.mode == mode else file.convert(mode)
                made.thumbnail((MAX_EDGE, MAX_EDGE), PIL.Image.Resampling.LANCZOS)
                made = PIL.ImageOps.exif_transpose(made).convert(mode)
    except ToolFailure:
        raise
    except Exception as error:
        # Pillow raises errors of many kinds for broken files.
        raise ToolFailure(f"'{name}' cannot be read as an image: {error}") from None
    buffer = io.BytesIO()
    # Screenshots have few colours and sharp edges, and photographs do not.
    made.save(buffer, "PNG")
    media_type = "image/png"
    if buffer.tell() > MAX_IMAGE_BYTES // 4 and not has_alpha:
        buffer = io.BytesIO()
        made.save(buffer, "JPEG", quality=_QUALITY)
        media_type = "image/jpeg"
    return media_type, buffer.getvalue(), made.width, made.height


# Headers


def _media_type(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def _header(data: bytes) -> _Header | None:
    media_type = _media_type(data)
    if media_type is None:
        return None
    try:
        size = _SIZES[media_type](data)
    except (struct.error, IndexError):
        return None
    return None if size is None else _Header(media_type, *size)


def _png_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _gif_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    place = 2
    while True:
        if data[place] != 0xFF:
            return None
        kind = data[place + 1]
        if kind == 0xFF:  # a byte of padding
            place += 1
            continue
        # A frame header, of any compression; the other three numbers are tables.
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, place + 5)
            return width, height
        place += 2 + struct.unpack_from(">H", data, place + 2)[0]


def _webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            return (
                1 + int.from_bytes(data[24:27], "little"),
                1 + int.from_bytes(data[27:30], "little"),
            )
        case b"VP8L":
            bits = struct.unpack_from("<I", data, 21)[0]
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
    return None


_SIZES: dict[str, Callable[[bytes], tuple[int, int] | None]] = {
    "image/png": _png_size,
    "image/jpeg": _jpeg_size,
    "image/gif": _gif_size,
    "image/webp": _webp_size,
}
