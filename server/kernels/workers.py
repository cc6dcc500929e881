"""Host threads that carry the emulated cores. The host alone decides how cores are laid over threads."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from ..errors import DeviceError
from ..host.affinity import allowed_cpus
from ..host.cpu_watch import CpuWatch
from . import apart, executor
from .checks import AccessChecks
from .program import Program
from .sleep import HOST_SLEEP, KINDS, Sleep

log = logging.getLogger("neuronserve.engine")


class WorkerPool:
    """`num_threads` workers; the caller's thread is one of them. Only one thread may call `run`."""

    def __init__(self, num_threads: int, how: Sleep = HOST_SLEEP, watch: CpuWatch | None = None) -> None:
        """Programs run on all workers, or on as many as `watch` says.

        Raises DeviceError if `num_threads` is below 1, or the host lacks the primitive that they sleep on.
        """
        if num_threads < 1:
            raise DeviceError(f"cpu_threads is {num_threads}: at least 1 is needed")
        self.num_threads = self._wanted = num_threads
        self._watch, self._is_bound = watch, False
        self.busy_s = 0.0  # host time spent in programs since the pool was made
        words = len(executor.ControlRecord._fields) + num_threads * executor.SLOT_BYTES // 8 + 8
        self._memory: npt.NDArray[np.int64] = np.zeros(words, np.int64)
        self._control = -(-self._memory.ctypes.data // 64) * 64
        self._fields = self._memory[(self._control - self._memory.ctypes.data) // 8 :]
        self._set(executor.CONTROL.workers, num_threads)  # that init_control prepares
        self._set(executor.CONTROL.sleep, KINDS.index(how))
        for i, address in enumerate(apart.function_addresses()):
            self._set(executor.CONTROL.functions + i * 8, address)
        if executor.init_control(self._control) != 0:
            raise DeviceError(f"this host has no {how}, on which worker threads sleep")
        self._threads = [
            threading.Thread(target=executor.serve_steps, args=(self._control, i), name=f"core-{i}", daemon=True)
            for i in range(1, num_threads)
        ]
        for thread in self._threads:
            thread.start()
        # The threads use the control block until they end, so it must outlive a pool that is never closed.
        self.close = weakref.finalize(self, _stop, self._control, self._threads, self._fields)

    def bind(self, cpus: Sequence[int]) -> None:
        """Bind each worker to a CPU, the caller's thread to the first, before it runs programs. No CPUs: none is bound.

        Raises DeviceError if the host does not allow one of these. Does nothing except on Linux (host/affinity.py).
        """
        if not hasattr(os, "sched_setaffinity"):
            return
        self._is_bound = bool(cpus)
        threads = [threading.get_native_id(), *(thread.native_id or 0 for thread in self._threads)]
        for thread, cpu in zip(threads, cpus, strict=False):
            try:
                os.sched_setaffinity(thread, {cpu})
            except OSError as error:
                raise DeviceError(f"a worker thread cannot be bound to CPU {cpu}: {error.strerror}") from error

    @contextmanager
    def only(self, num_threads: int) -> Iterator[None]:
        """Run programs on the first `num_threads` workers inside the block; the others sleep. No result changes."""
        self._wanted = num_threads
        try:
            yield
        finally:
            self._wanted = self.num_threads

    @property
    def num_available(self) -> int:
        """Workers that have CPUs."""
        return self.num_threads if self._watch is None else self._watch.num_threads

    def _follow_cpus(self, num_before: int) -> None:
        """Report another number of workers that have CPUs; let the others run where the caller's thread may."""
        log.warning("the engine's CPUs have changed: steps run on %d threads, not %d", self.num_available, num_before)
        if self._is_bound or not hasattr(os, "sched_setaffinity"):
            return
        for i, thread in enumerate(self._threads, start=1):
            with contextlib.suppress(OSError):  # the CPUs have changed again
                os.sched_setaffinity(thread.native_id or 0, allowed_cpus())
            self._set(executor.CONTROL.slots + i * executor.SLOT_BYTES + executor.KEPT, 0)

    def _set(self, offset: int, value: int) -> None:
        self._fields[offset // 8] = value

    def run(self, program: Program, step: int, first: int = 0, shares: int = 0) -> None:
        """Run `program` from instruction `first` on with the step record at address `step`, and wait for all workers.

        Releases the GIL. `shares` above 0 divides the rows into shares that workers take one after the other without a
        barrier between instructions: only for a program that `is_by_rows`, and rows that do not read each other. No
        result changes. In checked mode raises KernelAccessError after an instruction that has left its operands'
        memory.
        """
        self._set(executor.CONTROL.shares, shares)
        self._run(program, step, None, first)

    def trace(self, program: Program, step: int) -> npt.NDArray[np.float64]:
        """Run `program` and return when each instruction was done, after the start: [len(program) + 1] seconds."""
        times = np.zeros((len(program) + 1, executor.TIMESPEC_BYTES // 8), np.int64)
        self._set(executor.CONTROL.shares, 0)
        self._run(program, step, times)
        return times[:, 0] + times[:, 1] * 1e-9

    def _run(self, program: Program, step: int, times: npt.NDArray[np.int64] | None, first: int = 0) -> None:
        self._set(executor.CONTROL.step, step)
        begin, checks, num_before = time.perf_counter(), AccessChecks.active, self.num_available
        if self._watch is not None and self._watch.look(begin):
            self._follow_cpus(num_before)
        self._set(executor.CONTROL.workers, min(self._wanted, self.num_available))
        if checks is None:
            self._run_part(program, first, len(program) - first, times)
        else:
            for i in range(first, len(program)):
                with checks.guard(program, i, step):
                    self._run_part(program, i, 1, times)
        self.busy_s += time.perf_counter() - begin

    def _run_part(self, program: Program, first: int, count: int, times: npt.NDArray[np.int64] | None) -> None:
        self._set(executor.CONTROL.program, program.address + first * executor.INSTRUCTION_BYTES)
        self._set(executor.CONTROL.length, count)
        self._set(executor.CONTROL.trace, 0 if times is None else times[first:].ctypes.data)
        executor.run_step(self._control)


def _stop(control: int, threads: list[threading.Thread], fields: npt.NDArray[np.int64]) -> None:
    """Let the threads end, and wait for them; the pool cannot be used afterwards."""
    fields[executor.CONTROL.workers // 8] = len(threads) + 1  # all of them, whichever ran the last program
    executor.stop_workers(control)
    for thread in threads:
        thread.join()
