"""Keeps workers on different CPUs: a worker that wakes on another worker's CPU moves away.

After a tenth of a second without work, Linux woke both threads of a step on one CPU of a virtual machine and left them
there for about fifty milliseconds, probably because it does not count a virtual CPU as idle that its host has put
aside. Steps took ten times as long meanwhile: a worker had to spin and then yield before the worker that it waits for
could run.

A thread that has moved is kept off the other workers' CPUs for the next steps, so that it wakes where it was. After
that Linux places it freely again. On a system without these functions (macOS) nothing is done.
"""

from __future__ import annotations

import ctypes
import os

from .isa.jit import inline
from .isa.memory import call_function, load_i64, store_i64

FUNCTIONS = ("sched_getcpu", "sched_getaffinity", "sched_setaffinity")  # of the C library
_GET_CPU, _GET_MASK, _SET_MASK = 0, 8, 16  # offsets of their addresses
_MASK_BYTES = 128  # room for 1,024 CPUs; a kernel with more refuses the call, and no thread moves
_STEPS = 64  # number of steps that a thread stays off the other workers' CPUs
KEPT, _MASK, _OTHERS = 8, 64, 64 + _MASK_BYTES  # offsets: steps left; allowed CPUs; those without a worker
PLACE_BYTES = _OTHERS + _MASK_BYTES  # bytes for each worker: its last CPU, and the fields above


def function_addresses() -> tuple[int, ...]:
    """Return the addresses of FUNCTIONS; zeros if the system lacks one."""
    libc = ctypes.CDLL(None)
    if not hasattr(os, "sched_setaffinity") or not all(hasattr(libc, name) for name in FUNCTIONS):
        return (0,) * len(FUNCTIONS)
    return tuple(ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0 for name in FUNCTIONS)


@inline
def note(functions, place):  # type: ignore[no-untyped-def]
    """Store the CPU that this worker runs on. `functions` and `place` are addresses of tables."""
    if load_i64(functions + _GET_CPU) != 0:
        store_i64(place, call_function(load_i64(functions + _GET_CPU), 0, 0, 0))


@inline
def settle(functions, places, stride, worker, workers):  # type: ignore[no-untyped-def]
    """Store the CPU that this worker runs on, and move away if another worker is on it."""
    if load_i64(functions + _GET_CPU) == 0:
        return
    own = places + worker * stride
    note(functions, own)
    if load_i64(own) < 0:  # the system has the function but does not answer
        return
    steps = load_i64(own + KEPT)
    if steps > 0:
        store_i64(own + KEPT, steps - 1)
        if steps == 1:
            call_function(load_i64(functions + _SET_MASK), 0, _MASK_BYTES, own + _MASK)
    for other in range(workers):
        if other != worker and load_i64(places + other * stride) == load_i64(own):
            _leave(functions, places, stride, own, workers)
            return


@inline
def _leave(functions, places, stride, own, workers):  # type: ignore[no-untyped-def]
    """Keep this thread off the CPUs where workers were last, if it may use any others."""
    get_mask, is_kept = load_i64(functions + _GET_MASK), load_i64(own + KEPT) > 0
    if not is_kept and call_function(get_mask, 0, _MASK_BYTES, own + _MASK) != 0:
        return
    for at in range(0, _MASK_BYTES, 8):
        store_i64(own + _OTHERS + at, load_i64(own + _MASK + at))
    for worker in range(workers):
        cpu = load_i64(places + worker * stride)
        at = own + _OTHERS + cpu // 64 * 8
        store_i64(at, load_i64(at) & ~(1 << (cpu & 63)))
    is_none = True
    for at in range(0, _MASK_BYTES, 8):
        is_none &= load_i64(own + _OTHERS + at) == 0
    if is_none:
        return
    call_function(load_i64(functions + _SET_MASK), 0, _MASK_BYTES, own + _OTHERS)
    store_i64(own + KEPT, _STEPS)
    note(functions, own)
