"""Events of a stream as bytes: their ends, and whether one has output, in any dialect."""

from __future__ import annotations

import json
import re
from typing import Any

_END = re.compile(rb"\r?\n\r?\n")
_DATA = re.compile(rb"^data: ?(.*)$", re.MULTILINE)


class EventSplitter:
    """Splits a stream into events, for any split into chunks."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that are complete now, each with the empty line that ends it."""
        self._rest += data
        events, begin = [], 0
        for end in _END.finditer(self._rest):
            events.append(self._rest[begin : end.end()])
            begin = end.end()
        self._rest = self._rest[begin:]
        return events

    def rest(self) -> bytes:
        """Return the bytes of an incomplete last event."""
        rest, self._rest = self._rest, b""
        return rest


def is_comment(event: bytes) -> bool:
    """Return whether the event is a comment, which only keeps the connection alive."""
    return event.startswith(b":")


def payload_of(event: bytes) -> Any:
    """Return the JSON of an event; None if it has none, as [DONE]."""
    try:
        return json.loads(b"\n".join(_DATA.findall(event)))
    except ValueError:
        return None


def has_output(event: bytes) -> bool:
    """Return whether the event has text, reasoning or tool call data: with this server one token, rarely more."""
    payload = payload_of(event)
    if not isinstance(payload, dict):
        return False
    kind = payload.get("type")
    if isinstance(kind, str):  # Responses and Messages name their events
        return kind.endswith(".delta") or kind == "content_block_delta"
    return any(_has_output(choice) for choice in payload.get("choices") or ())


def _has_output(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or any(value for name, value in delta.items() if name != "role")
