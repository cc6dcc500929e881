"""Sending of one request. An error becomes the failure of its record, not an exception."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from .http_client import ConnectFailed, Disconnected, Exchange, HttpClient, MalformedHttp
from .records import FailureKind, RequestRecord
from .response import BadResponse, StreamedResponse

_KINDS: dict[type[Exception], FailureKind] = {
    ConnectFailed: "connect",
    Disconnected: "disconnected",
    MalformedHttp: "malformed",
    TimeoutError: "timeout",  # before its base class
    OSError: "disconnected",
}


@dataclass(frozen=True, slots=True)
class Wire:
    """Transport of a run's requests. `origin` is the run's start on time.monotonic."""

    http: HttpClient
    path: str
    timeout_s: float
    is_exact: bool  # the request fails unless it gets the requested number of tokens
    origin: float

    def now(self) -> float:
        """Return seconds since the run's start."""
        return time.monotonic() - self.origin


class _Streamed(Exchange):
    """Passes the body to a response, as a stream if its status and type say so."""

    def __init__(self, response: StreamedResponse) -> None:
        super().__init__()
        self._response = response

    def on_body(self, chunk: bytes, now: float) -> None:
        if self.status == 200 and self.content_type.startswith("text/event-stream"):
            self._response.feed(chunk, now)
        else:
            self._response.feed_plain(chunk)


async def send(wire: Wire, record: RequestRecord, body: bytes) -> StreamedResponse:
    """Send `body` now, fill `record` from the response, and return the response. Raises only CancelledError."""
    response = StreamedResponse()
    record.sent_s = wire.now()
    try:
        await _run(wire, record, body, response)
        response.fill(record, wire.origin)
        response.check_end()
        response.check_count(record, wire.is_exact)
    except BadResponse as error:
        response.fill(record, wire.origin)
        _fail(wire, record, error.kind, str(error))
    except tuple(_KINDS) as error:
        response.fill(record, wire.origin)
        kind = next(kind for cause, kind in _KINDS.items() if isinstance(error, cause))
        _fail(wire, record, kind, f"no whole answer in {wire.timeout_s:g} s" if kind == "timeout" else str(error))
    except asyncio.CancelledError:
        response.fill(record, wire.origin)
        _fail(wire, record, "cancelled", "the run was interrupted")
        raise
    return response


async def _run(wire: Wire, record: RequestRecord, body: bytes, response: StreamedResponse) -> None:
    message = wire.http.message("POST", wire.path, body, f"X-Request-Id: {record.request_id}\r\n")
    exchange = _Streamed(response)
    async with asyncio.timeout(wire.timeout_s):
        await wire.http.run(message, exchange)
    record.http_status = exchange.status
    response.check_status(exchange.status, exchange.content_type)


def _fail(wire: Wire, record: RequestRecord, kind: FailureKind, message: str) -> None:
    record.failure, record.error, record.end_s = kind, message, wire.now()
