"""Control of a request's connection beyond ASGI's messages: end it, or write parts of an answer directly.

A connection can be closed or reset in the middle of an answer, for which HTTP has no message.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, cast

from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from .plain_http import PlainHttpProtocol

End = Literal["close", "reset"]
EXTENSION = "neuronserve.end_connection"
WRITE = "neuronserve.write"


class Writer(Protocol):
    """Writes parts of a begun answer directly, past all middleware, which does not alter such parts."""

    def is_ready(self) -> bool:
        """Return whether `write` may be called now: not when the client reads too slowly or has left."""
        ...

    def write(self, parts: Sequence[bytes]) -> None:
        """Write parts, none of them empty, each as one chunk; nothing once the client has left."""
        ...


class EndableProtocol(PlainHttpProtocol):
    """Lets an application end the connection of its request or write to it, through extensions of the scope."""

    # Uvicorn's own `cycle` is the last one received, which may wait for this one.
    _served: RequestResponseCycle | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self._has_client_left():
            self.transport.abort()
            return
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the application and release the requests.

        They refer to this protocol. The cycle would keep all received bytes until a full collection, which happens once
        in minutes on a server that has settled.
        """
        super().connection_lost(exc)
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
        self._unset_keepalive_if_required()  # uvicorn does this only when no error ended the connection
        self.pipeline.clear()
        self._served, self.cycle, self.scope = None, None, None  # type: ignore[assignment]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: {"end": self._end}, WRITE: {"writer": self}}

    def is_ready(self) -> bool:
        """Implement Writer."""
        cycle = self._served
        return not (cycle is None or cycle.disconnected or self.flow.write_paused or not cycle.chunked_encoding)

    def write(self, parts: Sequence[bytes]) -> None:
        """Implement Writer."""
        if not self.transport.is_closing():
            self.transport.write(b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in parts]))

    def _has_client_left(self) -> bool:
        """Return whether the client has ended the connection, which the event loop notices only after the work."""
        own: socket.socket = self.transport.get_extra_info("socket")
        # The event loop's socket object does not read.
        peeking = socket.socket(own.family, own.type, own.proto, own.fileno())
        try:
            return not peeking.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            peeking.detach()

    def _end(self, how: End) -> None:
        if how == "close":
            self.transport.close()  # after sending what was written
            return
        own: socket.socket = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # macOS refuses options of a connection that the client has ended
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST rather than FIN
        self.transport.abort()


def end_connection(scope: Scope, how: End) -> None:
    """End the connection of a request; its application then sees a disconnect."""
    cast(Callable[[End], None], scope["extensions"][EXTENSION]["end"])(how)


def direct_writer(scope: Scope) -> Writer | None:
    """Return the writer to the connection of a request; None when the whole answer must go through `send`."""
    extension = scope.get("extensions", {}).get(WRITE)
    return None if extension is None else cast(Writer, extension["writer"])


def without_direct_writer(scope: Scope) -> Scope:
    """Return the scope for an application whose whole answer must go through `send`."""
    extensions = {name: value for name, value in scope.get("extensions", {}).items() if name != WRITE}
    return {**scope, "extensions": extensions}
