"""Sending one request and keeping its record. What goes wrong with it becomes the record's failure, no exception."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from loadtests.http_client import ConnectFailed, Disconnected, Exchange, HttpClient, MalformedHttp
from loadtests.records import FailureKind, RequestRecord
from loadtests.response import BadResponse, StreamedResponse

_KINDS: dict[type[Exception], FailureKind] = {
    ConnectFailed: "connect",
    Disconnected: "disconnected",
    MalformedHttp: "malformed",
    TimeoutError: "timeout",  # before its base class
    OSError: "disconnected",
}


@dataclass(frozen=True, slots=True)
class Wire:
    """How the requests of a run travel. `origin` is the run's start on time.monotonic."""

    http: HttpClient
    path: str
    timeout_s: float
    is_exact: bool  # another number of tokens than asked for is a failure
    origin: float

    def now(self) -> float:
        """Seconds since the run's start."""
        return time.monotonic() - self.origin


class _Streamed(Exchange):
    """Gives the body to an answer: as a stream, unless status or type say that it is none."""

    def __init__(self, answer: StreamedResponse) -> None:
        super().__init__()
        self._answer = answer

    def on_body(self, chunk: bytes, now: float) -> None:
        if self.status == 200 and self.content_type.startswith("text/event-stream"):
            self._answer.feed(chunk, now)
        else:
            self._answer.feed_plain(chunk)


async def send(wire: Wire, record: RequestRecord, body: bytes) -> StreamedResponse:
    """Send `body` now, fill `record` from the answer, and give the answer. Raises only CancelledError."""
    answer = StreamedResponse()
    record.sent_s = wire.now()
    try:
        await _run(wire, record, body, answer)
        answer.fill(record, wire.origin)
        answer.check_end()
        answer.check_count(record, wire.is_exact)
    except BadResponse as error:
        answer.fill(record, wire.origin)
        _fail(wire, record, error.kind, str(error))
    except tuple(_KINDS) as error:
        answer.fill(record, wire.origin)
        kind = next(kind for cause, kind in _KINDS.items() if isinstance(error, cause))
        _fail(wire, record, kind, f"no whole answer in {wire.timeout_s:g} s" if kind == "timeout" else str(error))
    except asyncio.CancelledError:
        answer.fill(record, wire.origin)
        _fail(wire, record, "cancelled", "the run was interrupted")
        raise
    return answer


async def _run(wire: Wire, record: RequestRecord, body: bytes, answer: StreamedResponse) -> None:
    message = wire.http.message("POST", wire.path, body, f"X-Request-Id: {record.request_id}\r\n")
    exchange = _Streamed(answer)
    async with asyncio.timeout(wire.timeout_s):
        await wire.http.run(message, exchange)
    record.http_status = exchange.status
    answer.check_status(exchange.status, exchange.content_type)


def _fail(wire: Wire, record: RequestRecord, kind: FailureKind, message: str) -> None:
    record.failure, record.error, record.end_s = kind, message, wire.now()
