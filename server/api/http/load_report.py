"""Load reports in answers (ORCA, Open Request Cost Aggregation), for load balancers that ask with a header."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...link.groups import EngineGroups
from .middleware import header

ASKED = b"endpoint-load-metrics-format"
GIVEN = b"endpoint-load-metrics"


def load_of(engines: EngineGroups) -> dict[str, float]:
    """Return the metrics that vLLM reports, over all engines; empty before the first step."""
    pairs = [(client.report, client.num_open) for client in engines.clients]
    reports = [(report, num_open) for report, num_open in pairs if report is not None]
    if not reports:
        return {}
    num_blocks = sum(report.num_blocks - 1 for report, _ in reports)  # block 0 is padding
    num_free = sum(report.num_free_blocks for report, _ in reports)
    num_waiting = sum(max(report.num_waiting, num_open - report.num_running) for report, num_open in reports)
    return {"kv_cache_usage_perc": 1 - num_free / num_blocks, "num_requests_waiting": float(num_waiting)}


def written(metrics: Mapping[str, float], form: str) -> str | None:
    """Return the header's value in the form `text` or `json`; None for other forms (ORCA's `bin` is unused)."""
    if form == "text":
        return "TEXT " + ", ".join(f"named_metrics.{name}={value:g}" for name, value in metrics.items())
    return f"JSON {json.dumps({'named_metrics': dict(metrics)})}" if form == "json" else None


class LoadReports:
    """Adds the load at the beginning of an answer to answers of requests that ask for it."""

    def __init__(self, app: ASGIApp, read: Callable[[], Mapping[str, float]]) -> None:
        self._app, self._read = app, read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        requested = header(scope, ASKED) if scope["type"] == "http" else None
        if requested is None:
            await self._app(scope, receive, send)
            return
        form = requested.decode("latin-1").strip().lower()

        async def reporting(message: Message) -> None:
            if message["type"] == "http.response.start":
                value = written(metrics, form) if (metrics := self._read()) else None
                if value is not None:
                    message["headers"] = [*message.get("headers", []), (GIVEN, value.encode())]
            await send(message)

        await self._app(scope, receive, reporting)
