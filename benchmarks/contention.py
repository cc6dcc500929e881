"""Decode beside other work: a contender measured quiet, and again with a busy process on each CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.process import Process
from benchmarks.records import Case, Contender, Figures
from server.device.affinity import allowed_cpus

_BUSY = "import os\nif hasattr(os, 'sched_setaffinity'): os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"


class Contended:
    """A contender of decode that reports how much of its quiet speed it keeps."""

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
    """A process on each CPU of this one, which computes without an end."""
    with ExitStack() as stack:
        for cpu in sorted(allowed_cpus()):
            stack.callback(Process([sys.executable, "-S", "-c", _BUSY.format(cpu=cpu)]).stop)
        yield
