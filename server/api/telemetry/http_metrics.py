"""Counts and durations of HTTP answers. The outermost middleware, so that refusals of the others are counted too."""

from __future__ import annotations

from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...clock import Clock
from ..http.access_log import Served, write_access
from .instruments import Histogram, Instruments

# Polled by machines so often that they would hide users' requests.
UNCOUNTED = frozenset({"/metrics", "/health", "/health/live", "/health/ready", "/load", "/ping", "/version"})


class HttpMetrics:
    """Counters and durations of answers. `in_flight` is the number of open answers, without `UNCOUNTED` paths."""

    def __init__(self, instruments: Instruments, clock: Clock) -> None:
        self.clock = clock
        self.in_flight = 0
        self._instruments = instruments
        self._fine = instruments.histogram("http_request_duration_highr_seconds")
        self._children: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}

    def record(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count an answer that is complete or whose client has left."""
        key = (handler, method, f"{status // 100}xx")
        if key not in self._children:
            self._children[key] = (
                self._instruments.counter("http_requests", handler=handler, method=method, status=key[2]),
                self._instruments.histogram("http_request_duration_seconds", handler=handler, method=method),
            )
        count, duration = self._children[key]
        count.inc()
        duration.observe(seconds)
        self._fine.observe(seconds)


class HttpObserver:
    """Middleware that gives each request its arrival time, and records its end in `metrics` and the access log."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, paths: frozenset[str]) -> None:
        """`paths` are the paths without parameters: requests refused by other middleware never reach the router."""
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = self._metrics.clock.now()
        scope.setdefault("state", {}).update(arrival_time=begin, served=Served())
        if scope["path"] in UNCOUNTED:
            await self._app(scope, receive, send)
            return
        status = 500  # for an answer that never began

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.in_flight += 1
        try:
            await self._app(scope, receive, noting)
        finally:
            self._metrics.in_flight -= 1
            seconds = self._metrics.clock.now() - begin
            self._metrics.record(self._handler(scope), scope["method"], status, seconds)
            write_access(scope, status, seconds)

    def _handler(self, scope: Scope) -> str:
        """Return the path, or the route's pattern if it has parameters, so that clients cannot make up label values."""
        path: str = scope["path"]
        return path if path in self._paths else getattr(scope.get("route"), "path", "none")
