"""Where a generation comes from: what the HTTP layer knows of its request and the answer must not depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from server.engine.groups import RANK_HEADER
from server.errors import InvalidRequest

MAX_RANK_DIGITS = 6
TRACE_HEADERS = ("traceparent", "tracestate")  # W3C Trace Context


@dataclass(frozen=True, slots=True)
class Origin:
    """One HTTP request; `arrival_time` in seconds of the monotonic clock, before its body was read."""

    request_id: str
    arrival_time: float
    trace_headers: dict[str, str] = field(default_factory=dict)
    data_parallel_rank: int | None = None  # the engine it asks for; None = the server chooses


def origin_of(request: Request) -> Origin:
    """The origin of a request that has come through the middleware of `server/api/app.py`. Raises InvalidRequest."""
    headers = {name: request.headers[name] for name in TRACE_HEADERS if name in request.headers}
    return Origin(request.state.request_id, request.state.arrival_time, headers, _rank(request))


def _rank(request: Request) -> int | None:
    text = request.headers.get(RANK_HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_RANK_DIGITS):
        raise InvalidRequest(f"{RANK_HEADER} is {text[:20]!r}: it must be the number of an engine.", RANK_HEADER)
    return int(text)
