"""How many drafts are worth verifying: what a step costs by its rows, and how often a sequence's drafts were right.

The best number of drafts has the most expected tokens a second. Nothing is set by hand: large batches, whose rows cost
more than they bring, get no drafts.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from heapq import merge
from itertools import islice, repeat

_ROW_SHARE = 0.08  # of a row's step, that one more row costs, before any step was seen
_LEARNS = 0.15  # least weight of the newest step
_FADES = 1 / 1024  # of a factor, with each step of other rows
_EXACT, _COARSE = 16, 4  # largest number of rows with a factor of its own, and the multiple that larger ones share
_MOST_CHANGE = 2.0  # of an estimate by one step, which a busy host may have delayed

_RECALLS = 0.2  # weight of the newest draft
_FRESH, _RESUMED, _GOING = 0.4, 0.4, 0.8  # chances before any draft was seen
_FORGETS = 1 / 256  # weight of these, where only drafts that are verified count
_TEACHES, _LEAST_LESSON = 0.2, 4  # weight of a sequence that has ended, for those that begin, and its least drafts
_MOST_FREE, _MOST_IDLE = 3, 7  # idle drafts without a pause, and at the longest pause

_LEAST_CHANCE = 0.1  # of a draft that is verified
_TRUSTS = 0.1  # weight of the newest step with drafts, to what was expected of it
_FORGIVES = 1 / 32  # of the distance to 1, with each step without drafts that is seen
_LEAST_GAIN = 1.08  # expected tokens a second of a step with drafts, to those of one without: estimates err
_REMEMBERED = 16  # steps until what follows from costs is computed again
_LOOKAHEAD = 6  # drafts without gain after which no more are considered: kernels compute rows by tiles


class StepCosts:
    """Relative time of a step by its rows, corrected by each step that is seen.

    A factor follows from steps after one of another number of rows, because times drift, as contexts grow or the host
    is busy. A factor above that of the present steps fades, so that a number of rows that was slow is tried again.
    """

    def __init__(self) -> None:
        self._scale = 0.0  # time of a step of one row, as of the latest steps
        self._last = 0  # rows of the latest step
        self._rows: list[int] = []  # numbers of rows that were seen, ascending
        self._factors: list[float] = []  # of each: by how much its steps were longer than expected
        self._counts: list[int] = []  # of each: how often it followed another
        # Results of `least_chance` and `of_late`, until `_num_seen` is a multiple of _REMEMBERED.
        self._least: dict[int, float] = {}
        self._late: dict[int, float] = {}
        self._num_seen = 0
        self.trust = 1.0  # tokens a second of steps with drafts, to those that were expected of them

    def observe(self, rows: int, time: float) -> None:
        """Learn from a step of `rows` rows. The unit of `time` is the same in all calls."""
        if time <= 0:
            return
        self._num_seen += 1
        if self._num_seen % _REMEMBERED == 0:
            self._least.clear()
            self._late.clear()
        if rows > _EXACT:
            rows = -(-rows // _COARSE) * _COARSE
        at = bisect(self._rows, rows) - 1
        if at < 0 or self._rows[at] != rows:
            factor, at = self._factor(rows), at + 1
            self._rows.insert(at, rows)
            self._factors.insert(at, factor)
            self._counts.insert(at, 0)
        expected = self._scale * self._factors[at] * _expected(rows)
        change = min(max(time / expected, 1 / _MOST_CHANGE), _MOST_CHANGE) if expected else 1.0
        if self._last in (0, rows):
            self._scale = self._scale * change**_LEARNS or time / _expected(rows)
        else:
            self._counts[at] += 1
            self._factors[at] *= change ** max(_LEARNS, 1 / (1 + self._counts[at]))
        self._last, present = rows, self._factors[at]
        self._factors = [each - (each - present) * _FADES if each > present else each for each in self._factors]

    def compare(self, num_tokens: float, expected: float, rows: int, time: float) -> None:
        """Learn how far to trust expectations: a step of `rows` rows has brought `num_tokens`."""
        found = num_tokens / expected * self._scale * self.of(rows) / time if time > 0 and self._scale else 1.0
        self.trust += _TRUSTS * (min(max(found, 1 / _MOST_CHANGE), _MOST_CHANGE) - self.trust)

    def forgive(self) -> None:
        """Trust expectations a little more, so that drafts which did not pay are tried again."""
        self.trust += _FORGIVES * (1 - self.trust)

    def least_chance(self, rows: int) -> float:
        """Return the chance below which no draft is worth its row beside `rows` rows, as of a few steps ago."""
        if rows not in self._least:
            alone = self.of(rows)
            shares = [rows * (self.of(rows + count) / alone - 1) / count for count in range(1, _EXACT)]
            self._least[rows] = max(_LEAST_CHANCE, min(shares))
        return self._least[rows]

    def of_late(self, rows: int) -> float:
        """Return the relative cost of a step of `rows` rows, as of a few steps ago."""
        if rows not in self._late:
            self._late[rows] = self.of(rows)
        return self._late[rows]

    def seconds(self, rows: int) -> float:
        """Return the time of a step of `rows` rows; 0 before any was seen."""
        return self._scale * self.of(rows)

    def of(self, rows: int) -> float:
        """Return the relative cost of a step of `rows` rows."""
        return self._factor(rows) * _expected(rows)

    def _factor(self, rows: int) -> float:
        """Return the factor between the nearest numbers of rows that were seen, or of the nearest."""
        if not self._rows:
            return 1.0
        at = bisect(self._rows, rows)
        if at == 0 or at == len(self._rows):
            return self._factors[max(0, at - 1)]
        low, high = self._rows[at - 1], self._rows[at]
        share = (rows - low) / (high - low)
        return self._factors[at - 1] * (1 - share) + self._factors[at] * share


def _expected(rows: int) -> float:
    return 1 + _ROW_SHARE * (rows - 1)


class Record:
    """How often the drafts of one sequence were right. Every token counts, verified in the step of its draft or not."""

    __slots__ = ("_first", "_going", "_is_given", "_num_added", "is_resumed", "num_idle", "run")

    def __init__(self, given: float | None = None, known: Record | None = None) -> None:
        """Begin with the chances of `known`, or without history. A `given` chance of each draft stays."""
        self._is_given = given is not None
        self._first, self._going = [_FRESH, _RESUMED], _GOING
        if given is not None:
            self._first, self._going = [given, given], given
        elif known is not None:
            self._first, self._going = list(known._first), known._going
        self._num_added = 0
        self.is_resumed = False  # the next draft follows a wrong one of the same text, so it is not from a search
        self.run = 0  # right drafts since the last wrong one
        self.num_idle = 0  # wrong drafts, and searches without one, less those that right drafts make good

    def add(self, is_right: bool) -> None:
        """Count a draft."""
        if self._is_given:
            return
        self._num_added += 1
        if self.run:
            self._going += _RECALLS * (is_right - self._going)
        else:
            self._first[self.is_resumed] += _RECALLS * (is_right - self._first[self.is_resumed])
        self.run = self.run + 1 if is_right else 0
        self.num_idle = self.num_idle // 2 if is_right else min(self.num_idle + 1, _MOST_IDLE)

    def miss(self) -> None:
        """Count a search without a draft."""
        self.num_idle = min(self.num_idle + 1, _MOST_IDLE)

    @property
    def pause(self) -> int:
        """Steps until another search is worth it."""
        return int(2 ** max(0, self.num_idle - _MOST_FREE))

    def learn(self, other: Record) -> None:
        """Take up a part of the chances of a sequence that has ended."""
        if other._num_added >= _LEAST_LESSON:
            self._going += _TEACHES * (other._going - self._going)
            self._first = [mine + _TEACHES * (its - mine) for mine, its in zip(self._first, other._first, strict=True)]

    def forget(self) -> None:
        """Move a little towards a sequence without history, so that drafts that were wrong are tried again."""
        if not self._is_given:
            self._first[0] += _FORGETS * (_FRESH - self._first[0])
            self._going += _FORGETS * (_GOING - self._going)

    @property
    def chance(self) -> float:
        """Chance that the next draft is right."""
        return self._going if self.run else self._first[self.is_resumed]

    def chances(self, count: int) -> Iterator[float]:
        """Return the chances that the first, the first two ... `count` drafts are right, while they are not small."""
        chance = self.chance
        while count and chance >= _LEAST_CHANCE:
            yield chance
            chance, count = chance * self._going, count - 1


def best_depths(drafts: list[tuple[Record, int]], num_rows: int, most: int, costs: StepCosts) -> list[int]:
    """Return how many of each sequence's drafts to verify, given its record and their number.

    The step has `num_rows` rows, one for each sequence that decodes, and room for `most` drafts.
    """
    chances = [zip(record.chances(count), repeat(i)) for i, (record, count) in enumerate(drafts)]
    best, chosen, tokens = _LEAST_GAIN * num_rows / costs.of_late(num_rows), 0, float(num_rows)
    order: list[int] = []
    for chance, i in islice(merge(*chances, reverse=True), most):
        tokens += chance
        order.append(i)
        if (speed := costs.trust * tokens / costs.of_late(num_rows + len(order))) > best:
            best, chosen = speed, len(order)
        elif len(order) - chosen >= _LOOKAHEAD:
            break
    depths = [0] * len(drafts)
    for i in order[:chosen]:
        depths[i] += 1
    return depths
