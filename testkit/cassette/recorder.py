"""Recording proxy: it passes requests on to an endpoint, streams the answers back, and stores both."""

from __future__ import annotations

import logging
import time
from typing import Protocol

import httpx2
from starlette.types import Receive, Scope, Send

from ...server.api.errors import error_response
from ...server.api.http.connection_end import end_connection
from ...server.errors import RequestError
from .cassette import Recording, masked, recorded_request, recording

log = logging.getLogger("neuronserve.record")
HOP_HEADERS = frozenset(  # headers of one hop, and headers that httpx writes itself
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"host", "content-length", "accept-encoding", "expect"}
)


class UpstreamFailed(RequestError):
    """The endpoint cannot be reached."""

    status = 502
    kind = "server_error"
    code = "upstream_failed"


class Writer(Protocol):
    """Stores recordings."""

    def add(self, recording: Recording) -> None:
        """Store one. Raises OSError if the disk is full."""


class Recorder:
    """ASGI application. It stores an answer when it is complete, even if its client has disconnected."""

    def __init__(self, upstream: str, writer: Writer, client: httpx2.AsyncClient) -> None:
        """Take `upstream` with or without /v1 at its end; every path has it anyway."""
        self._upstream = upstream.rstrip("/").removesuffix("/v1")
        self._writer, self._client = writer, client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        query = scope["query_string"].decode("latin-1")
        url = self._upstream + scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        request = self._client.build_request(scope["method"], url, headers=_passed_on(scope), content=body)
        try:
            begin = time.monotonic()
            answer = await self._client.send(request, stream=True)
        except httpx2.HTTPError as error:
            failed = UpstreamFailed(f"The endpoint does not answer: {type(error).__name__}: {error}")
            await error_response(failed, scope["path"])(scope, receive, send)
            return
        try:
            await self._pass_back(scope, body, answer, begin, send)
        except httpx2.HTTPError as error:
            log.warning("answer not recorded: the endpoint ended it early: %s", error)
            end_connection(scope, "close")
        finally:
            await answer.aclose()

    async def _pass_back(self, scope: Scope, body: bytes, answer: httpx2.Response, begin: float, send: Send) -> None:
        headers = [(name.lower(), value) for name, value in answer.headers.raw if _is_of_answer(name)]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        data, chunks = b"", []
        async for chunk in answer.aiter_raw():
            data += chunk
            chunks.append((time.monotonic() - begin, len(data)))
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        sent = headers_of(scope)
        request = recorded_request(scope["method"], scope["path"], body, sent)
        self._writer.add(recording(request, answer.status_code, answer.headers, masked(data, sent), chunks))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        log.info("recorded %s %s: %d, %d bytes", scope["method"], scope["path"], answer.status_code, len(data))


async def read_body(receive: Receive) -> bytes:
    """Return the whole body of a request."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):  # the last message, or a disconnected client
            return b"".join(parts)


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers of a request, with lower-case names."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _passed_on(scope: Scope) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in scope["headers"] if name.decode("latin-1") not in HOP_HEADERS]
    return [*kept, (b"accept-encoding", b"identity")]  # people can read the cassette


def _is_of_answer(name: bytes) -> bool:
    return name.decode("latin-1").lower() not in HOP_HEADERS - {"content-length"}
