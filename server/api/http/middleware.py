"""ASGI middleware around the whole application: request ids, body sizes, draining. Parses no body."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.config import MAX_ID_CHARS
from server.api.errors import error_response
from server.errors import PayloadTooLarge

# A client that sends somewhat too much is read to the end, so that it can read the refusal.
POLITE_FACTOR = 4
_REQUEST_ID = re.compile(rb"[!-~]{1,%d}" % MAX_ID_CHARS)


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that (lower-case) name."""
    return next((value for key, value in scope["headers"] if key == name), None)


class RequestIds:
    """Sets the request id to the client's X-Request-Id, or to a new one, and sends it back."""

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
    """Answers with `Connection: close` while the server drains, so that clients go to another one for the next request.

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


class BodyLimit:
    """Refuses bodies above a limit: by Content-Length before reading, else as soon as too much has come."""

    def __init__(self, app: ASGIApp, max_bytes: int, of_paths: Mapping[str, int]) -> None:
        """`of_paths`: the limits of paths that have others."""
        self._app = app
        self._max = max_bytes
        self._of_paths = of_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared, most = header(scope, b"content-length"), self._of_paths.get(scope["path"], self._max)
        if declared is not None and int(declared) > most:
            if int(declared) <= POLITE_FACTOR * most and header(scope, b"expect") is None:
                await self._discard(receive, most)
            await error_response(_too_large(f"{int(declared)} bytes", most), scope["path"])(scope, receive, send)
            return
        await self._app(scope, self._counting(receive, most), send)

    def _counting(self, receive: Receive, most: int) -> Receive:
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                if message.get("more_body", False):
                    await self._discard(receive, most)
                raise _too_large(f"more than {most} bytes", most)
            return message

        return counted

    async def _discard(self, receive: Receive, most: int) -> None:
        read = 0
        while read <= POLITE_FACTOR * most:
            message = await receive()
            read += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                return


def _too_large(size: str, most: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is {size}; this server reads at most {most} bytes.")
