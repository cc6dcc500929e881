"""Renders chat templates in limited processes: the checkpoint's own, and templates that requests bring.

Either may be hostile or broken. A request whose rendering fails gets a 400.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from ..errors import CheckpointError, InvalidRequest
from .chat_template import ChatTemplate, ChatTemplateError, TemplateInput
from .limited_pool import LimitedPool
from .limited_process import Handler, Refusal, Work

TIMEOUT_S = 2.0  # of one rendering; real templates take about a millisecond
REQUEST_TIMEOUT_S = 1.0  # of one rendering by a request's own template, compilation included
MEMORY_BYTES = 1024 * 2**20  # address space of the process beyond what it starts with; Jinja takes little of it
MAX_CHARS = 32 * 2**20  # of the prompt text
MAX_COMPILED = 16  # templates of requests that a process keeps


def _work(name: str, prepare: Callable[[], Handler], timeout_s: float) -> Work:
    return Work(name, prepare, timeout_s, 5 * timeout_s, MEMORY_BYTES, refusals=(ChatTemplateError,))


class TemplateProcess:
    """Renders by the checkpoint's template, up to `size` at a time. Blocking, and safe to call from several threads."""

    def __init__(self, source: str, special: dict[str, str], timeout_s: float = TIMEOUT_S, size: int = 1) -> None:
        self._pool = LimitedPool(
            _work("the chat template", functools.partial(_prepare, source, special), timeout_s), size
        )
        self.source = source

    @property
    def pid(self) -> int | None:
        """Id of the process; None while there is none."""
        return self._pool.pid

    def start(self) -> None:
        """Start the process and compile the template. Raises CheckpointError when that cannot be done."""
        try:
            self._pool.start()
        except Refusal as error:
            raise CheckpointError("chat template", str(error)) from error

    def render(self, given: TemplateInput) -> str:
        """Render the prompt text. Raises InvalidRequest when the template refuses, or takes too much time or memory."""
        try:
            call = msgspec.msgpack.encode(given)
        except (OverflowError, RecursionError) as error:
            raise InvalidRequest(f"The messages cannot be given to the chat template: {error}.", "messages") from error
        try:
            return self._pool.call(call)
        except Refusal as error:
            raise InvalidRequest(str(error), param="messages", code="chat_template_error") from error

    def close(self) -> None:
        """End the process. A later rendering starts it again."""
        self._pool.close()


class _RequestCall(msgspec.Struct, frozen=True):
    source: str
    given: TemplateInput


class RequestTemplates:
    """Renders by any template, up to `size` at a time. Blocking, and safe to call from several threads."""

    def __init__(self, special: dict[str, str], size: int = 1) -> None:
        prepare = functools.partial(_prepare_any, special)
        self._pool = LimitedPool(_work("the request's chat template", prepare, REQUEST_TIMEOUT_S), size)

    def render(self, source: str, given: TemplateInput) -> str:
        """Render the prompt text. Raises InvalidRequest when the template is broken, refuses, or takes too much."""
        try:
            return self._pool.call(msgspec.msgpack.encode(_RequestCall(source, given)))
        except (Refusal, OverflowError, RecursionError) as error:
            raise InvalidRequest(str(error), "chat_template", "chat_template_error") from error

    def close(self) -> None:
        """End the process. A later rendering starts it again."""
        self._pool.close()


def _prepare(source: str, special: dict[str, str]) -> Handler:
    return functools.partial(_render, ChatTemplate(source, special))


def _prepare_any(special: dict[str, str]) -> Handler:
    compiled = functools.lru_cache(MAX_COMPILED)(functools.partial(ChatTemplate, special=special))
    return functools.partial(_render_any, compiled)


def _render(template: ChatTemplate, call: bytes) -> str:
    return _limited(template.render(msgspec.msgpack.decode(call, type=TemplateInput)))


def _render_any(compiled: Callable[[str], ChatTemplate], call: bytes) -> str:
    request = msgspec.msgpack.decode(call, type=_RequestCall)
    return _limited(compiled(request.source).render(request.given))


def _limited(text: str) -> str:
    if len(text) > MAX_CHARS:
        raise ChatTemplateError(f"the chat template made {len(text)} characters, more than the limit of {MAX_CHARS}")
    return text
