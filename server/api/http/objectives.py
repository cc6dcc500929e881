"""Objectives of latency, tenant and session of a request, in the headers of llm-d's and vLLM's routers."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from starlette.datastructures import Headers

from ...errors import InvalidRequest

TTFT_HEADER = "x-llm-d-slo-ttft-ms"
TPOT_HEADER = "x-llm-d-slo-tpot-ms"
FAIRNESS_HEADER = "x-llm-d-inference-fairness-id"
SESSION_HEADER = "x-session-id"
MOST_MS = 86_400_000
MAX_ID_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Objectives:
    """Values of the headers; None and "" = not sent."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    fairness_id: str = ""
    session: str = ""


NO_OBJECTIVES = Objectives()


def objectives_of(headers: Headers) -> Objectives:
    """Return what the headers say. Raises InvalidRequest, which names the header."""
    ids = _id(headers, FAIRNESS_HEADER), _id(headers, SESSION_HEADER)
    return Objectives(_milliseconds(headers, TTFT_HEADER), _milliseconds(headers, TPOT_HEADER), *ids)


def _id(headers: Headers, name: str) -> str:
    text = headers.get(name, "")
    if len(text) > MAX_ID_LENGTH:
        raise InvalidRequest(f"{name} has {len(text)} characters: {MAX_ID_LENGTH} are the most.", name)
    return text


def _milliseconds(headers: Headers, name: str) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (isfinite(value) and 0 < value <= MOST_MS):
        limit = f"it must be a number of milliseconds above 0, at most {MOST_MS}."
        raise InvalidRequest(f"{name} is {text[:20]!r}: {limit}", name)
    return value
