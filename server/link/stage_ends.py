"""Connections between the stages of one engine: pairs of sockets on one host, or TCP between hosts.

The first stage has a control connection to each other one. Steps go from stage to stage: to the second stage and from
the last one by their control connections, between the others by connections of their own. Over TCP both ends prove that
they know the same key (multiprocessing.connection); nothing is encrypted, so the network must be private.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, Pipe

from ..errors import SettingsError, StartError

# A network that is cut without a word ends a connection after so long.
SILENCE_S = 15
_SILENCE = {
    "TCP_KEEPIDLE": SILENCE_S // 3,
    "TCP_KEEPINTVL": SILENCE_S // 3,
    "TCP_KEEPCNT": 2,
    "TCP_USER_TIMEOUT": SILENCE_S * 1000,
}
LEAST_KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class StageEnd:
    """Connections of one stage behind the first."""

    control: Connection  # to the first stage
    ahead: Connection | None = None  # from the stage before; None: that is the first
    following: Connection | None = None  # to the stage behind, if that is on the same host
    key: bytes = b""  # of connections to other hosts

    @property
    def before(self) -> Connection:
        """Connection by which steps arrive."""
        return self.ahead or self.control

    def behind(self, address: str | None) -> Connection | None:
        """Return the connection to the stage behind, at `address` if that is on another host; None: this is the last.

        Raises StartError.
        """
        return self.following if address is None else connect(address, self.key)

    def close(self) -> None:
        """Close this process's descriptors, once another process has its own."""
        for each in (self.control, self.ahead, self.following):
            if each is not None:
                each.close()


def local_ends(count: int) -> tuple[tuple[Connection, ...], tuple[StageEnd, ...]]:
    """Return the first stage's connections to the others of `count` stages on this host, and the ends of those."""
    controls = [Pipe() for _ in range(1, count)]
    between = [Pipe() for _ in range(2, count)]
    ends = tuple(
        StageEnd(
            own,
            between[i - 1][1] if i else None,
            between[i][0] if i < len(between) else None,
        )
        for i, (_, own) in enumerate(controls)
    )
    return tuple(first for first, _ in controls), ends


def listen(address: str, key: bytes) -> Listener:
    """Listen at host:port. Raises SettingsError for another form, and OSError when it is taken."""
    return Listener(_split(address), family="AF_INET", authkey=key)


def accepted(listener: Listener) -> Connection:
    """Wait for a connection whose other end knows the key."""
    while True:
        try:
            return _watched(listener.accept())
        except (AuthenticationError, EOFError, ConnectionError):
            continue  # somebody else knocked


def connect(address: str, key: bytes) -> Connection:
    """Connect to a stage at host:port. Raises StartError."""
    try:
        return _watched(Client(_split(address), family="AF_INET", authkey=key))
    except AuthenticationError as error:
        raise StartError(f"the pipeline stage at {address} has another key") from error
    except (OSError, EOFError) as error:
        raise StartError(f"no pipeline stage answers at {address}: {error}") from error


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"the address of a pipeline stage is {address!r}: host:port is expected")
    return host.strip("[]"), int(port)


def _watched(connection: Connection) -> Connection:
    """Send small frames at once, and end the connection after a silence of the network."""
    with socket.socket(fileno=connection.fileno()) as end:
        try:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _SILENCE.items():
                if hasattr(socket, name):
                    end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        finally:
            end.detach()
    return connection
