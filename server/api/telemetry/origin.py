"""Where a generation comes from: what the HTTP layer knows of its request and the answer must not depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

TRACE_HEADERS = ("traceparent", "tracestate")  # W3C Trace Context


@dataclass(frozen=True, slots=True)
class Origin:
    """One HTTP request; `arrival_time` in seconds of the monotonic clock, before its body was read."""

    request_id: str
    arrival_time: float
    trace_headers: dict[str, str] = field(default_factory=dict)


def origin_of(request: Request) -> Origin:
    """The origin of a request that has come through the middleware of `server/api/app.py`."""
    headers = {name: request.headers[name] for name in TRACE_HEADERS if name in request.headers}
    return Origin(request.state.request_id, request.state.arrival_time, headers)
