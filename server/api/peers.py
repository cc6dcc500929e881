"""Questions to the other API processes of this server. A server of one process has none.

Workers that do not answer in time are left out; `workers/worker.py` answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from prometheus_client.registry import Collector

from ..link.hub.remote import AnyEngines, RemoteEngines
from .telemetry.gathered import Gathered, snapshot

METRICS, LOAD, ABORT, RESPONSE, CANCEL = "metrics", "load", "abort", "response", "cancel"
FOLLOW = "follow"


class StreamedEvents(msgspec.Struct, array_like=True):
    """Events of a response's stream, and whether they are the last ones."""

    frames: list[bytes]
    is_done: bool


class Followed(msgspec.Struct, array_like=True):
    """Question for the events of a response from a number on."""

    response_id: str
    first: int


_ENCODER = msgspec.msgpack.Encoder()
_EVENTS = msgspec.msgpack.Decoder(StreamedEvents)
_FOLLOWED = msgspec.msgpack.Decoder(Followed)


async def answer_follow(body: bytes, find: Callable[[str, int], Awaitable[StreamedEvents | None]]) -> bytes:
    """Return a worker's answer to FOLLOW; `find` searches the worker's own streams."""
    question = _FOLLOWED.decode(body)
    part = await find(question.response_id, question.first)
    return b"" if part is None else _ENCODER.encode(part)


class Peers:
    """The other API processes. Used on one event loop."""

    def __init__(self, engines: AnyEngines) -> None:
        self._hub = engines if isinstance(engines, RemoteEngines) else None

    @property
    def are_there(self) -> bool:
        """Whether this is one of several API processes."""
        return self._hub is not None

    async def metrics(self, own: Collector) -> Collector:
        """Metrics of the whole server."""
        if self._hub is None:
            return own
        (total,) = await self._hub.call(METRICS, snapshot(own))
        return Gathered(total)

    async def num_in_flight(self) -> int:
        """Return the number of HTTP requests that other processes answer now."""
        return sum(int(answer) for answer in await self._ask(LOAD))

    async def abort(self, request_id: str) -> int:
        """End open requests of that id in other processes, and return their number."""
        return sum(int(answer) for answer in await self._ask(ABORT, request_id))

    async def response(self, response_id: str) -> bytes | None:
        """Return a response that another process generates in the background, as JSON."""
        return await self._ask_one(RESPONSE, response_id.encode())

    async def cancel(self, response_id: str) -> None:
        """End a response that another process generates in the background."""
        await self._ask(CANCEL, response_id)

    async def part(self, response_id: str, first: int) -> StreamedEvents | None:
        """Return events from number `first` on of a stream in another process, once there are some."""
        answer = await self._ask_one(FOLLOW, _ENCODER.encode(Followed(response_id, first)))
        return None if answer is None else _EVENTS.decode(answer)

    async def _ask(self, name: str, body: str = "") -> list[bytes]:
        return [] if self._hub is None else await self._hub.call(name, body.encode())

    async def _ask_one(self, name: str, body: bytes) -> bytes | None:
        """Return the answer of the process that has one; a process that stands still without one delays nobody."""
        answers = [] if self._hub is None else await self._hub.call(name, body, is_for_one=True)
        return next((each for each in answers if each), None)
