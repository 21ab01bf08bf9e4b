"""Images in requests: how each API encodes them, and what models that cannot see get instead."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

import msgspec

from retinue.domain.images import Image
from retinue.domain.messages import Message, ToolMessage, UserMessage

# Optional features. A server that says that the model cannot see is believed for good; another
# complaint may be about one image, such as one that is damaged.
IMAGES = "images"
THESE_IMAGES = "these images"
IMAGE_FEATURES = {
    IMAGES: r"not (?:a )?multimodal|at most 0 image|mmproj"
    r"|unknown variant [`'\"]?image(?:_url)?\b"
    r"|(?:does|do|is|are)(?: not|n't) (?:support|accept|able to (?:see|process))[^.]{0,40}\b"
    r"(?:images?|image_url|vision)\b"
    r"|\b(?:images?|image_url|vision)\b[^.]{0,60}"
    r"(?:not support|unsupported|not enabled|not available|only supported)"
    r"|content[^.]{0,20} (?:must be|should be|is not) (?:a )?(?:valid )?string",
    THESE_IMAGES: r"\bimages?\b|image_url|input_image",
}
CANNOT_SEE = re.compile(r"image input is not supported|mmproj|not (?:a )?multimodal")
"""llama.cpp and gateways say so as an error of the server, with status 500."""
PASSING_IMAGE_FEATURES = frozenset({THESE_IMAGES})

# A union in each place would be made anew for each message of each request.
_MAY_HAVE_IMAGES = (ToolMessage, UserMessage)
_IMAGES_ABOVE = "Images of the results above, in their order:"


def has_images(messages: Sequence[Message]) -> bool:
    return any(isinstance(message, _MAY_HAVE_IMAGES) and message.images for message in messages)


def leaves_images_out(unsupported: Set[str]) -> bool:
    return IMAGES in unsupported or THESE_IMAGES in unsupported


def without_images(messages: Sequence[Message], unsupported: Set[str]) -> list[Message]:
    """The messages with one sentence in place of each image."""
    why = "you cannot see images" if IMAGES in unsupported else "it cannot be sent here"
    made: list[Message] = []
    for message in messages:
        if isinstance(message, _MAY_HAVE_IMAGES) and message.images:
            told = [message.content, *(f"[{image} is left out: {why}]" for image in message.images)]
            message = msgspec.structs.replace(message, content="\n".join(told), images=())
        made.append(message)
    return made


def with_images_after_results(messages: Sequence[Message]) -> list[Message]:
    """The messages with images of tool results in a user message after the results.

    The chat completions API has no images in tool messages, and allows nothing between those.
    """
    made: list[Message] = []
    found: list[Image] = []
    for message in messages:
        if found and not isinstance(message, ToolMessage):
            made.append(UserMessage(_IMAGES_ABOVE, tuple(found)))
            found = []
        if isinstance(message, ToolMessage) and message.images:
            found += message.images
            message = msgspec.structs.replace(message, images=())
        made.append(message)
    if found:
        made.append(UserMessage(_IMAGES_ABOVE, tuple(found)))
    return made


def data_url(image: Image) -> str:
    return f"data:{image.media_type};base64,{image.data}"
