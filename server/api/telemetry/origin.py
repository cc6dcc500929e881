"""Where a generation comes from: what the HTTP layer knows of its request and the answer must not depend on."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from server.api.telemetry.key_account import NO_KEY
from server.errors import InvalidRequest
from server.link.groups import RANK_HEADER

DEVICE_USAGE_HEADER = "X-Neuronserve-Usage"
MAX_RANK_DIGITS = 6
_YES_NO = {"": False, "false": False, "0": False, "true": True, "1": True}
TRACE_HEADERS = ("traceparent", "tracestate")  # W3C Trace Context


@dataclass(frozen=True, slots=True)
class Origin:
    """One HTTP request; `arrival_time` in seconds of the monotonic clock, before its body was read."""

    request_id: str
    arrival_time: float
    trace_headers: dict[str, str] = field(default_factory=dict)
    data_parallel_rank: int | None = None  # the engine it asks for; None = the server chooses
    api_key: str = NO_KEY  # a label that tells keys apart and does not tell the key
    wants_device_usage: bool = False


def origin_of(request: Request) -> Origin:
    """The origin of a request that has come through the middleware of `server/api/app.py`. Raises InvalidRequest."""
    return Origin(
        request.state.request_id,
        request.state.arrival_time,
        {name: request.headers[name] for name in TRACE_HEADERS if name in request.headers},
        _rank(request),
        getattr(request.state, "api_key", NO_KEY),
        _wants_device_usage(request),
    )


def _rank(request: Request) -> int | None:
    text = request.headers.get(RANK_HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_RANK_DIGITS):
        raise InvalidRequest(f"{RANK_HEADER} is {text[:20]!r}: it must be the number of an engine.", RANK_HEADER)
    return int(text)


def _wants_device_usage(request: Request) -> bool:
    asked = request.headers.get(DEVICE_USAGE_HEADER, "")
    wants = _YES_NO.get(asked.strip().lower())
    if wants is None:
        raise InvalidRequest(f"{DEVICE_USAGE_HEADER} must be true or false, not {asked[:80]!r}.", DEVICE_USAGE_HEADER)
    return wants
