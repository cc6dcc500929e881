"""Decode beside other work: a contender measured alone, and again with a busy process on each CPU.

The busy processes belong to one program in one session. Where Linux divides CPUs between sessions first (autogroup),
each session has one weight for all of its threads. Beside one busy session a contender with a thread on each CPU gets
half of them; beside a session for each CPU it would get one share among them, a third of two CPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.process import Process
from benchmarks.records import Case, Contender, Figures
from neuronserve.server.host.affinity import allowed_cpus

_BUSY = """
import os, sys
first, *others = map(int, sys.argv[1:])
leader = os.getpid()
cpu = next((cpu for cpu in others if not os.fork()), first)
if hasattr(os, 'sched_setaffinity'):
    os.sched_setaffinity(0, {cpu})
print('busy', flush=True)
while os.getpid() == leader or os.getppid() == leader:  # ends with its parent
    for _ in range(100_000):
        pass
"""


class Contended:
    """A contender of decode that also reports which share of its speed it keeps."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self.name = contender.name

    def start(self) -> None:
        self._contender.start()

    def measure(self, case: Case, seed: int) -> Figures:
        del case
        decode, metric = Case("decode"), "decode_tokens_per_s"
        quiet = self._contender.measure(decode, seed)[metric]
        with busy_cpus():
            contended = self._contender.measure(decode, seed)[metric]
        return {"contended_tokens_per_s": contended, "kept_percent": 100 * contended / quiet}

    def pause(self) -> None:
        self._contender.pause()

    def resume(self) -> None:
        self._contender.resume()

    def stop(self) -> None:
        self._contender.stop()

    def about(self) -> dict[str, str]:
        return self._contender.about()


@contextmanager
def busy_cpus() -> Iterator[None]:
    """Run a busy process on each CPU of this process; all have started when the context begins."""
    cpus = [str(cpu) for cpu in sorted(allowed_cpus())]
    busy = Process([sys.executable, "-S", "-c", _BUSY, *cpus], has_pipes=True)
    try:
        for _ in cpus:
            busy.stdout.readline()
        yield
    finally:
        busy.stop()
