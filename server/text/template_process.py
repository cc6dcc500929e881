"""Renders chat templates in limited processes.

A template belongs to the checkpoint and may be hostile or broken; a request that it fails on gets a 400.
"""

from __future__ import annotations

import functools

import msgspec

from neuronserve.server.errors import CheckpointError, InvalidRequest
from neuronserve.server.text.chat_template import ChatTemplate, ChatTemplateError, Conversation
from neuronserve.server.text.limited_process import Handler, LimitedPool, Refusal, Work

TIMEOUT_S = 2.0  # of one rendering; real templates take about a millisecond
MEMORY_BYTES = 1024 * 2**20  # address space of the process beyond what it starts with; Jinja takes little of it
MAX_CHARS = 32 * 2**20  # of the prompt text


class TemplateProcess:
    """Renders conversations, up to `size` at a time. Blocking and safe to call from several threads."""

    def __init__(self, source: str, special: dict[str, str], timeout_s: float = TIMEOUT_S, size: int = 1) -> None:
        prepare = functools.partial(_compile, source, special)
        self._process = LimitedPool(Work("the chat template", prepare, timeout_s, 5 * timeout_s, MEMORY_BYTES), size)
        self.source = source

    @property
    def pid(self) -> int | None:
        """Id of the process, None while there is none."""
        return self._process.pid

    def start(self) -> None:
        """Start the process and compile the template. Raises CheckpointError when that cannot be done."""
        try:
            self._process.start()
        except Refusal as error:
            raise CheckpointError("chat template", str(error)) from error

    def render(self, conversation: Conversation) -> str:
        """Render the prompt text. Raises InvalidRequest when the template refuses, or takes too much time or memory."""
        try:
            call = msgspec.msgpack.encode(conversation)
        except (OverflowError, RecursionError) as error:
            raise InvalidRequest(f"The messages cannot be given to the chat template: {error}.", "messages") from error
        try:
            return self._process.call(call)
        except Refusal as error:
            raise InvalidRequest(str(error), param="messages", code="chat_template_error") from error

    def close(self) -> None:
        """End the process. A later rendering would start it again."""
        self._process.close()


def _compile(source: str, special: dict[str, str]) -> Handler:
    try:
        return functools.partial(_render, ChatTemplate(source, special))
    except ChatTemplateError as error:
        raise Refusal(str(error)) from error


def _render(template: ChatTemplate, call: bytes) -> str:
    try:
        text = template.render(msgspec.msgpack.decode(call, type=Conversation))
    except ChatTemplateError as error:
        raise Refusal(str(error)) from error
    if len(text) > MAX_CHARS:
        raise Refusal(f"the chat template made {len(text)} characters, more than the limit of {MAX_CHARS}")
    return text
