"""Faults in the middle of an answer: they change the messages that an application sends."""

from __future__ import annotations

import asyncio
import json

from starlette.types import Message, Scope, Send

from ...server.api.anthropic_error import anthropic_error_bytes
from ...server.api.errors import ANTHROPIC_PATH, error_bytes
from ...server.api.http.connection_end import end_connection
from ...server.errors import GenerationFailed
from .rules import Cut, ErrorEvent, Injection, Latency, MalformedChunk, Slow, TruncatedJson
from .sse import EventSplitter, has_output, is_comment

BROKEN = b'data: {"id": "chatcmpl-broken", "choices": [{"index": 0, "delta": {"content": "\n\n'
RESPONSES_PATH = "/v1/responses"
MESSAGE = "This error was injected on purpose; the server is well."


def disturbed(injection: Injection, scope: Scope, send: Send) -> Send:
    """Return `send` with the fault; `scope` is that of the request."""
    rule = injection.rule
    if isinstance(rule, TruncatedJson):
        return TruncatedBody(rule.keep, send)
    return DisturbedStream(injection, scope, send)


class TruncatedBody:
    """Holds back a whole answer until its end, then sends the kept share of it."""

    def __init__(self, keep: float, send: Send) -> None:
        self._keep, self._send = keep, send
        self._start: Message = {}
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body += message.get("body", b"")
        if message.get("more_body", False):
            return
        kept = self._body[: int(self._keep * len(self._body))]
        others = [pair for pair in self._start["headers"] if pair[0].lower() != b"content-length"]
        headers = [*others, (b"content-length", str(len(kept)).encode())]
        await self._send({**self._start, "headers": headers})
        await self._send({**message, "body": kept})


class DisturbedStream:
    """Passes on a stream event by event, and counts its tokens up to the fault.

    A stream that is too short gets the fault after its last token. An answer without a stream can only be slow.
    """

    def __init__(self, injection: Injection, scope: Scope, send: Send) -> None:
        self._rule, self._random = injection.rule, injection.random
        self._scope, self._send = scope, send
        self._splitter = EventSplitter()
        self._num_tokens = self._num_events = 0
        self._is_stream = False
        self._is_due = not isinstance(injection.rule, Slow)
        self._has_ended = False  # later messages of the application are dropped

    async def __call__(self, message: Message) -> None:
        if self._has_ended:
            return
        if message["type"] == "http.response.start":
            self._is_stream = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
            if not self._is_stream:
                await self._delay()
            await self._send(message)
            return
        if not self._is_stream:
            await self._send(message)
            return
        for event in self._splitter.feed(message.get("body", b"")):
            await self._event(event)
            if self._has_ended:
                return
        if not message.get("more_body", False):
            await self._send({**message, "body": self._splitter.rest()})

    async def _event(self, event: bytes) -> None:
        if is_comment(event):
            await self._chunk(event)
            return
        is_token = has_output(event)
        if self._is_due and self._is_reached(is_token):
            self._is_due = False
            await self._disturb()
        if self._has_ended:
            return
        if is_token:
            await self._delay()
            self._num_tokens += 1
        self._num_events += 1
        await self._chunk(event)

    def _is_reached(self, is_token: bool) -> bool:
        after: int = getattr(self._rule, "after_tokens", 0)
        return self._num_tokens >= after if is_token else self._num_tokens > 0

    async def _disturb(self) -> None:
        match self._rule:
            case MalformedChunk():
                await self._chunk(BROKEN)
            case ErrorEvent():
                await self._chunk(self._error_event())
                await self._end()
            case Cut(how="end"):
                await self._end()
            case Cut(how="close" | "reset" as how):
                self._has_ended = True
                end_connection(self._scope, how)

    async def _delay(self) -> None:
        if isinstance(self._rule, Slow):
            latency = self._rule.first_token if self._num_tokens == 0 else self._rule.token
            await asyncio.sleep(latency.draw(self._random) if isinstance(latency, Latency) else latency)

    def _error_event(self) -> bytes:
        error = GenerationFailed(MESSAGE, code="injected_fault")
        path: str = self._scope["path"]
        if path.startswith(ANTHROPIC_PATH):
            return b"event: error\ndata: " + anthropic_error_bytes(error) + b"\n\n"
        if path.startswith(RESPONSES_PATH):
            said = {"code": error.code, "message": MESSAGE, "param": None, "sequence_number": self._num_events}
            return b"event: error\ndata: " + json.dumps({"type": "error", **said}).encode() + b"\n\n"
        return b"data: " + error_bytes(error) + b"\n\n"

    async def _end(self) -> None:
        """End the answer properly; the application then sees a disconnected client."""
        self._has_ended = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunk(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
