"""Messages between an engine and its parent: framed bytes over a socket pair, without a thread in between.

A message queue with its own threads wakes one of them on either side for each message: with steps of half a
millisecond that took a fifth of an engine's time. Sending never waits: bytes that the socket does not take are kept.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator

_LENGTH_BYTES = 4
_CHUNK_BYTES = 1 << 16


class Frames:
    """One end of the pair. Messages sent before the other end closed, even by a death, are still read first."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unsent, self._unread = bytearray(), bytearray()
        self.has_ended = False  # nothing more will be read
        end.setblocking(False)

    @property
    def has_unsent(self) -> bool:
        """True while the socket has not taken all bytes: call `flush`."""
        return bool(self._unsent)

    @property
    def is_closed(self) -> bool:
        """Return whether this end is closed."""
        return self._end.fileno() < 0

    def fileno(self) -> int:
        """Return the descriptor: readable when messages or the end arrive, writable when `flush` can continue."""
        return self._end.fileno()

    def send(self, message: bytes, waits: bool = False) -> bool:
        """Send a message, or as much of it as the socket takes now. Return False when nobody will read it.

        A message that `waits` is kept until the next one, or `flush`.
        """
        frame = len(message).to_bytes(_LENGTH_BYTES, "big") + message
        if waits:
            self._unsent += frame
            return True
        if not self._unsent:
            sent = self._sent(frame)
            if sent is not None and sent < len(frame):
                self._unsent += frame[sent:]
            return sent is not None
        self._unsent += frame
        return self.flush()

    def flush(self) -> bool:
        """Send kept bytes, as many as the socket takes now. Return False when nobody will read them."""
        with memoryview(self._unsent) as left:
            sent = self._sent(left)
        del self._unsent[:sent]
        return sent is not None

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something to read, or kept bytes could be sent."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        ready = poll.poll(timeout_s * 1000)
        if ready and ready[0][1] & select.POLLOUT:
            self.flush()

    def read(self) -> Iterator[bytes]:
        """Yield all messages that have arrived."""
        while data := self._received():
            self._unread += data
            yield from self._complete()
            if len(data) < _CHUNK_BYTES:
                return  # the next call would find nothing

    def close(self, timeout_s: float = 0.0) -> None:
        """Close after sending kept bytes, or after the timeout. May be called twice."""
        if self._unsent:
            with contextlib.suppress(OSError):
                self._end.settimeout(timeout_s)
                self._end.sendall(self._unsent)
        self._end.close()

    def _sent(self, data: bytes | memoryview) -> int | None:
        """Return the number of bytes that the socket took; None when there is no reader."""
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
