"""Progress bars of a start on a terminal.

A line that ends in `3/8`, or `(3/8)`, is a step of a series, named by its first word: loading, compiling.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

log = logging.getLogger("neuronserve")
_STEP = re.compile(r"(?:engine \d+: )?(?P<verb>\w+) (?P<what>.*?) ?\(?(?P<number>\d+)/(?P<total>\d+)\)?")


@contextmanager
def bars() -> Iterator[Callable[[str], None]]:
    """Return a function that takes the lines of a start, and show bars until the block is left."""
    columns = TextColumn("{task.description:<10}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn()
    detail = TextColumn("{task.fields[what]}")
    with Progress(*columns, detail, console=Console(stderr=True), transient=True) as progress:
        yield _Bars(progress).report


class _Bars:
    """Series seen so far, each with its bar; an engine is in one series at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._totals: dict[str, int] = {}  # of the engines' series

    def report(self, line: str) -> None:
        """Move a bar, or log a line that is no step."""
        step = _STEP.fullmatch(line)
        engine = line.partition(": ")[0] if line.startswith("engine ") else ""
        series = "" if step is None else engine + step["verb"]
        for other in [each for each in self._totals if each.startswith(engine) and each != series]:
            self._progress.update(self._tasks[other], completed=self._totals.pop(other))
        if step is None:
            log.info("%s", line)
            return
        number, total = int(step["number"]), int(step["total"])
        self._totals[series] = total
        if series not in self._tasks:
            self._tasks[series] = self._progress.add_task(f"{engine} {step['verb']}".strip(), total=total, what="")
        if number == 1:
            self._progress.reset(self._tasks[series], total=total)
        # This step has only begun.
        self._progress.update(self._tasks[series], completed=number - 1, what=step["what"])
