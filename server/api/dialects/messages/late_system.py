"""System messages behind the beginning of a conversation. Claude Code sends them, and not every template takes them.

If a template refuses such a message, or leaves it out, its text becomes a part of the user's turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ....errors import InvalidRequest
from ...pipeline.prompts import content_text
from ...wire.chat import ChatRequest, Message
from ..terms import Terms

REFUSED = "chat_template_error"
T = TypeVar("T")


async def render_with_late_system(
    chat: ChatRequest, terms: Terms, render: Callable[[ChatRequest], Awaitable[T]], text_of: Callable[[T], str]
) -> T:
    """Render the chat as it is, or else with its late system messages in turns of the user.

    `text_of` reads the prompt of a result of `render`. Raises RequestError that names the client's fields.
    """
    late = _late(chat.messages)
    try:
        with terms.applied():
            made = await render(chat)
    except InvalidRequest as error:
        if not late or error.code != REFUSED:
            raise
    else:
        text = text_of(made) if late else ""
        if all(content_text(chat.messages[index], "messages").strip() in text for index in late):
            return made
    folded, params = _folded(chat.messages, terms.messages, late)
    with replace(terms, messages=params).applied():
        return await render(chat.model_copy(update={"messages": folded}))


def _late(messages: Sequence[Message]) -> frozenset[int]:
    """Return the indexes of system messages that follow another message."""
    systems = [index for index, message in enumerate(messages) if message.role == "system"]
    return frozenset(index for index in systems if any(message.role != "system" for message in messages[:index]))


def _folded(
    messages: Sequence[Message], params: Sequence[str], late: frozenset[int]
) -> tuple[list[Message], list[str]]:
    """Move the `late` messages into turns of the user, joined with the user's own messages beside them."""
    made: list[Message] = []
    kept: list[str] = []
    is_open = False  # the last message is a turn of the user that has a system message in it
    for index, (message, param) in enumerate(zip(messages, params, strict=True)):
        is_late = index in late
        text = content_text(message, param) if message.role in ("system", "user") else ""
        text = f"<system>\n{text}\n</system>" if is_late else text
        if made and made[-1].role == "user" and (is_late or (is_open and message.role == "user")):
            made[-1] = made[-1].model_copy(update={"content": f"{content_text(made[-1], kept[-1])}\n{text}"})
            is_open = True
        else:
            made.append(Message(role="user", content=text) if is_late else message)
            kept.append(param)
            is_open = is_late
    return made, kept
