"""Parser of server-sent events: any split of the stream into chunks gives the same events. No IO, no JSON.

It follows the WHATWG rules that OpenAI-style streams use: LF, CR LF or CR line ends, comments, `data` over several
lines. Other fields are dropped.
"""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 16 * 2**20  # limits memory if a server never ends an event
_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseError(ValueError):
    """The bytes are not a stream of events."""


class SseParser:
    """Parser that takes bytes and returns the data of each event that they complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._num_bytes = 0

    @property
    def is_inside_event(self) -> bool:
        """Whether an event is incomplete: a stream that ends now was cut."""
        return bool(self._rest or self._data)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that end in `chunk`. Raises SseError for an event above MAX_EVENT_BYTES."""
        if not self._rest and not self._data and _is_plain(chunk):
            return [event[6:] for event in chunk[:-2].split(b"\n\n")]
        return self._feed_slowly(chunk)

    def _feed_slowly(self, chunk: bytes) -> list[bytes]:
        self._num_bytes += len(chunk)
        text = self._rest + chunk
        # A CR at the end may be half of a CR LF, so it waits for the next chunk.
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(text[: len(text) - len(held)])
        self._rest = rest + held
        events = [event for line in lines if (event := self._line(line)) is not None]
        if self._num_bytes > MAX_EVENT_BYTES:
            raise SseError(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        return events

    def _line(self, line: bytes) -> bytes | None:
        """Take one line. Returns the event's data if the line ends an event with data."""
        if not line:
            data, self._data = self._data, []
            self._num_bytes = 0
            return b"\n".join(data) if data else None
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        return None


def _is_plain(chunk: bytes) -> bool:
    """Return whether the chunk consists of complete one-line events, the fast case."""
    if not (chunk.startswith(b"data: ") and chunk.endswith(b"\n\n")) or b"\r" in chunk:
        return False
    num_events = chunk.count(b"\n\n")
    return chunk.count(b"\n") == 2 * num_events and chunk.count(b"\n\ndata: ") == num_events - 1
