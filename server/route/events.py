"""A stream of events on its way to the client: whole events alone are passed, and the journal is kept here. No IO.

When the replica is lost, the journal and the number of events that the client has say where another one goes on.
"""

from __future__ import annotations

from ..api.http.resume import JOURNAL

END = b"\n\n"


class Events:
    """State of one stream."""

    def __init__(self) -> None:
        self.fingerprint = ""  # of the model that answers; "" = the stream cannot be continued
        self.entries: list[bytes] = []  # of the journal
        self.num_events = 0  # that were passed, comments left out
        self._rest = b""  # of an event that is not complete

    @property
    def journal(self) -> bytes:
        """The journal as a replica reads it: an entry a line."""
        return b"".join([entry + b"\n" for entry in self.entries])

    def begin(self, fingerprint: str) -> None:
        """Expect events of a replica, those that follow the ones before."""
        self.fingerprint, self._rest = fingerprint, b""

    def take(self, data: bytes) -> bytes:
        """Return the complete events of what a replica has sent, for the client."""
        *whole, self._rest = (self._rest + data).split(END) if self._rest else data.split(END)
        passed = []
        for event in whole:
            if self.fingerprint and event.startswith(JOURNAL):
                self.entries.append(event[len(JOURNAL) :])
                continue
            passed.append(event)
            self.num_events += not event.startswith(b":")
        return b"".join([event + END for event in passed])

    def finish(self) -> bytes:
        """Return what follows the last event that is complete, when the stream has ended."""
        rest, self._rest = self._rest, b""
        return rest
