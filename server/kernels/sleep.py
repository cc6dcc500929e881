"""Sleeping places of worker threads between two programs: PLACE_BYTES each in the control block.

Linux has semaphores in a process's own memory, one atomic operation if no thread sleeps. macOS has the functions but
not the semaphores (sem_init fails with ENOSYS); there, and on request, a mutex and a condition variable replace them. A
wake-up then takes a lock more at both ends; the results are the same.
"""

from __future__ import annotations

import sys
from typing import Literal

from numba import types

from .isa.jit import inline
from .isa.memory import load_i64, store_i64

Sleep = Literal["semaphore", "condition"]

HOST_SLEEP: Sleep = "condition" if sys.platform == "darwin" else "semaphore"
PLACE_BYTES = 192  # no two places share a cache line
KINDS: tuple[Sleep, ...] = ("semaphore", "condition")  # indexed by the number in the control block

_SEMAPHORE = KINDS.index("semaphore")
_CONDITION, _COUNT = 64, 128  # offsets; a semaphore or a mutex is at 0, and none is larger than a line

_pointer, _status = types.int64, types.int32
_sem_init = types.ExternalFunction("sem_init", _status(_pointer, types.int32, types.uint32))
_sem_wait = types.ExternalFunction("sem_wait", _status(_pointer))
_sem_post = types.ExternalFunction("sem_post", _status(_pointer))
_mutex_init = types.ExternalFunction("pthread_mutex_init", _status(_pointer, _pointer))
_mutex_lock = types.ExternalFunction("pthread_mutex_lock", _status(_pointer))
_mutex_unlock = types.ExternalFunction("pthread_mutex_unlock", _status(_pointer))
_cond_init = types.ExternalFunction("pthread_cond_init", _status(_pointer, _pointer))
_cond_wait = types.ExternalFunction("pthread_cond_wait", _status(_pointer, _pointer))
_cond_signal = types.ExternalFunction("pthread_cond_signal", _status(_pointer))


@inline
def init(place, kind):  # type: ignore[no-untyped-def]
    """Initialize a place; returns 0 if the host supports this kind."""
    if kind == _SEMAPHORE:
        return _sem_init(place, 0, 0)
    store_i64(place + _COUNT, 0)
    return _mutex_init(place, 0) | _cond_init(place + _CONDITION, 0)


@inline
def wait(place, kind):  # type: ignore[no-untyped-def]
    """Sleep until there is a wake-up, and consume it."""
    if kind == _SEMAPHORE:
        while _sem_wait(place) != 0:
            pass  # interrupted by a signal
    else:
        _mutex_lock(place)
        while load_i64(place + _COUNT) == 0:
            _cond_wait(place + _CONDITION, place)
        store_i64(place + _COUNT, load_i64(place + _COUNT) - 1)
        _mutex_unlock(place)


@inline
def wake(place, kind):  # type: ignore[no-untyped-def]
    """Wake the thread of this place once for each call, whether it sleeps already or not."""
    if kind == _SEMAPHORE:
        _sem_post(place)
    else:
        _mutex_lock(place)
        store_i64(place + _COUNT, load_i64(place + _COUNT) + 1)
        _cond_signal(place + _CONDITION)
        _mutex_unlock(place)
