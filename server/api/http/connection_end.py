"""What an application may do to its connection beside ASGI's messages: end it, or write a part of an answer at once.

Ends are those that HTTP has no words for: closed, or reset, in the middle of an answer.
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

from neuronserve.server.api.http.plain_http import PlainHttpProtocol

End = Literal["close", "reset"]
EXTENSION = "neuronserve.end_connection"
WRITE = "neuronserve.write"


class Writer(Protocol):
    """Writes parts of an answer that has begun, past all middleware: it alters no such part."""

    def is_ready(self) -> bool:
        """Whether `write` may be called now: not where the client reads too slowly, or has left."""
        ...

    def write(self, parts: Sequence[bytes]) -> None:
        """Write parts, none of them empty, each as a chunk of its own."""
        ...


class EndableProtocol(PlainHttpProtocol):
    """Lets an application end the connection of its request or write to it, by extensions of the scope."""

    _served: RequestResponseCycle | None = None  # uvicorn's own `cycle` is the last that has come, and may wait for it

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self._has_client_left():
            self.transport.abort()
            return
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application, and let go of the requests.

        They know this protocol: a circle, of all that was received, would stay until a full collection, which a server
        that has settled has once in minutes.
        """
        super().connection_lost(exc)
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
        self._unset_keepalive_if_required()  # uvicorn's own does so only where no error ended the connection
        self.pipeline.clear()
        self._served, self.cycle, self.scope = None, None, None  # type: ignore[assignment]

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: {"end": self._end}, WRITE: {"writer": self}}

    def is_ready(self) -> bool:
        """As Writer has it."""
        cycle = self._served
        return not (cycle is None or cycle.disconnected or self.flow.write_paused or not cycle.chunked_encoding)

    def write(self, parts: Sequence[bytes]) -> None:
        """As Writer has it."""
        self.transport.write(b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in parts]))

    def _has_client_left(self) -> bool:
        """Whether the client has ended the connection already, which the event loop would notice after the work."""
        own: socket.socket = self.transport.get_extra_info("socket")
        peeking = socket.socket(own.family, own.type, own.proto, own.fileno())  # the event loop's own does not read
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
            self.transport.close()  # once what was written is on its way
            return
        own: socket.socket = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # macOS sets nothing of a connection that the client has ended
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST rather than FIN
        self.transport.abort()


def end_connection(scope: Scope, how: End) -> None:
    """End the connection of a request; its application then sees the client disconnect."""
    cast(Callable[[End], None], scope["extensions"][EXTENSION]["end"])(how)


def direct_writer(scope: Scope) -> Writer | None:
    """What writes to the connection of a request; None where all of its answer is to go through `send`."""
    extension = scope.get("extensions", {}).get(WRITE)
    return None if extension is None else cast(Writer, extension["writer"])


def without_direct_writer(scope: Scope) -> Scope:
    """The scope for an application whose answer's parts are all to go through `send`."""
    extensions = {name: value for name, value in scope.get("extensions", {}).items() if name != WRITE}
    return {**scope, "extensions": extensions}
