"""Messages between an engine and its parent: framed bytes over a socket pair, with no thread between.

A message queue with threads of its own has to wake one on either side for each message: with a step of half a
millisecond that was a fifth of an engine's time. Nobody waits to send: what the socket does not take is kept.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator

_LENGTH_BYTES = 4
_CHUNK_BYTES = 1 << 16


class Frames:
    """Owner of one end. What was sent before the other end was closed, even by its process's death, is read first."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unsent, self._unread = bytearray(), bytearray()
        self.has_ended = False  # nothing more will be read
        end.setblocking(False)

    @property
    def has_unsent(self) -> bool:
        """True while the other side is behind by more than the socket takes: `flush` is to be called."""
        return bool(self._unsent)

    @property
    def is_closed(self) -> bool:
        """Whether this end is."""
        return self._end.fileno() < 0

    def fileno(self) -> int:
        """Readable when there is something to read, and for ever at the end; writable when `flush` can go on."""
        return self._end.fileno()

    def send(self, message: bytes) -> bool:
        """Send a message after those before it, as much of it as goes now. False when nobody will read it."""
        frame = len(message).to_bytes(_LENGTH_BYTES, "big") + message
        if not self._unsent:
            sent = self._sent(frame)
            if sent is not None and sent < len(frame):
                self._unsent += frame[sent:]
            return sent is not None
        self._unsent += frame
        return self.flush()

    def flush(self) -> bool:
        """Send what is left, as much of it as goes now. False when nobody will read it."""
        with memoryview(self._unsent) as left:
            sent = self._sent(left)
        del self._unsent[:sent]
        return sent is not None

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something to read, or some of what is left could be sent."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        ready = poll.poll(timeout_s * 1000)
        if ready and ready[0][1] & select.POLLOUT:
            self.flush()

    def read(self) -> Iterator[bytes]:
        """All messages that have come."""
        while data := self._received():
            self._unread += data
            yield from self._complete()
            if len(data) < _CHUNK_BYTES:
                return  # the next would find nothing

    def close(self, timeout_s: float = 0.0) -> None:
        """Close, once what is left was sent or that time has passed. May be called twice."""
        if self._unsent:
            with contextlib.suppress(OSError):
                self._end.settimeout(timeout_s)
                self._end.sendall(self._unsent)
        self._end.close()

    def _sent(self, data: bytes | memoryview) -> int | None:
        """Number of bytes that the socket has taken; None when there is no reader."""
        try:
            return self._end.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return None

    def _received(self) -> bytes:
        try:
            data = self._end.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.has_ended = not data
        return data

    def _complete(self) -> Iterator[bytes]:
        begin = 0
        while (start := begin + _LENGTH_BYTES) <= len(self._unread):
            end = start + int.from_bytes(self._unread[begin:start], "big")
            if end > len(self._unread):
                break
            message, begin = bytes(self._unread[start:end]), end
            yield message
        del self._unread[:begin]
