"""Journal of an answer that another replica can continue: what each delta was made of. The other end of `server/route`.

An entry has the events that were merged into deltas together, so that a replica which reads the journal makes the same
deltas, and so the same events of the stream. Instead of request ids the entries have the numbers of choices.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...errors import InvalidRequest, RequestError
from ...types import Charge, TokenEvent
from ..http.resume import HEADER, JOURNAL, Resumed

Merged = Sequence[tuple[TokenEvent, Charge]]
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(list[tuple[TokenEvent, Charge]])


class ModelChanged(RequestError):
    """A router asks to continue an answer that another model or configuration began."""

    status = 409
    code = "model_changed"


class AnswerJournal:
    """Entries of an earlier replica, and those that this one makes."""

    def __init__(self, resumed: Resumed | None, fingerprint: str, is_stream: bool) -> None:
        """Raises InvalidRequest for a journal that cannot be read, ModelChanged for one of another model."""
        self.fingerprint = fingerprint
        self.is_wanted = resumed is not None and is_stream
        self.num_events_seen = 0 if resumed is None else resumed.asked.num_events
        self.earlier = _read(resumed, is_stream)
        if resumed is not None and resumed.asked.fingerprint not in ("", fingerprint):
            raise ModelChanged(f"The answer was begun by {resumed.asked.fingerprint[:80]}, and this is {fingerprint}.")
        self._new: list[bytes] = []

    def note(self, merged: Sequence[tuple[int, TokenEvent, Charge]]) -> None:
        """Record events that become deltas now, each with the number of its choice."""
        if self.is_wanted:
            events = [(event._replace(request_id=str(choice), time=0.0), charge) for choice, event, charge in merged]
            self._new.append(b"%b%b\n\n" % (JOURNAL, _ENCODER.encode(events)))

    def take(self) -> list[bytes]:
        """Return the entries since the last call, each as a comment of the stream."""
        new, self._new = self._new, []
        return new


def number_of(name: str, count: int) -> int:
    """Return the number of a choice that an entry names. Raises InvalidRequest unless it is one of `count`."""
    if not (name.isascii() and name.isdecimal() and len(name) < 5 and int(name) < count):
        raise InvalidRequest(f"The journal names choice {name[:20]!r}, and there are {count}.", HEADER.decode())
    return int(name)


def _read(resumed: Resumed | None, is_stream: bool) -> list[list[tuple[TokenEvent, Charge]]]:
    if resumed is None or not resumed.journal:
        return []
    if not is_stream:
        raise InvalidRequest("Only a stream can be continued, and this request asks for none.", HEADER.decode())
    try:
        return [_DECODER.decode(line) for line in resumed.journal.splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The journal of {HEADER.decode()} cannot be read: {error}", HEADER.decode()) from error
