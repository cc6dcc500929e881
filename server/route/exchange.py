"""One client's request through all its attempts: placed, asked, answered, and moved when its replica is lost."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.types import Scope, Send

from ..api.anthropic_error import anthropic_error_bytes
from ..api.errors import ANTHROPIC_PATH, error_bytes
from ..api.http.connection_end import direct_writer, end_connection
from ..api.http.event_stream import frame
from ..api.http.resume import HEADER
from ..errors import RequestError
from .asked import Asked, answered
from .events import Events
from .fleet import Fleet
from .metrics import Metrics
from .replica import Replica
from .rules import MAX_LOSSES, PAUSE_S
from .upstream import Lost, Upstream

log = logging.getLogger("neuronserve.route")
WHOLE_BYTES = 2**22  # an answer up to that size is read before it is passed on, so that a loss costs nothing
ELSEWHERE, REFUSED_RESUME = (404,), (404, 409, 429, 503)


class ReplicaLost(RequestError):
    """A replica behind the router ended with this request, and no other one could go on with it."""

    status = 502
    kind = "service_unavailable"
    code = "replica_lost"


class Exchange:
    """Answers one request."""

    def __init__(self, fleet: Fleet, metrics: Metrics, asked: Asked, scope: Scope, send: Send) -> None:
        self._fleet, self._metrics, self._asked, self._scope, self._send = fleet, metrics, asked, scope, send
        self._events = Events()
        self._tried: list[Replica] = []  # since the stream last got on
        self._num_losses = 0
        self._has_begun = self._is_stream = self._is_sending = False
        self._lost_at = 0.0  # time of the loss that is not made good; 0 = there is none
        self._name = ""  # of this attempt in the ledger
        self._writer = direct_writer(scope)

    async def run(self) -> None:
        """Answer. Raises RequestError while nothing was sent."""
        try:
            while not await self._attempt():
                pass
        except RequestError as error:  # no replica is left, or none goes on
            if not self._has_begun:
                raise
            if not self._is_stream:
                end_connection(self._scope, "reset")
                return
            is_anthropic = self._asked.path.startswith(ANTHROPIC_PATH)
            event = (
                b"event: error\n" + frame(anthropic_error_bytes(error)) if is_anthropic else frame(error_bytes(error))
            )
            await self._pass(event)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _attempt(self) -> bool:
        """Ask one replica; return whether the answer is complete. Raises ReplicaLost and Unavailable."""
        replica = await self._choose()
        is_asked = False
        try:
            async with replica.connection() as upstream:
                is_asked = True
                self._metrics.asked(replica)
                await upstream.ask(*self._asked.message(replica.address, self._events))
                self._tried.append(replica)
                if not await self._is_refused(replica, upstream):
                    await self._answer(upstream)
                    return True
        except Lost as error:
            replica.suspect()
            self._lost(replica, str(error), is_asked)
        finally:
            self._fleet.ledger.end(self._name)
        return False

    async def _choose(self) -> Replica:
        asked, fleet = self._asked, self._fleet
        self._name = f"{asked.request_id} {id(self)} {len(self._tried)} {self._num_losses}"
        if asked.is_stored:
            return await fleet.first(self._tried, asked.only)
        return await fleet.place(self._name, asked, self._tried)

    async def _is_refused(self, replica: Replica, upstream: Upstream) -> bool:
        """Return whether another replica should answer instead of this one."""
        status, is_continued = upstream.status, self._asked.is_stored or self._asked.prompt.is_continued
        if self._has_begun:
            if status == 200 and _is_stream(upstream):
                return False
            if status not in REFUSED_RESUME or time.monotonic() > self._lost_at + self._fleet.max_wait_s:
                raise ReplicaLost(f"The replica is lost, and another refused to go on with its answer ({status}).")
            await asyncio.sleep(PAUSE_S)
            return True
        if status == 503:
            replica.suspect()
        elif not (status in ELSEWHERE and is_continued):
            return False
        return any(each not in self._tried for each in self._fleet.at(self._asked.only))

    def _lost(self, replica: Replica, why: str, is_asked: bool) -> None:
        """Note the loss of a replica. Raises ReplicaLost when the request cannot move."""
        self._num_losses += 1
        self._metrics.lost(replica)
        self._lost_at = self._lost_at or time.monotonic()
        can_move = not self._has_begun or bool(self._events.fingerprint)
        log.info("%s lost %s: %s", self._asked.request_id, replica.address.name, why)
        if not can_move or (is_asked and not self._asked.is_repeatable) or self._num_losses > MAX_LOSSES:
            raise ReplicaLost(f"The replica that answered is lost: {why}.")

    async def _answer(self, upstream: Upstream) -> None:
        """Pass an answer on. Raises Lost."""
        if _is_stream(upstream):
            await self._stream(upstream)
            return
        length = upstream.header(b"content-length")
        if length and int(length) <= WHOLE_BYTES:
            body = b""
            while data := await upstream.read():
                body += data
            await self._begin(upstream, len(body))
            await self._pass(body)
            return
        await self._begin(upstream, int(length) if length else None)
        while data := await upstream.read():
            await self._pass(data)

    async def _stream(self, upstream: Upstream) -> None:
        if not self._has_begun:
            self._is_stream = True
            await self._begin(upstream, None)
        self._events.begin(upstream.header(HEADER).decode("latin-1"))
        upstream.taker = self._take
        while data := await upstream.read():
            await self._pass(self._got_on(data))
        await self._pass(self._events.finish())

    async def _begin(self, upstream: Upstream, length: int | None) -> None:
        self._has_begun = True
        headers = answered(upstream.headers, length)
        await self._send({"type": "http.response.start", "status": upstream.status, "headers": headers})

    def _take(self, data: bytes) -> bool:
        """Write events to the client in the turn of the event loop that brings them."""
        if self._is_sending or self._writer is None or not self._writer.is_ready():
            return False
        if passed := self._got_on(data):
            self._writer.write([passed])
        return True

    def _got_on(self, data: bytes) -> bytes:
        """Return the events to pass, and count them."""
        before = self._events.num_events
        passed = self._events.take(data)
        if num_new := self._events.num_events - before:
            self._fleet.ledger.generated(self._name, num_new)
            if self._lost_at:
                self._metrics.resumed(time.monotonic() - self._lost_at)
                self._lost_at, self._num_losses = 0.0, 0
                self._tried.clear()
        return passed

    async def _pass(self, data: bytes) -> None:
        if data:
            self._is_sending = True
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self._is_sending = False


def _is_stream(upstream: Upstream) -> bool:
    return b"text/event-stream" in upstream.header(b"content-type")
