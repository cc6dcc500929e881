"""Pictures of a conversation: found in its messages, read, and placed among the tokens of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest

from ...errors import InvalidRequest
from ...media.reader import Picture
from ...types import MediaItem
from ..errors import required, unsupported
from ..service import ServedModel
from ..wire.chat import IMAGE, ImageUrl, Message


def has_pictures(message: Message) -> bool:
    """Whether a part of the message is a picture."""
    content = message.content
    return content is not None and not isinstance(content, str) and any(part.type == IMAGE for part in content)


def picture_urls(model: ServedModel, messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Return the URL of each picture, with the name of its field. Raises InvalidRequest, before any is read."""
    found = []
    for i, message in enumerate(messages):
        content = message.content
        for j, part in enumerate(content if content is not None and not isinstance(content, str) else ()):
            if part.type != IMAGE:
                continue
            param = f"messages[{i}].content[{j}]"
            if model.pictures is None:
                why = f" is {IMAGE!r}; {model.info.facts.architecture} takes only text parts here."
                raise unsupported(f"{param}.type", why)
            url = part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url
            found.append((required(url, f"{param}.image_url"), f"{param}.image_url"))
    if model.pictures is not None and len(found) > (most := model.pictures.config.max_images):
        raise InvalidRequest(
            f"messages has {len(found)} pictures; the limit is {most} for one prompt (--limit-mm-per-prompt).",
            "messages",
            "too_many_images",
        )
    return found


async def with_pictures(
    model: ServedModel, text: str, urls: Sequence[tuple[str, str]]
) -> tuple[str, Sequence[Picture]]:
    """Read the pictures, and replace the mark of each in the prompt's `text`. Raises InvalidRequest."""
    if model.pictures is None or not urls:
        return text, ()
    mark = model.pictures.family.mark
    pieces = text.split(mark)
    if len(pieces) - 1 != len(urls):
        raise InvalidRequest(
            f"The prompt has {len(pieces) - 1} marks {mark!r} for {len(urls)} pictures: a text of the messages "
            "contains the mark, or the chat template leaves pictures out.",
            "messages",
        )
    pictures = [await model.pictures.read(url, param) for url, param in urls]
    return "".join(chain(*zip_longest(pieces, [picture.text for picture in pictures], fillvalue=""))), pictures


def placed(model: ServedModel, ids: Sequence[int], pictures: Sequence[Picture]) -> tuple[MediaItem, ...]:
    """Return the pictures with their places in the prompt. Raises InvalidRequest if other text has placeholders."""
    if model.pictures is None or not pictures:
        return ()
    placeholder = model.pictures.family.placeholder
    token_id = model.tokenizer.token_id(placeholder)
    places = [index for index, each in enumerate(ids) if each == token_id]
    expected = sum(picture.num_tokens for picture in pictures)
    if len(places) != expected:
        raise InvalidRequest(
            f"The prompt has {len(places)} tokens {placeholder!r}, but its pictures have {expected}: a text of the "
            "messages contains the token.",
            "messages",
        )
    items, num_before = [], 0
    for picture in pictures:
        values = picture.values
        items.append(
            MediaItem(
                values.digest,
                places[num_before],
                picture.num_tokens,
                values.pixels,
                values.shape,
                grid=values.grid,
            )
        )
        num_before += picture.num_tokens
    return tuple(items)
