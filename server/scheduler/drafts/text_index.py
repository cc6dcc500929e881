"""Index of one growing text: where else its runs of a few tokens occur, latest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_MOST_CANDIDATES = 8  # occurrences that a search compares: it takes microseconds on any text
_BITS = 32  # of a token in a key


class TextIndex:
    """Positions after each run of `width` tokens of one text. The text itself stays with the caller and only grows.

    A run is named by an integer of its tokens' bits, which the garbage collector does not follow.
    """

    __slots__ = ("_earlier", "_key", "_latest", "_mask", "_width")

    def __init__(self, width: int) -> None:
        self._width, self._mask = width, (1 << _BITS * width) - 1
        self._key = 0  # of the last tokens that were indexed
        self._latest: dict[int, int] = {}  # position after the latest occurrence of a run
        self._earlier: list[int] = [0]  # by position: that after the occurrence before; 0 = none

    def extend(self, text: Sequence[int], end: int) -> None:
        """Index the runs that end up to position `end` of `text`."""
        latest, earlier, mask, key = self._latest, self._earlier, self._mask, self._key
        for at, token in enumerate(text[len(earlier) - 1 : end], len(earlier)):
            key = (key << _BITS | token) & mask
            earlier.append(latest.get(key, 0))
            if at >= self._width:
                latest[key] = at
        self._key = key

    def positions(self, tail: Sequence[int]) -> Iterator[int]:
        """Yield the positions after occurrences of the last `width` tokens of `tail`, latest first."""
        if len(tail) < self._width:
            return
        key = 0
        for token in tail[-self._width :]:
            key = key << _BITS | token
        at = self._latest.get(key & self._mask, 0)
        for _ in range(_MOST_CANDIDATES):
            if not at:
                return
            yield at
            at = self._earlier[at]


def match_length(text: Sequence[int], at: int, tail: Sequence[int], known: int, most: int) -> int:
    """Return how many tokens before `at` in `text` equal the last ones of `tail`: at least `known`, up to `most`."""
    most, end, length = min(most, at, len(tail)), len(tail), known
    while length < most and text[at - 1 - length] == tail[end - 1 - length]:
        length += 1
    return length
