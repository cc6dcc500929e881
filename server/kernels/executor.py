"""Runs a program: every worker executes the same instructions and meets the others at a barrier after each.

Workers are threads that stay inside compiled code: between steps they sleep (sleep.py), and within a step they never
touch the interpreter. The control block is one int64 array; its fields are ControlRecord.

At a barrier a worker spins, since the others are a few microseconds behind. If another process has taken the CPU of one
of them, it is milliseconds behind: a worker that spins for so long uses up its own share of a CPU and is descheduled in
turn. So once a wait has met such a process, workers sleep at barriers for the next steps: Linux prefers a thread that
has slept, and meanwhile its CPU is free for the worker that is behind.

A program that divides its work by rows from the first instruction to the last needs only a barrier at its end, because
no row depends on another. Its rows are divided into shares, and each worker runs the whole program for one free share
after the other. A worker whose CPU is taken away then delays no other.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from . import apart, sleep
from .isa import instruction
from .isa.jit import HostFunction, inline
from .isa.memory import (
    NOTHING,
    call_kernel,
    emitted,
    exchange,
    fetch_add,
    load_acquire,
    load_i64,
    store_release,
)
from .records import offsets


class Instruction(NamedTuple):
    """One instruction of a program."""

    kernel: int  # address of the code
    operands: int  # address of one record for each core
    cores: int


class ControlRecord(NamedTuple):
    """State that the workers share. Fields written by several threads are a cache line apart."""

    program: int  # address of Instructions
    length: int
    step: int  # address of the step record
    workers: int
    stopping: int
    trace: int  # address of `length + 1` timespecs for worker 0 to fill, or 0
    sleep: int  # index in sleep.KINDS
    contended_steps: int  # number of further steps in which workers sleep at barriers
    arrivals: int  # barrier tickets handed out so far
    shares: int  # of rows, each of which runs the whole program; 0: workers meet after each instruction
    shares_taken: int
    functions: int  # addresses of apart.FUNCTIONS
    functions_1: int
    functions_2: int
    pad_14: int
    pad_15: int
    slots: int  # the first of `workers` slots, SLOT_BYTES apart, follows here


INSTRUCTION = offsets(Instruction)
INSTRUCTION_BYTES = 24
CONTROL = offsets(ControlRecord)
_SLEEPS = sleep.PLACE_BYTES  # offset of an int64: 1 while the worker sleeps at a barrier
_NOW = sleep.PLACE_BYTES + 8  # offset of a timespec that the worker uses
_WHERE = sleep.PLACE_BYTES + 64  # offset of the CPU that the worker is on (apart.py)
KEPT = _WHERE + apart.KEPT  # offset of the steps for which the worker is kept off other CPUs
SLOT_BYTES = _WHERE + apart.PLACE_BYTES  # bytes for each worker: its sleeping place, and the fields above

TIMESPEC_BYTES = 16  # int64 seconds, int64 nanoseconds
_CLOCK = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)  # time.monotonic's clock; macOS has the former

_SPINS_BEFORE_YIELD = 2000  # about 50 us: more than a balanced kernel's spread, less than a time slice
_CONTENDED_NS = 2_000_000  # a yield that takes longer has run another process's computation
_CONTENDED_STEPS = 256  # after which workers test again whether they are alone

_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
_sched_yield = types.ExternalFunction("sched_yield", types.int32())


# By the beginning of LLVM's triple: an intrinsic and its arguments.
_PAUSES: dict[str, tuple[str, tuple[int, ...]]] = {
    "x86_64": ("llvm.x86.sse2.pause", ()),
    "aarch64": ("llvm.aarch64.hint", (1,)),
    "arm64": ("llvm.aarch64.hint", (1,)),
}


@emitted(types.void)
def pause(builder: Any) -> Any:
    """Signal a spin loop to the CPU."""
    found = _PAUSES.get(builder.module.triple.partition("-")[0])
    if found is not None:
        name, numbers = found
        values = [ir.Constant(ir.IntType(32), number) for number in numbers]
        instruction.call(builder, name, ir.VoidType(), *values)
    return NOTHING


@inline
def _slot(control, worker):  # type: ignore[no-untyped-def]
    """Return the address of a worker's slot."""
    return control + CONTROL.slots + worker * SLOT_BYTES


@inline
def _now_ns(slot):  # type: ignore[no-untyped-def]
    _clock_gettime(_CLOCK, slot + _NOW)
    return load_i64(slot + _NOW) * 1_000_000_000 + load_i64(slot + _NOW + 8)


@inline
def _sleep_at_barrier(slot, kind, arrivals, goal):  # type: ignore[no-untyped-def]
    """Sleep until the last worker arrives; a wake-up of an earlier barrier may end it too early.

    The thread that clears the mark must send the wake-up: the last to arrive, or this worker if that one has come
    meanwhile.
    """
    exchange(slot + _SLEEPS, 1)
    if fetch_add(arrivals, 0) < goal or exchange(slot + _SLEEPS, 0) == 0:
        sleep.wait(slot, kind)


@inline
def _wake_sleepers(control, workers):  # type: ignore[no-untyped-def]
    kind = load_i64(control + CONTROL.sleep)
    for worker in range(workers):
        slot = _slot(control, worker)
        if load_acquire(slot + _SLEEPS) != 0 and exchange(slot + _SLEEPS, 0) != 0:
            sleep.wake(slot, kind)


@inline
def _yield(control, slot):  # type: ignore[no-untyped-def]
    """Yield the CPU, and record whether another process used it."""
    begin = _now_ns(slot)
    _sched_yield()
    if _now_ns(slot) - begin > _CONTENDED_NS:
        store_release(control + CONTROL.contended_steps, _CONTENDED_STEPS)


@inline
def _barrier(control, workers, worker):  # type: ignore[no-untyped-def]
    """Wait until every worker has come here as often as this one. The count only grows, so nothing is reset."""
    arrivals, slot = control + CONTROL.arrivals, _slot(control, worker)
    ticket = fetch_add(arrivals, 1)
    goal = (ticket // workers + 1) * workers
    if ticket + 1 == goal:
        _wake_sleepers(control, workers)
    spins = 0
    while load_acquire(arrivals) < goal:
        spins += 1
        if spins % _SPINS_BEFORE_YIELD == 0:
            if load_acquire(control + CONTROL.contended_steps) > 0:
                _sleep_at_barrier(slot, load_i64(control + CONTROL.sleep), arrivals, goal)
            else:
                _yield(control, slot)
        pause()


@inline
def _call(control, i, worker, workers):  # type: ignore[no-untyped-def]
    at = load_i64(control + CONTROL.program) + i * INSTRUCTION_BYTES
    kernel, operands = load_i64(at + INSTRUCTION.kernel), load_i64(at + INSTRUCTION.operands)
    step = load_i64(control + CONTROL.step)
    call_kernel(kernel, operands, load_i64(at + INSTRUCTION.cores), step, worker, workers)


@inline
def _execute_shares(control, worker, shares):  # type: ignore[no-untyped-def]
    length, share = load_i64(control + CONTROL.length), fetch_add(control + CONTROL.shares_taken, 1)
    while share < shares:
        for i in range(length):
            _call(control, i, share, -shares)
        share = fetch_add(control + CONTROL.shares_taken, 1)
    _barrier(control, load_i64(control + CONTROL.workers), worker)


@inline
def _execute_together(control, worker):  # type: ignore[no-untyped-def]
    length, workers = load_i64(control + CONTROL.length), load_i64(control + CONTROL.workers)
    trace = 0
    if worker == 0:
        trace = load_i64(control + CONTROL.trace)
    if trace != 0:
        _clock_gettime(_CLOCK, trace)
    for i in range(length):
        _call(control, i, worker, workers)
        _barrier(control, workers, worker)
        if trace != 0:
            _clock_gettime(_CLOCK, trace + (i + 1) * TIMESPEC_BYTES)


@inline
def _execute(control, worker):  # type: ignore[no-untyped-def]
    shares = load_i64(control + CONTROL.shares)
    if shares > 0:
        _execute_shares(control, worker, shares)
    else:
        _execute_together(control, worker)


@inline
def _wake_others(control):  # type: ignore[no-untyped-def]
    kind = load_i64(control + CONTROL.sleep)
    for worker in range(1, load_i64(control + CONTROL.workers)):
        sleep.wake(_slot(control, worker), kind)


@HostFunction
def init_control(control: int) -> int:
    """Initialize the sleeping places. Returns 0 if the host supports them."""
    status = 0
    for worker in range(load_i64(control + CONTROL.workers)):
        status |= sleep.init(_slot(control, worker), load_i64(control + CONTROL.sleep))
    return status


@HostFunction
def serve_steps(control: int, worker: int) -> None:
    """Run a worker thread: sleep, execute a program, repeat. Returns when the pool stops."""
    kind = load_i64(control + CONTROL.sleep)
    while True:
        sleep.wait(_slot(control, worker), kind)
        if load_acquire(control + CONTROL.stopping) != 0:
            return
        workers, places = load_i64(control + CONTROL.workers), _slot(control, 0) + _WHERE
        apart.settle(control + CONTROL.functions, places, SLOT_BYTES, worker, workers)
        _execute(control, worker)


@HostFunction
def run_step(control: int) -> None:
    """Wake the workers and run the program with them as worker 0; returns when all are done.

    The number of workers may differ from the last step: barriers count from a multiple of it on.
    """
    workers = load_i64(control + CONTROL.workers)
    fetch_add(control + CONTROL.arrivals, -load_acquire(control + CONTROL.arrivals) % workers)
    store_release(control + CONTROL.shares_taken, 0)
    contended_steps = load_i64(control + CONTROL.contended_steps)
    if contended_steps > 0:
        store_release(control + CONTROL.contended_steps, contended_steps - 1)
    apart.note(control + CONTROL.functions, _slot(control, 0) + _WHERE)
    _wake_others(control)
    _execute(control, 0)


@HostFunction
def stop_workers(control: int) -> None:
    """Let the worker threads return."""
    store_release(control + CONTROL.stopping, 1)
    _wake_others(control)


FUNCTIONS = (init_control, serve_steps, run_step, stop_workers)
