"""Renders chat templates that requests bring along, in limited processes: they are as hostile as any client."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from neuronserve.server.errors import InvalidRequest
from neuronserve.server.text.chat_template import ChatTemplate, ChatTemplateError, Conversation
from neuronserve.server.text.limited_process import Handler, LimitedPool, Refusal, Work
from neuronserve.server.text.template_process import MAX_CHARS, MEMORY_BYTES

TIMEOUT_S = 1.0  # of one rendering, compilation included
MAX_COMPILED = 16  # templates that the process keeps


class _Call(msgspec.Struct, frozen=True):
    source: str
    conversation: Conversation


class RequestTemplates:
    """Renders conversations by any template, up to `size` at a time. Blocking and safe to call from several threads."""

    def __init__(self, special: dict[str, str], size: int = 1) -> None:
        prepare = functools.partial(_prepare, special)
        work = Work("the request's chat template", prepare, TIMEOUT_S, 5 * TIMEOUT_S, MEMORY_BYTES)
        self._process = LimitedPool(work, size)

    def render(self, source: str, conversation: Conversation) -> str:
        """Render the prompt text. Raises InvalidRequest when the template is broken, refuses, or takes too much."""
        try:
            return self._process.call(msgspec.msgpack.encode(_Call(source, conversation)))
        except (Refusal, OverflowError, RecursionError) as error:
            raise InvalidRequest(str(error), "chat_template", "chat_template_error") from error

    def close(self) -> None:
        """End the process. A later rendering would start it again."""
        self._process.close()


def _prepare(special: dict[str, str]) -> Handler:
    compiled = functools.lru_cache(MAX_COMPILED)(functools.partial(ChatTemplate, special=special))
    return functools.partial(_render, compiled)


def _render(compiled: Callable[[str], ChatTemplate], data: bytes) -> str:
    call = msgspec.msgpack.decode(data, type=_Call)
    try:
        text = compiled(call.source).render(call.conversation)
    except ChatTemplateError as error:
        raise Refusal(str(error)) from error
    if len(text) > MAX_CHARS:
        raise Refusal(f"the chat template made {len(text)} characters, more than the limit of {MAX_CHARS}")
    return text
