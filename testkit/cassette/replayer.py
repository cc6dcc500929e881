"""Server that replays a cassette. An unknown request gets a 404 with the nearest recording."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...server.api.errors import error_response
from ...server.errors import RequestError
from .cassette import Cassette, Recording, recorded_request
from .recorder import headers_of, read_body

PROBES = frozenset({"/health", "/health/live", "/health/ready"})


class NotRecorded(RequestError):
    """The cassette has no such request."""

    status = 404
    code = "not_recorded"


class Replayer:
    """ASGI application over a cassette."""

    def __init__(self, cassette: Cassette, has_timings: bool) -> None:
        """Replay `cassette`; with `has_timings` chunks keep their recorded times, else they are sent at once."""
        self._cassette, self._has_timings = cassette, has_timings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = recorded_request(scope["method"], scope["path"], await read_body(receive), headers_of(scope))
        found = self._cassette.take(request)
        if found is not None:
            await self._answer(found, send)
        elif request.path in PROBES:
            await Response('{"status": "ready"}', media_type="application/json")(scope, receive, send)
        else:
            near = self._cassette.nearest(request)
            error = NotRecorded(f"This request is not in the cassette: {request.method} {request.path[:200]}; {near}.")
            await error_response(error, request.path)(scope, receive, send)

    async def _answer(self, found: Recording, send: Send) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        headers = [(name.encode(), value.encode("latin-1")) for name, value in found.headers.items()]
        if "text/event-stream" not in found.headers.get("content-type", ""):
            headers.append((b"content-length", str(len(found.data)).encode()))
        await send({"type": "http.response.start", "status": found.status, "headers": headers})
        for seconds, piece in found.pieces():
            if self._has_timings:
                await asyncio.sleep(begin + seconds - loop.time())
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
