"""ASGI middleware around the whole application: request ids, API keys, body sizes, draining. Parses no body."""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.config import MAX_ID_CHARS
from server.api.errors import Unauthorized, error_response
from server.errors import PayloadTooLarge

# A client that sends somewhat too much is read to the end, so that it can read the refusal.
POLITE_FACTOR = 4
GUARDED = frozenset(
    {"/invocations", "/reset_prefix_cache", "/server_info", "/start_profile", "/stop_profile", "/tokenizer_info"}
    | {"/admin/restart-engine"}
)
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


class ApiKeys:
    """Requires an API key under /v1 and for the operations in `GUARDED`.

    Digests are compared in constant time, and with every key even after a match.
    """

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_guarded(scope):
            number = self._number(header(scope, b"authorization") or b"")
            if number is None:
                error = Unauthorized("A valid API key is needed: send it as 'Authorization: Bearer KEY'.")
                await error_response(error)(scope, receive, send)
                return
            scope.setdefault("state", {})["api_key"] = str(number)
        await self._app(scope, receive, send)

    def _is_guarded(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] == "OPTIONS":
            return False
        path: str = scope["path"]
        return path == "/v1" or path.startswith("/v1/") or path in GUARDED

    def _number(self, authorization: bytes) -> int | None:
        """Position of the key among those that are set, from 1; None when it is not one of them."""
        scheme, _, key = authorization.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return matches.index(True) + 1 if scheme.lower() == b"bearer" and any(matches) else None


class BodyLimit:
    """Refuses bodies above `max_bytes`: by Content-Length before reading, else as soon as too much has come."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = header(scope, b"content-length")
        if declared is not None and int(declared) > self._max:
            if int(declared) <= POLITE_FACTOR * self._max and header(scope, b"expect") is None:
                await self._discard(receive)
            await error_response(self._refusal(f"{int(declared)} bytes"))(scope, receive, send)
            return
        await self._app(scope, self._counting(receive), send)

    def _counting(self, receive: Receive) -> Receive:
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max:
                if message.get("more_body", False):
                    await self._discard(receive)
                raise self._refusal(f"more than {self._max} bytes")
            return message

        return counted

    async def _discard(self, receive: Receive) -> None:
        read = 0
        while read <= POLITE_FACTOR * self._max:
            message = await receive()
            read += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                return

    def _refusal(self, size: str) -> PayloadTooLarge:
        return PayloadTooLarge(f"The body is {size}; this server reads at most {self._max} bytes.")
