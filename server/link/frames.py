"""Messages of an engine to its parent: framed bytes over a socket pair, with no thread on either side.

Each side of a ZeroMQ socket has a thread of its own that every message passes and has to wake; for an engine with
a step of half a millisecond these cost a fifth of it. The writer never waits: what the socket does not take is kept.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator

_LENGTH_BYTES = 4
_CHUNK_BYTES = 1 << 16


class FrameWriter:
    """Owner of one end. When nobody has the other any more, what is sent is lost."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unsent = bytearray()
        end.setblocking(False)

    @property
    def has_unsent(self) -> bool:
        """True while the reader is behind by more than the socket takes: `flush` is to be called."""
        return bool(self._unsent)

    def fileno(self) -> int:
        """What becomes writable when `flush` can go on."""
        return self._end.fileno()

    def send(self, message: bytes) -> None:
        """Send a message after those before it, or as much of it as goes now."""
        frame = len(message).to_bytes(_LENGTH_BYTES, "big") + message
        if self._unsent:
            self._unsent += frame
            self.flush()
        elif (sent := self._sent(frame)) < len(frame):
            self._unsent += frame[sent:]

    def flush(self) -> None:
        """Send what is left, or as much of it as goes now."""
        if self._unsent:
            with memoryview(self._unsent) as left:
                sent = self._sent(left)
            del self._unsent[:sent]

    def close(self, timeout_s: float) -> None:
        """Close, once the reader has taken what is left, or after that time."""
        with contextlib.suppress(OSError):
            self._end.settimeout(timeout_s)
            self._end.sendall(self._unsent)
        self._end.close()

    def _sent(self, data: bytes | memoryview) -> int:
        try:
            return self._end.send(data)
        except BlockingIOError:
            return 0
        except OSError:  # the reader has gone
            return len(data)


class FrameReader:
    """Owner of the other end. Messages that were sent before the writer's end, however it ended, are there after it."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._pending = bytearray()
        self.has_ended = False  # the writer has, and all was read
        end.setblocking(False)

    @property
    def is_closed(self) -> bool:
        return self._end.fileno() < 0

    def fileno(self) -> int:
        """What becomes readable with a message, and stays so until it was read; at the writer's end for ever."""
        return self._end.fileno()

    def wait(self, timeout_s: float) -> bool:
        """Wait until there may be something to read."""
        return bool(select.select([self._end], [], [], timeout_s)[0])

    def read(self) -> Iterator[bytes]:
        """All messages that have come."""
        while (data := self._receive()) is not None:
            self._pending += data
            yield from self._complete()
            if len(data) < _CHUNK_BYTES:
                return  # the next would find nothing

    def close(self) -> None:
        """May be called twice."""
        self._end.close()

    def _receive(self) -> bytes | None:
        try:
            data = self._end.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self.has_ended = not data
        return data or None

    def _complete(self) -> Iterator[bytes]:
        begin = 0
        while (start := begin + _LENGTH_BYTES) <= len(self._pending):
            end = start + int.from_bytes(self._pending[begin:start], "big")
            if end > len(self._pending):
                break
            message, begin = bytes(self._pending[start:end]), end
            yield message
        del self._pending[:begin]
