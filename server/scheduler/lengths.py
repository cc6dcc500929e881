"""When sequences that run will end, from how old they are and how long others were. Pure.

Ages are tokens generated. Of each age is known how many tokens were generated at it and how many sequences ended there,
so that those under way count too: that sixteen are sixty tokens old says something before any of them has ended. Where
nobody has been, the older are foreseen to end later. Each tenant has lengths of its own, which begin as everybody's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import pairwise
from math import exp, sqrt
from typing import NamedTuple

EDGES = tuple(sorted({round(2 ** (i / 4)) for i in range(72)}))  # ages at which bins begin
WIDTHS = tuple(end - begin for begin, end in pairwise((*EDGES, 2 * EDGES[-1])))
TIMES = (0, *sorted({round(1.5**i) for i in range(26)}))  # steps from now up to which ends are counted
FIRST_LENGTH = 64.0  # of which a sequence is foreseen to be before there was any
FALL = 2**-0.25  # of the rate of ends from bin to bin where nobody has been: as bins grow
NUM_ENDS_KEPT = 128  # what came before weighs less and less
DEVIATIONS = 2.0  # by which fewer end than are expected
NEARLY_SURE = 0.999
MAX_OPEN = 4096  # sequences whose tenants are known; aborted ones are among them
MAX_TENANTS = 64
MAX_WEIGHT = 1e100


class Running(NamedTuple):
    """A sequence in the batch."""

    age: int  # tokens that it has generated
    most: int  # that it may
    tenant: str


Aging = tuple[Running, list[float], float]  # with its tenant's sums of rates of ends, and that up to its age


class _Ages:
    """By bin, of one tenant or all: tokens that were generated, and sequences that ended. Later ones weigh more."""

    def __init__(self) -> None:
        self.tokens, self.ends = [0.0] * len(EDGES), [0.0] * len(EDGES)

    def chances(self, others: Sequence[float] | None, weight: float) -> list[float]:
        """Of an end at a token, by bin. One sequence more has passed them, of those of `others` or the bin before."""
        found, expected = list[float](), 1 / FIRST_LENGTH
        for i, width in enumerate(WIDTHS):
            expected = expected if others is None else others[i]
            expected = (self.ends[i] + expected * weight * width) / (self.tokens[i] + weight * width)
            found.append(expected)
            expected *= FALL
        return found

    def divide(self, by: float) -> None:
        """Have all weigh less."""
        self.tokens, self.ends = [each / by for each in self.tokens], [each / by for each in self.ends]


class Lengths:
    """Of the sequences of one engine."""

    def __init__(self) -> None:
        self._all, self._by_tenant, self._open = _Ages(), dict[str, _Ages](), dict[str, _Ages]()
        self._weight = 1.0  # of a token now

    def expect(self, request_id: str, tenant: str) -> None:
        """Note a sequence that was taken."""
        ages = self._by_tenant.pop(tenant, None) or _Ages()
        self._open[request_id] = self._by_tenant[tenant] = ages  # the tenant that came last is at the end
        for kept, most in ((self._open, MAX_OPEN), (self._by_tenant, MAX_TENANTS)):
            if len(kept) > most:
                del kept[next(iter(kept))]

    def generated(self, request_id: str, age: int, has_ended: bool) -> None:
        """Note a token, by which a sequence became so old, and whether it was the last."""
        number = bisect_right(EDGES, age) - 1
        self._all.tokens[number] += self._weight
        own = self._open.get(request_id)
        if own is not None:
            own.tokens[number] += self._weight
        if has_ended:
            for ages in (self._all,) if own is None else (self._all, own):
                ages.ends[number] += self._weight
            self._open.pop(request_id, None)
            self._weight /= 1 - 1 / NUM_ENDS_KEPT
            if self._weight > MAX_WEIGHT:
                for ages in (self._all, *self._by_tenant.values()):
                    ages.divide(self._weight)
                self._weight = 1.0

    def ends(self, running: Iterable[Running], mean: float) -> Ends:
        """Those of sequences that run, and of those that get their places, which have so many tokens on average."""
        return Ends(partial(self._with_sums, tuple(running)), mean)

    def _with_sums(self, running: Sequence[Running]) -> tuple[list[Aging], list[float]]:
        """Sequences, each with its tenant's sums of rates of ends; and everybody's."""
        of_all = self._all.chances(None, self._weight)
        everybody, by_tenant = _sums(of_all), dict[str, list[float]]()
        those = list[Aging]()
        for each in running:
            if each.tenant not in by_tenant:
                own = self._by_tenant.get(each.tenant)
                by_tenant[each.tenant] = everybody if own is None else _sums(own.chances(of_all, self._weight))
            sums = by_tenant[each.tenant]
            those.append((each, sums, _sum(sums, each.age)))
        return those, everybody


class Ends:
    """When sequences will end, as it was foreseen at one time."""

    def __init__(self, look: Callable[[], tuple[list[Aging], list[float]]], mean: float) -> None:
        """`look` says what is known, when that is asked for first; before the next turn."""
        self._look, self._mean = cache(look), mean
        self._least = [0.0]  # ends by each of TIMES, as far as they have been asked for
        self._expected = self._moment = 0.0  # ends of those that run by the last of these, and of their times

    def steps_until(self, num_ends: float) -> float:
        """Steps after which nearly always so many have ended, at most the last of TIMES."""
        while self._least[-1] < num_ends and len(self._least) < len(TIMES):
            self._least.append(max(self._least[-1], self._count(*TIMES[len(self._least) - 1 : len(self._least) + 1])))
        i = bisect_left(self._least, num_ends)
        if i in (0, len(self._least)):
            return float(TIMES[0 if i == 0 else -1])
        share = (num_ends - self._least[i - 1]) / (self._least[i] - self._least[i - 1])
        return TIMES[i - 1] + share * (TIMES[i] - TIMES[i - 1])

    def _count(self, before: int, steps: int) -> float:
        """Nearly the least that may have ended by so many steps, after they have been counted up to some before."""
        expected = variance = 0.0
        those, everybody = self._look()
        for each, sums, passed in those:
            age = each.age + steps
            chance = 1.0 if age >= each.most else 1 - exp(passed - _sum(sums, age))
            expected += chance
            variance += chance * (1 - chance)
        self._moment += (expected - self._expected) * (before + steps) / 2
        self._expected = expected
        left = steps - self._moment / max(expected, 1e-9)  # that those who follow have had
        followers = expected * (1 - exp(-_sum(everybody, int(left)))) * max(1.0, left / self._mean)
        alone = expected - DEVIATIONS * sqrt(variance)  # who follows takes away none of these
        return max(alone, expected + followers - DEVIATIONS * sqrt(variance + followers))


def _sums(chances: Iterable[float]) -> list[float]:
    """Of rates of ends at each token, up to each bin."""
    total, sums = 0.0, [0.0]
    for chance, width in zip(chances, WIDTHS, strict=True):
        sure = min(chance, NEARLY_SURE)
        total += sure / (1 - sure) * width
        sums.append(total)
    return sums


def _sum(sums: Sequence[float], age: int) -> float:
    """Of rates of ends at each token, up to an age and with it."""
    number = min(bisect_right(EDGES, age + 1), len(EDGES)) - 1
    return sums[number] + (sums[number + 1] - sums[number]) * (age + 1 - EDGES[number]) / WIDTHS[number]
