"""Content blocks of Anthropic's messages as parts of chat messages. Other media are refused by their type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....errors import InvalidRequest
from ...errors import required, unsupported
from ...wire import messages
from ...wire.messages import Block, Source
from ..sealed import unseal


def text_of(content: str | Sequence[Block] | None, param: str) -> str:
    """Return the text of a message, a result or a system prompt. Raises InvalidRequest for blocks without text."""
    if content is None:
        raise InvalidRequest(f"{param} is required.", param)
    if isinstance(content, str):
        return content
    return "\n".join(_text_part(block, f"{param}[{i}]")["text"] for i, block in enumerate(content))


def content_of(content: str | Sequence[Block], param: str) -> str | list[dict[str, Any]]:
    """Return the text of a result, or its parts if one of them is an image. Raises InvalidRequest."""
    if isinstance(content, str) or all(block.type != messages.IMAGE for block in content):
        return text_of(content, param)
    return [part_of(block, f"{param}[{i}]") for i, block in enumerate(content)]


def part_of(block: Block, param: str) -> dict[str, Any]:
    """Return a part of a chat message. Raises InvalidRequest for blocks that are neither text nor an image."""
    if block.type != messages.IMAGE:
        return _text_part(block, param)
    source = required(block.source if isinstance(block.source, Source) else None, f"{param}.source")
    if source.type == "base64":
        data = required(source.data, f"{param}.source.data")
        url = f"data:{required(source.media_type, f'{param}.source.media_type')};base64,{data}"
    elif source.type == "url":
        url = required(source.url, f"{param}.source.url")
    else:
        why = f": this server reads images of the types 'base64' and 'url', not {source.type[:40]!r}."
        raise unsupported(f"{param}.source.type", why)
    return {"type": "image_url", "image_url": {"url": url}}


def _text_part(block: Block, param: str) -> dict[str, Any]:
    match block.type:
        case messages.TEXT:
            text = required(block.text, f"{param}.text")
        case messages.DOCUMENT:
            text = _document(block, param)
        case messages.SEARCH_RESULT:
            content = text_of(block.content, f"{param}.content")
            source = required(block.source if isinstance(block.source, str) else None, f"{param}.source")
            text = _titled("search_result", content, source=source, title=block.title)
        case messages.TOOL_REFERENCE:
            text = f"The tool {required(block.tool_name, f'{param}.tool_name')} can be called from here on."
        case _:
            field = f"{param}.type"
            raise unsupported(
                field,
                f": this server takes only text here; blocks of type {block.type[:40]!r} are not possible.",
            )
    return {"type": "text", "text": text}


def thought_of(block: Block) -> str:
    """Return the text of a thinking block; if it was not displayed, its signature has the text."""
    return block.thinking or unseal(block.signature)


def _document(block: Block, param: str) -> str:
    source = required(block.source if isinstance(block.source, Source) else None, f"{param}.source")
    if source.type not in ("text", "content"):
        why = f": this server reads documents of text alone ('text' or 'content'), not of type {source.type[:40]!r}."
        raise unsupported(f"{param}.source.type", why)
    if source.type == "text":
        text = required(source.data, f"{param}.source.data")
    else:
        text = text_of(source.content, f"{param}.source.content")
    return _titled("document", text, title=block.title, context=block.context)


def _titled(tag: str, text: str, **fields: str | None) -> str:
    """Return the text of a source below its known fields, between marks that set it apart."""
    known = "".join(f"{name}: {value}\n" for name, value in fields.items() if value)
    return f"<{tag}>\n{known}{text}\n</{tag}>"
