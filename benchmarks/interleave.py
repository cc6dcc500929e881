"""Turns of the contenders: each runs once a round, the order rotates, and all others are stopped meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.ratios import Ratio, ratio_of
from benchmarks.records import METRICS, BenchmarkError, Case, Contender, Figures, Skipped

WARM_UP_SEED = 1_000_000  # far from the seeds of rounds


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a case: `repetitions` rounds, or fewer if `max_seconds` have passed."""

    repetitions: int
    max_seconds: float | None = None


@dataclass(slots=True)
class CaseResult:
    """Rounds of one case: figures of each contender that finished."""

    case: Case
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def ratio(self, metric: str, ours: str, theirs: str) -> Ratio:
        """Return the ratio of this engine's values to a peer's."""
        return ratio_of([f[metric] for f in self.rounds[ours]], [f[metric] for f in self.rounds[theirs]])


class Interleaved:
    """Measures cases with contenders that have been started and paused."""

    def __init__(self, contenders: Sequence[Contender], limits: Limits, on_turn: Callable[[str], None]) -> None:
        """`on_turn` is called before each measurement."""
        self._contenders, self._limits, self._on_turn = list(contenders), limits, on_turn

    def measure(self, case: Case) -> CaseResult:
        """Run a warm-up, then the rounds. A contender that fails is excluded from the whole case."""
        result, present = CaseResult(case), self._contenders
        if case.has_warm_up:
            present = [c for c in present if self._turn(c, case, WARM_UP_SEED, result) is not None]
        result.rounds = {contender.name: [] for contender in present}
        begin = time.monotonic()
        for number in range(self._limits.repetitions):
            if number and self._is_late(begin):
                break
            failed = self._round(turned(present, number), case, number, result)
            present = [contender for contender in present if contender not in failed]
        result.rounds = {contender.name: result.rounds[contender.name] for contender in present}
        return result

    def _is_late(self, begin: float) -> bool:
        limit = self._limits.max_seconds
        return limit is not None and time.monotonic() - begin > limit

    def _round(self, order: Sequence[Contender], case: Case, number: int, result: CaseResult) -> list[Contender]:
        """Give each contender its turn; returns those that failed."""
        failed = []
        for contender in order:
            figures = self._turn(contender, case, number, result)
            if figures is None:
                failed.append(contender)
            else:
                result.rounds[contender.name].append(figures)
        return failed

    def _turn(self, contender: Contender, case: Case, seed: int, result: CaseResult) -> Figures | None:
        self._on_turn(f"{case.name}: {contender.name}")
        contender.resume()
        try:
            figures = contender.measure(case, seed)
            return {metric.name: positive(figures, metric.name, contender.name) for metric in METRICS[case.kind]}
        except BenchmarkError as error:
            result.skipped.append(Skipped(contender.name, case.name, str(error)))
            return None
        finally:
            contender.pause()


def turned(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """Return the order of round `number`: each round begins with the next contender."""
    first = number % max(len(contenders), 1)
    return [*contenders[first:], *contenders[:first]]


def positive(figures: Figures, metric: str, name: str) -> float:
    """Return a figure; raises BenchmarkError if it is missing or not positive."""
    value = figures.get(metric)
    if value is None or not 0 < value < float("inf"):
        raise BenchmarkError(f"{name} gave {value} as {metric}")
    return value
