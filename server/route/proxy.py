"""The router's ASGI application: its own health and metrics; all other requests are answered by replicas."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import generate_latest
from prometheus_client.registry import Collector
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..api.errors import as_request_error, error_response
from ..api.http.body_limit import BODIES_IN_ALL, BodyMemory
from ..api.http.cross_site import CrossSite
from ..api.http.event_stream import until_disconnect
from ..api.http.middleware import CloseWhileDraining, HeadAsGet, RequestIds, header
from ..api.keys.guard import ADMIN, scopes_of
from ..errors import PayloadTooLarge
from .asked import Asked, asked
from .config import RouteConfig
from .events import Events
from .exchange import Exchange
from .fleet import Fleet
from .metrics import Gathered, Metrics
from .upstream import Lost

READY = frozenset({"/health", "/health/ready", "/ping"})
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Answered(NamedTuple):
    """A whole answer of a replica."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    replica: str


class Proxy:
    """Answers each request. `num_open` counts those that replicas answer now."""

    def __init__(self, config: RouteConfig, fleet: Fleet) -> None:
        self.num_open = 0
        self.fleet, self._metrics = fleet, Metrics(fleet)
        self._max_body_bytes, self._shows_replicas = config.max_body_bytes, config.shows_replicas
        most = BODIES_IN_ALL * config.max_body_bytes
        self._memory = BodyMemory(most, most)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (own := self._own(scope["path"])) is not None:
            await own(scope, receive, send)
            return
        self.num_open += 1
        num_bytes = 0
        try:
            body = await self._read(scope, receive)
            self._memory.take("", len(body))
            num_bytes = len(body)
            await until_disconnect(receive, self._answer(asked(scope, body), scope, send))
        except ClientDisconnect:
            pass
        except Exception as error:
            await error_response(as_request_error(error), scope["path"])(scope, receive, send)
        finally:
            self.num_open -= 1
            self._memory.give_back("", num_bytes)

    async def _answer(self, request: Asked, scope: Scope, send: Send) -> None:
        if request.path == "/metrics" and request.method == "GET":
            await (await self._measured(request))(scope, nothing, send)
        elif request.is_for_all:
            await _whole((await self._ask_all(request))[-1])(scope, nothing, send)
        else:
            await Exchange(self.fleet, self._metrics, request, scope, send).run()

    async def _measured(self, request: Asked) -> Response:
        """Return the metrics of the router, and those of its own replicas, which may refuse the caller."""
        registry: Collector = self._metrics.registry
        if self._shows_replicas and (self.fleet.up or not self.fleet.is_on_demand):
            answers = await self._ask_all(request)
            if answers[-1].status >= 400:
                return _whole(answers[-1])
            registry = Gathered(registry, {each.replica: each.body.decode() for each in answers})
        return Response(generate_latest(registry), media_type=TEXT_TYPE)

    async def _ask_all(self, request: Asked) -> list[Answered]:
        """Give a request to each replica that is up, up to the first that refuses it; return the answers."""
        await self.fleet.first()
        answers: list[Answered] = []
        for replica in self.fleet.up:
            try:
                async with replica.connection() as upstream:
                    await upstream.ask(*request.message(replica.address, Events()))
                    body = b""
                    while data := await upstream.read():
                        body += data
                    answers.append(Answered(upstream.status, upstream.headers, body, replica.address.name))
            except Lost as error:
                replica.suspect()
                answers.append(Answered(502, [], str(error).encode(), replica.address.name))
            if answers[-1].status >= 400:
                break
        return answers

    def _own(self, path: str) -> ASGIApp | None:
        """Return the answer of a path that is the router's own."""
        if path == "/health/live":
            return JSONResponse({"status": "ready"})
        if path in READY:
            return JSONResponse({"status": self.fleet.phase}, 200 if self.fleet.phase == "ready" else 503)
        return None

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """Read the body. Raises PayloadTooLarge and ClientDisconnect."""
        too_large = PayloadTooLarge(f"The body is larger than the {self._max_body_bytes} bytes that this router reads.")
        if int(header(scope, b"content-length") or 0) > self._max_body_bytes:
            raise too_large
        parts, num_bytes = list[bytes](), 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            num_bytes += len(parts[-1])
            if num_bytes > self._max_body_bytes:
                raise too_large
            if not message.get("more_body", False):
                return b"".join(parts)


def _whole(answer: Answered) -> Response:
    response = Response(answer.body, answer.status)
    response.raw_headers += [pair for pair in answer.headers if pair[0] in (b"content-type", b"www-authenticate")]
    return response


async def nothing() -> Message:
    """Receive nothing: the request was read."""
    return {"type": "http.disconnect"}


def build_app(config: RouteConfig, proxy: Proxy) -> ASGIApp:
    """Return the application with its middleware; the last one is the outermost."""
    app: ASGIApp = HeadAsGet(proxy)
    origins = config.allowed_origins
    if origins:
        app = CORSMiddleware(app, origins, ["GET", "POST", "DELETE", "OPTIONS"], ["*"], expose_headers=["X-Request-Id"])
    app = CrossSite(app, config.allowed_hosts, origins, is_operators=lambda path: scopes_of(path) == ADMIN)
    return RequestIds(CloseWhileDraining(app, lambda: proxy.fleet.is_draining))
