"""ASGI middleware around the whole application: request ids, HEAD, draining. Reads no body."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..config import MAX_ID_CHARS

_REQUEST_ID = re.compile(rb"[!-~]{1,%d}" % MAX_ID_CHARS)


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of that lower-case name."""
    return next((value for key, value in scope["headers"] if key == name), None)


class RequestIds:
    """Sets the request id to the client's X-Request-Id or a new one, and returns it in the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = header(scope, b"x-request-id")
        request_id = given if given and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode("ascii")

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id)]
            await send(message)

        await self._app(scope, receive, with_id)


class HeadAsGet:
    """Answers HEAD as GET; the server's HTTP protocol, which knows the real method, leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send)


class CloseWhileDraining:
    """Answers with `Connection: close` while the server drains, so that clients send the next request elsewhere.

    A response that began before draining keeps its connection open.
    """

    def __init__(self, app: ASGIApp, is_draining: Callable[[], bool]) -> None:
        self._app = app
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._is_draining():
                kept = [(name, value) for name, value in message.get("headers", []) if name.lower() != b"connection"]
                message["headers"] = [*kept, (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, closing)
