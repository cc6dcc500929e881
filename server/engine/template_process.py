"""Runs the chat template in a small process of its own, with limits of time, memory and size.

A template belongs to the checkpoint and may be hostile or broken: what loops is killed, what grows meets a memory
limit, and the request that met it gets a 400. The process is started again for the next request.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import msgspec

from server.engine.chat_template import ChatTemplate, ChatTemplateError, Conversation
from server.errors import CheckpointError, InvalidRequest

TIMEOUT_S = 2.0  # of one rendering; real templates take about a millisecond
START_TIMEOUT_S = 60.0  # of the process itself, on a busy host
MEMORY_BYTES = 1024 * 2**20  # address space of the process; Python and Jinja take about 100 MiB of it
MAX_CHARS = 32 * 2**20  # of the prompt text


class _Reply(msgspec.Struct):
    text: str = ""
    error: str = ""


class TemplateProcess:
    """Renders conversations. Blocking and safe to call from several threads; one rendering at a time."""

    def __init__(self, source: str, special: dict[str, str], timeout_s: float = TIMEOUT_S) -> None:
        self._source = source
        self._special = special
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None

    def start(self) -> None:
        """Start the process and compile the template. Raises CheckpointError when that cannot be done."""
        with self._lock:
            try:
                self._ensure()
            except ChatTemplateError as error:
                raise CheckpointError("chat template", str(error)) from error

    def render(self, conversation: Conversation) -> str:
        """The prompt text. Raises InvalidRequest when the template refuses, takes too long or too much."""
        with self._lock:
            try:
                return self._ask(self._ensure(), msgspec.msgpack.encode(conversation), self._timeout_s)
            except ChatTemplateError as error:
                raise InvalidRequest(str(error), param="messages", code="chat_template_error") from error

    def close(self) -> None:
        """End the process. A later rendering would start it again."""
        with self._lock:
            self._kill()

    def _ensure(self) -> Connection[Any, Any]:
        if self._process is not None and self._connection is not None and self._process.is_alive():
            return self._connection
        self._kill()
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        args = (theirs, self._source, self._special)
        self._process = context.Process(target=_serve, args=args, name="chat-template", daemon=True)
        self._process.start()
        theirs.close()
        self._receive(self._connection, START_TIMEOUT_S, "the process of the chat template")
        self._receive(self._connection, 5 * self._timeout_s, "compiling the chat template")
        return self._connection

    def _ask(self, connection: Connection[Any, Any], call: bytes, timeout_s: float) -> str:
        try:
            connection.send_bytes(call)
        except OSError as error:
            self._kill()
            raise ChatTemplateError("the chat template ended its process") from error
        return self._receive(connection, timeout_s, "the chat template")

    def _receive(self, connection: Connection[Any, Any], timeout_s: float, what: str) -> str:
        try:
            if not connection.poll(timeout_s):
                self._kill()
                raise ChatTemplateError(f"{what} took more than {timeout_s:g} s")
            reply = msgspec.msgpack.decode(connection.recv_bytes(), type=_Reply)
        except (EOFError, OSError) as error:
            self._kill()
            raise ChatTemplateError("the chat template ended its process") from error
        if reply.error:
            raise ChatTemplateError(reply.error)
        return reply.text

    def _kill(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._connection = None


def _serve(connection: Connection[Any, Any], source: str, special: dict[str, str]) -> None:
    """The process: compile once, then answer until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(msgspec.msgpack.encode(_Reply()))  # started; compiling may already be a bomb
        try:
            template = ChatTemplate(source, special)
        except ChatTemplateError as error:
            connection.send_bytes(msgspec.msgpack.encode(_Reply(error=str(error))))
            return
        connection.send_bytes(msgspec.msgpack.encode(_Reply()))
        while True:
            conversation = msgspec.msgpack.decode(connection.recv_bytes(), type=Conversation)
            connection.send_bytes(msgspec.msgpack.encode(_render(template, conversation)))


def _render(template: ChatTemplate, conversation: Conversation) -> _Reply:
    try:
        text = template.render(conversation)
    except ChatTemplateError as error:
        return _Reply(error=str(error))
    if len(text) > MAX_CHARS:
        return _Reply(error=f"the chat template made {len(text)} characters, more than the limit of {MAX_CHARS}")
    return _Reply(text=text)
