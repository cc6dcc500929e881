"""Events of sequences that were submitted together, for their reader.

Streams outlive engines: `client.py` feeds them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from types import TracebackType

from ..errors import EngineDead, RequestError, Unavailable
from ..types import Charge, TokenEvent

# Limits for a reader that has stopped: thousands of tokens of one sequence, or a few hundred of each of many.
MAX_UNREAD_BYTES = 4 * 2**20
MAX_UNREAD_BYTES_OF_SEQUENCE = 64 * 2**10
EVENT_BYTES = 400  # of an event and its charge in CPython: three tuples, two floats, four integers
ALTERNATIVE_BYTES = 70  # of one more token with its log probability

Taker = Callable[[TokenEvent, Charge], bool]  # takes an event at once; returns False to leave it to the reader


class TokenStream:
    """Events of sequences that were submitted together. Leaving its `with` block aborts sequences that have not ended.

    When a reader stops reading, a limit of unread bytes ends its sequences, and `next` raises Unavailable. While the
    reader waits, `taker` gets each event in the turn of the event loop that brings it, because waking a task for every
    token costs more than most readers do with the token.
    """

    def __init__(self, request_ids: Iterable[str], abort: Callable[[str], None]) -> None:
        self._open = set(request_ids)
        self._abort = abort
        self._events: list[tuple[TokenEvent, Charge]] = []
        self._num_unread_bytes = 0
        self._max_unread_bytes = max(MAX_UNREAD_BYTES, MAX_UNREAD_BYTES_OF_SEQUENCE * len(self._open))
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None  # the only reader
        self.taker: Taker | None = None
        self.engines: dict[str, int] = {}  # rank of each sequence's engine, if there are several engines

    @property
    def is_open(self) -> bool:
        """True while events are to come or to be read."""
        return bool(self._open or self._events or self._error)

    async def next(self) -> list[tuple[TokenEvent, Charge]]:
        """Return the events since the last call with their requests' total charges; empty after the taker got the last.

        Raises the error that ended the stream, or that the taker raised.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            if not self._open:
                return []
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        events, self._events, self._num_unread_bytes = self._events, [], 0
        return events

    def abort(self, request_id: str) -> None:
        """Abort one sequence; it has no further events."""
        if request_id in self._open:
            self._open.discard(request_id)
            self._abort(request_id)

    def put(self, event: TokenEvent, charge: Charge) -> None:
        """Add an event and its charge (called by the client); ignored after an error."""
        if self._error is not None:
            return
        if event.finish_reason is not None:
            self._open.discard(event.request_id)
        if self.taker is not None and self._is_awaited and self._is_taken(self.taker, event, charge):
            return
        self._events.append((event, charge))
        self._num_unread_bytes += EVENT_BYTES
        if event.logprobs is not None:
            self._num_unread_bytes += ALTERNATIVE_BYTES * (1 + len(event.logprobs.top_token_ids))
        if self._num_unread_bytes > self._max_unread_bytes:
            self._give_up()
        self._wake()

    def fail(self, error: RequestError) -> None:
        """End the stream with `error` after its pending events (called by the client).

        Sequences that engines still compute stay open until the `with` block is left, and are aborted then.
        """
        self._error = self._error or error
        self._wake()

    @property
    def _is_awaited(self) -> bool:
        """Return whether the reader has read all events and waits for more."""
        return self._waiting is not None and not self._waiting.done()

    def _is_taken(self, taker: Taker, event: TokenEvent, charge: Charge) -> bool:
        try:
            is_taken = taker(event, charge)
        except Exception as error:  # of this reader; others have events in the same turn
            self._error, is_taken = error, True
        if self._error is not None or (is_taken and not self._open):
            self._wake()
        return is_taken

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _give_up(self) -> None:
        """Drop unread events and abort the sequences."""
        num_bytes, self._events = self._num_unread_bytes, []
        self.fail(Unavailable(f"The client left about {num_bytes} bytes of its stream unread.", code="slow_reader"))
        with contextlib.suppress(EngineDead):
            for request_id in tuple(self._open):
                self.abort(request_id)

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.taker = None  # it refers to this stream: a cycle, which only a full collection would free
        for request_id in tuple(self._open):
            self.abort(request_id)
