"""Count of the values in a JSON text, while it arrives and before anything is built from it. Pure.

From `[],[],[]` a parser makes objects of a hundred times the text's bytes, in one call that cannot be interrupted. So a
text with more values than any real request has is refused by count, at the first part that passes the limit.
"""

from __future__ import annotations

from ...errors import InvalidRequest

MAX_CONTAINERS = 2**14  # objects and lists of one body
MAX_VALUES = 2**18  # keys and items of one body
PART_CHARS = 2**16  # size of the parts in which a text is counted, so that an excess is found early
# Memory that parsed JSON takes, rounded up: a text of wide characters, a validated object, a key or a number.
BYTES_PER_BYTE, CONTAINER_BYTES, VALUE_BYTES = 4, 1024, 64


class JsonMeter:
    """Counter for one text, whose parts are fed in order."""

    def __init__(self) -> None:
        self.num_containers = 0
        self.num_values = 0
        self._is_in_string = False
        self._rest = b""  # a backslash at the end of the last part

    @property
    def num_built_bytes(self) -> int:
        """Estimated bytes of the parsed values, without the text itself."""
        return self.num_containers * CONTAINER_BYTES + self.num_values * VALUE_BYTES

    def feed(self, part: bytes) -> None:
        """Count one more part. Raises InvalidRequest when the text has too many values."""
        text = (self._rest + part).replace(b"\\\\", b"").replace(b'\\"', b"")
        self._rest = b"\\" if text.endswith(b"\\") else b""
        pieces = text.removesuffix(b"\\").split(b'"')
        outside = b"".join(pieces[self._is_in_string :: 2])
        self._is_in_string ^= len(pieces) % 2 == 0
        self.num_containers += outside.count(b"{") + outside.count(b"[")
        self.num_values += outside.count(b",") + outside.count(b":")
        self._check()

    def _check(self) -> None:
        counts = (self.num_containers, MAX_CONTAINERS, "objects and lists"), (self.num_values, MAX_VALUES, "values")
        for count, most, what in counts:
            if count > most:
                raise InvalidRequest(f"The JSON has more than {most} {what}, the most that this server reads.")


def require_small(text: str, param: str) -> None:
    """Raise InvalidRequest when the JSON in a field has more values than a whole body may have."""
    try:
        meter = JsonMeter()
        for begin in range(0, len(text), PART_CHARS):
            meter.feed(text[begin : begin + PART_CHARS].encode("utf-8", "surrogatepass"))
    except InvalidRequest as error:
        raise InvalidRequest(f"{param}: {error.message}", param) from error
