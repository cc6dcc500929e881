"""The router's ASGI application: its own health and metrics; all other requests are answered by replicas."""

from __future__ import annotations

from prometheus_client import generate_latest
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

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
from .metrics import Metrics
from .upstream import Lost

READY = frozenset({"/health", "/health/ready", "/ping"})
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Proxy:
    """Answers each request. `num_open` counts those that replicas answer now."""

    def __init__(self, config: RouteConfig, fleet: Fleet) -> None:
        self.num_open = 0
        self.is_draining = False
        self._fleet, self._metrics = fleet, Metrics(fleet)
        self._max_body_bytes = config.max_body_bytes
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
        if request.is_for_all:
            await self._ask_all(request, send)
        else:
            await Exchange(self._fleet, self._metrics, request, scope, send).run()

    async def _ask_all(self, request: Asked, send: Send) -> None:
        """Give an operator's command to each replica that is up; answer with the first refusal, or the last answer."""
        await self._fleet.first()
        status, headers, body = 0, list[tuple[bytes, bytes]](), b""
        for replica in self._fleet.up:
            try:
                async with replica.connection() as upstream:
                    await upstream.ask(*request.message(replica.address, Events()))
                    status, headers, body = upstream.status, upstream.headers, b""
                    while data := await upstream.read():
                        body += data
            except Lost as error:
                replica.suspect()
                status, headers, body = 502, [], str(error).encode()
            if status >= 400:
                break
        response = Response(body, status)
        response.raw_headers += [pair for pair in headers if pair[0] in (b"content-type", b"www-authenticate")]
        await send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": body})

    def _own(self, path: str) -> ASGIApp | None:
        """Return the answer of a path that is the router's own."""
        if path == "/health/live":
            return JSONResponse({"status": "ready"})
        if path in READY:
            status = "draining" if self.is_draining else "ready" if self._fleet.up else "loading"
            return JSONResponse({"status": status}, 200 if status == "ready" else 503)
        if path == "/metrics":
            return Response(generate_latest(self._metrics.registry), media_type=TEXT_TYPE)
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


def build_app(config: RouteConfig, proxy: Proxy) -> ASGIApp:
    """Return the application with its middleware; the last one is the outermost."""
    app: ASGIApp = HeadAsGet(proxy)
    origins = config.allowed_origins
    if origins:
        app = CORSMiddleware(app, origins, ["GET", "POST", "DELETE", "OPTIONS"], ["*"], expose_headers=["X-Request-Id"])
    app = CrossSite(app, config.allowed_hosts, origins, is_operators=lambda path: scopes_of(path) == ADMIN)
    return RequestIds(CloseWhileDraining(app, lambda: proxy.is_draining))
