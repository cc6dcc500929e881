"""Header by which a router asks for an answer that another replica can continue, and says where it stopped.

A replica that offers this names its model in the same header of its answer, and sends a comment with the journal of
the tokens before the events that follow from them (pipeline/journal.py). To continue, the router sends the same request
with the journal before the body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import InvalidRequest, PayloadTooLarge, RequestError
from ..errors import error_response
from .chance import CHANCE, Chance
from .middleware import header

HEADER = b"x-neuronserve-resume"
JOURNAL = b": journal "  # begins the comment; the rest of its line is an entry
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Content of a request's header."""

    key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]  # all that is random in the answer follows from it
    created: _Count  # time of the answer in Unix seconds
    fingerprint: str = ""  # of the model that began the answer; "" = nothing has begun
    num_journal_bytes: _Count = 0  # at the beginning of the body
    num_events: _Count = 0  # that the client has, comments left out


def encoded(resume: Resume) -> bytes:
    """Return the header's value."""
    return msgspec.json.encode(resume)


def decoded(value: bytes) -> Resume:
    """Read the header's value. Raises InvalidRequest."""
    try:
        return msgspec.json.decode(value, type=Resume)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{HEADER.decode()} is {value[:80]!r}: {error}", HEADER.decode()) from error


@dataclass(frozen=True, slots=True)
class Resumed:
    """A request that a router may continue elsewhere, with the journal of the replicas before this one."""

    asked: Resume
    journal: bytes = b""


class Resuming:
    """Reads the header and the journal of a request into `resumed` of its state."""

    def __init__(self, app: ASGIApp, max_journal_bytes: int) -> None:
        self._app, self._most = app, max_journal_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        value = header(scope, HEADER) if scope["type"] == "http" else None
        if value is None:
            await self._app(scope, receive, send)
            return
        try:
            asked = decoded(value)
            journal, rest = await self._read(receive, asked.num_journal_bytes)
        except RequestError as error:
            await error_response(error, scope["path"])(scope, receive, send)
            return
        scope.setdefault("state", {})["resumed"] = Resumed(asked, journal)
        scope = {**scope, "headers": [_shorter(pair, len(journal)) for pair in scope["headers"]]}
        token = CHANCE.set(Chance(asked.key, asked.created))
        try:
            await self._app(scope, _after(rest, receive), send)
        finally:
            CHANCE.reset(token)

    async def _read(self, receive: Receive, num_bytes: int) -> tuple[bytes, list[Message]]:
        """Return the journal, and the message with what follows it. Raises RequestError."""
        if num_bytes > self._most:
            raise PayloadTooLarge(f"The journal has {num_bytes} bytes; this server reads at most {self._most}.")
        data, has_more = b"", True
        while len(data) < num_bytes and has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            data, has_more = data + message.get("body", b""), message.get("more_body", False)
        if len(data) < num_bytes:
            raise InvalidRequest(f"The body has {len(data)} bytes, but its journal {num_bytes}.", HEADER.decode())
        rest = {"type": "http.request", "body": data[num_bytes:], "more_body": has_more}
        return data[:num_bytes], [rest] if num_bytes else []


def _shorter(pair: tuple[bytes, bytes], num_bytes: int) -> tuple[bytes, bytes]:
    name, value = pair
    return (name, b"%d" % (int(value) - num_bytes)) if name == b"content-length" else pair


def _after(first: list[Message], receive: Receive) -> Receive:
    async def received() -> Message:
        return first.pop() if first else await receive()

    return received
