"""Origin of a request: facts of the HTTP layer that go into metrics, traces and routing, never into the answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from ...errors import InvalidRequest
from ...link.engines import RANK_HEADER
from ..keys.ring import Caller, anyone
from .access_log import Served
from .objectives import NO_OBJECTIVES, Objectives, objectives_of
from .resume import Resumed
from .scripted import Scripted

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
    data_parallel_rank: int | None = None  # the engine it names; None = the server chooses
    caller: Caller = field(default_factory=anyone)
    has_device_usage: bool = False
    objectives: Objectives = NO_OBJECTIVES
    resumed: Resumed | None = None  # None: no router asks to continue the answer elsewhere
    scripted: Scripted | None = None  # the output, where a test has written it
    served: Served = field(default_factory=Served)  # filled as tokens are generated


def origin_of(request: Request) -> Origin:
    """Return the origin of a request that passed the middleware of `server/api/app.py`. Raises InvalidRequest."""
    return Origin(
        request.state.request_id,
        request.state.arrival_time,
        {name: request.headers[name] for name in TRACE_HEADERS if name in request.headers},
        _rank(request),
        caller_of(request),
        _has_device_usage(request),
        objectives_of(request.headers),
        getattr(request.state, "resumed", None),
        getattr(request.state, "scripted", None),
        request.state.served,
    )


def _rank(request: Request) -> int | None:
    text = request.headers.get(RANK_HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_RANK_DIGITS):
        raise InvalidRequest(f"{RANK_HEADER} is {text[:20]!r}: it must be the number of an engine.", RANK_HEADER)
    return int(text)


def _has_device_usage(request: Request) -> bool:
    given = request.headers.get(DEVICE_USAGE_HEADER, "")
    value = _YES_NO.get(given.strip().lower())
    if value is None:
        raise InvalidRequest(f"{DEVICE_USAGE_HEADER} must be true or false, not {given[:80]!r}.", DEVICE_USAGE_HEADER)
    return value


def caller_of(request: Request) -> Caller:
    """Return the caller that the middleware of `server/api/app.py` found."""
    caller: Caller = request.state.caller
    return caller


async def the_caller(request: Request) -> Caller:
    """FastAPI dependency: `caller_of`. Async, because FastAPI calls other functions in a thread."""
    return caller_of(request)


CallerOf = Annotated[Caller, Depends(the_caller)]
