"""Runs a program: every worker walks the same instructions and meets the others at a barrier after each.

Workers are threads that stay inside compiled code: between steps they sleep (sleep.py), within a step they never touch
the interpreter. The control block is one int64 array; its fields are ControlRecord.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from server.kernels import sleep
from server.kernels.isa.jit import HostFunction, inline
from server.kernels.isa.memory import NOTHING, call_kernel, emitted, fetch_add, load_acquire, load_i64, store_release
from server.kernels.records import offsets


class Instruction(NamedTuple):
    """One line of a program."""

    kernel: int  # address of the code
    operands: int  # address of one record for each core
    cores: int


class ControlRecord(NamedTuple):
    """What the workers share. Fields written by several threads are a cache line apart."""

    program: int  # address of Instructions
    length: int
    step: int  # address of the step record
    workers: int
    stopping: int
    trace: int  # address of `length + 1` timespecs for worker 0 to fill, or 0
    sleep: int  # number of the way to sleep, of sleep.KINDS
    pad_7: int
    arrivals: int  # barrier tickets handed out so far
    pad_9: int
    pad_10: int
    pad_11: int
    pad_12: int
    pad_13: int
    pad_14: int
    pad_15: int
    places: int  # the first of `workers` places to sleep, sleep.PLACE_BYTES apart, follows here


INSTRUCTION = offsets(Instruction)
INSTRUCTION_BYTES = 24
CONTROL = offsets(ControlRecord)

TIMESPEC_BYTES = 16  # int64 seconds, int64 nanoseconds
_CLOCK = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)  # that of time.monotonic, which on macOS is the former

_SPINS_BEFORE_YIELD = 2000  # about 50 us: longer than a balanced kernel's spread, shorter than a time slice

_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


# By the architecture that code is emitted for, as LLVM's triples begin: an intrinsic and its arguments.
_PAUSES: dict[str, tuple[str, tuple[int, ...]]] = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.hint", (1,)),
    "arm64": ("llvm.aarch64.hint", (1,)),
}


@emitted(types.void)
def pause(builder: Any) -> Any:
    """Tell the core that this is a spin loop."""
    found = _PAUSES.get(builder.module.triple.partition("-")[0])
    if found is not None:
        name, numbers = found
        values = [ir.Constant(ir.IntType(32), number) for number in numbers]
        function_type = ir.FunctionType(ir.VoidType(), [v.type for v in values])
        builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), values)
    return NOTHING


@inline
def _barrier(control, workers):  # type: ignore[no-untyped-def]
    """Wait until every worker has come here as often as this one. The count only grows, so nothing is reset."""
    arrivals = control + CONTROL.arrivals
    goal = (fetch_add(arrivals, 1) // workers + 1) * workers
    spins = 0
    while load_acquire(arrivals) < goal:
        spins += 1
        if spins % _SPINS_BEFORE_YIELD == 0:
            _sched_yield()
        pause()


@inline
def _execute(control, worker):  # type: ignore[no-untyped-def]
    program, length = load_i64(control + CONTROL.program), load_i64(control + CONTROL.length)
    step, workers = load_i64(control + CONTROL.step), load_i64(control + CONTROL.workers)
    trace = 0
    if worker == 0:
        trace = load_i64(control + CONTROL.trace)
    if trace != 0:
        _clock_gettime(_CLOCK, trace)
    for i in range(length):
        at = program + i * INSTRUCTION_BYTES
        kernel, operands = load_i64(at + INSTRUCTION.kernel), load_i64(at + INSTRUCTION.operands)
        call_kernel(kernel, operands, load_i64(at + INSTRUCTION.cores), step, worker, workers)
        _barrier(control, workers)
        if trace != 0:
            _clock_gettime(_CLOCK, trace + (i + 1) * TIMESPEC_BYTES)


@inline
def _place(control, worker):  # type: ignore[no-untyped-def]
    """Where a worker sleeps."""
    return control + CONTROL.places + worker * sleep.PLACE_BYTES


@inline
def _wake_others(control):  # type: ignore[no-untyped-def]
    kind = load_i64(control + CONTROL.sleep)
    for worker in range(1, load_i64(control + CONTROL.workers)):
        sleep.wake(_place(control, worker), kind)


@HostFunction
def init_control(control: int) -> int:
    """Make the places to sleep; 0 when the host has them."""
    status = 0
    for worker in range(load_i64(control + CONTROL.workers)):
        status |= sleep.init(_place(control, worker), load_i64(control + CONTROL.sleep))
    return status


@HostFunction
def serve_steps(control: int, worker: int) -> None:
    """The life of a worker thread: sleep, run a program, sleep; returns when told to stop."""
    kind = load_i64(control + CONTROL.sleep)
    while True:
        sleep.wait(_place(control, worker), kind)
        if load_acquire(control + CONTROL.stopping) != 0:
            return
        _execute(control, worker)


@HostFunction
def run_step(control: int) -> None:
    """Wake the workers and run the program with them as worker 0; returns when all are done."""
    _wake_others(control)
    _execute(control, 0)


@HostFunction
def stop_workers(control: int) -> None:
    """Let the worker threads return."""
    store_release(control + CONTROL.stopping, 1)
    _wake_others(control)
