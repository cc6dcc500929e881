"""What a caller reads of the sequences that it submitted together. It outlives engines: `client.py` feeds it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

from server.errors import RequestError
from server.types import Charge, TokenEvent


class Stream:
    """Events of sequences that were submitted together. Leaving its `with` block aborts those that have not ended."""

    def __init__(self, request_ids: Iterable[str], abort: Callable[[str], None]) -> None:
        self._open = set(request_ids)
        self._abort = abort
        self._events: list[tuple[TokenEvent, Charge]] = []
        self._error: RequestError | None = None
        self._wake = asyncio.Event()
        self.engines: Mapping[str, int] = {}  # where each sequence is, when there are several engines

    @property
    def is_open(self) -> bool:
        """True while events are still to come or to be read."""
        return bool(self._open or self._events or self._error)

    async def next(self) -> list[tuple[TokenEvent, Charge]]:
        """All events since the last call, at least one, each with what its request had taken by then.

        Raises the error that ended the stream, if one did.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            await self._wake.wait()
            self._wake.clear()
        events, self._events = self._events, []
        return events

    def abort(self, request_id: str) -> None:
        """Abort one sequence; it has no events after this."""
        if request_id in self._open:
            self._open.discard(request_id)
            self._abort(request_id)

    def put(self, event: TokenEvent, charge: Charge) -> None:
        """Add an event and its charge (called by the client); ignored after an error."""
        if self._error is not None:
            return
        self._events.append((event, charge))
        if event.finish_reason is not None:
            self._open.discard(event.request_id)
        self._wake.set()

    def fail(self, error: RequestError) -> None:
        """End the stream with `error` after the events it already has (called by the client).

        Sequences that engines still compute stay open until its `with` block is left, and are aborted then.
        """
        self._error = self._error or error
        self._wake.set()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for request_id in tuple(self._open):
            self.abort(request_id)
