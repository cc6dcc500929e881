"""Index of one growing text: where else its runs of a few tokens occur, latest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_MOST_CANDIDATES = 8  # occurrences that a search compares: it takes microseconds on any text


class TextIndex:
    """Positions after each run of `width` tokens of one text. The text itself stays with the caller and only grows."""

    __slots__ = ("_earlier", "_latest", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self._latest: dict[tuple[int, ...], int] = {}  # position after the latest occurrence of a run
        self._earlier: list[int] = [0] * width  # by position: that after the occurrence before; 0 = none

    def extend(self, text: Sequence[int], end: int) -> None:
        """Index the runs that end up to position `end` of `text`."""
        latest, earlier, width = self._latest, self._earlier, self._width
        for at in range(len(earlier), end + 1):
            run = tuple(text[at - width : at])
            earlier.append(latest.get(run, 0))
            latest[run] = at

    def positions(self, tail: Sequence[int]) -> Iterator[int]:
        """Yield the positions after occurrences of the last `width` tokens of `tail`, latest first."""
        at = self._latest.get(tuple(tail[-self._width :]), 0)
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
