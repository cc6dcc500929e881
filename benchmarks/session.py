"""A comparison from start to end: starts the contenders, gives them turns, and ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from benchmarks.interleave import CaseResult, Interleaved, Limits
from benchmarks.peers import Installed, contenders
from benchmarks.records import BenchmarkError, Case, Contender, Kind, Missing, Skipped

OnLine = Callable[[str], None]  # called with each line of progress


class Comparison:
    """Runs cases of one checkpoint. `about` collects what contenders report about themselves."""

    def __init__(self, installed: Installed, limits: Limits, peers: Sequence[str], on_line: OnLine) -> None:
        """`peers` are the names to compare with; empty means all."""
        self._installed, self._limits, self._peers, self._on_line = installed, limits, peers, on_line
        self.about: dict[str, dict[str, str]] = {}

    def run(self, kind: Kind, cases: Sequence[Case]) -> list[CaseResult]:
        """Run all cases of one kind with contenders that are started once."""
        largest = max((case.size for case in cases), default=0)
        with ExitStack() as stack:
            present, missing = self._start(contenders(kind, self._installed, largest), stack)
            interleaved = Interleaved(present, self._limits, self._on_line)
            results = [interleaved.measure(case) for case in cases]
            for contender in present:
                self.about[f"{contender.name}, {kind}"] = contender.about()
        for result in results:
            result.skipped = [
                *(Skipped(name, result.case.name, why) for name, why in missing.items()),
                *result.skipped,
            ]
        return results

    def _start(
        self, candidates: Iterable[Contender | Missing], stack: ExitStack
    ) -> tuple[list[Contender], dict[str, str]]:
        """Start and pause the contenders; returns them, and why others are missing."""
        present: list[Contender] = []
        missing: dict[str, str] = {}
        for number, candidate in enumerate(candidates):
            if number and self._peers and candidate.name not in self._peers:
                continue
            if isinstance(candidate, Missing):
                missing[candidate.name] = candidate.reason
            else:
                self._on_line(f"starting {candidate.name}")
                stack.callback(candidate.stop)
                try:
                    candidate.start()
                    candidate.pause()
                    present.append(candidate)
                except BenchmarkError as error:
                    missing[candidate.name] = str(error)
        return present, missing
