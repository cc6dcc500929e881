"""How kernels are compiled: every option, and the cache, in this one file.

A kernel is a C function `void(operands, cores, step, worker, workers)` of int64s. Each worker thread calls it with its
own `worker` index; the kernel takes its share of the work. Compilation is lazy: importing a kernel costs nothing, and
`compile_kernels` can say what it is doing. Numba's cache does not see changes in called files, so the cache folder is
named by a hash of this package's sources.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numba
from numba import types

SIGNATURE = types.void(types.int64, types.int64, types.int64, types.int64, types.int64)

# error_model numpy: a division checks nothing. No fastmath: the order of operations is part of the contract.
OPTIONS = {"error_model": "numpy", "cache": True}

inline = numba.njit(error_model="numpy")


class Kernel:
    """A kernel by name; compiled, or loaded from the cache, when its address is first asked for."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.name = function.__name__
        self._function = function
        self._compiled: Any = None

    @property
    def address(self) -> int:
        """Address of the machine code, callable with SIGNATURE."""
        if self._compiled is None:
            self._compiled = numba.cfunc(SIGNATURE, **OPTIONS)(self._function)
        return int(self._compiled.address)

    def __repr__(self) -> str:
        return f"Kernel({self.name})"


class HostFunction:
    """A compiled function that Python calls, GIL released; compiled, or loaded from the cache, at its first call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self._compiled is None:
            self._compiled = numba.njit(nogil=True, **OPTIONS)(self._function)
        return self._compiled(*arguments)


def kernel(function: Callable[..., None]) -> Kernel:
    """Mark a function `(operands, cores, step, worker, workers)` as a kernel."""
    return Kernel(function)


def source_hash() -> str:
    """Short hash over the sources of this package and numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def use_cache(directory: str) -> Path:
    """Keep compiled kernels below `directory`; to be called before the first compilation."""
    path = Path(directory) / source_hash()
    path.mkdir(parents=True, exist_ok=True)
    numba.config.CACHE_DIR = str(path)
    return path


def compile_kernels(kernels: Iterable[Kernel], report: Callable[[str], None]) -> float:
    """Compile or load each kernel, one progress line each; returns the seconds it took."""
    begin = time.perf_counter()
    names = {k.name: k for k in kernels}
    for i, (name, each) in enumerate(names.items(), 1):
        report(f"compiling kernel {name} ({i}/{len(names)})")
        _ = each.address
    return time.perf_counter() - begin


@inline
def share_begin(total: int, worker: int, workers: int) -> int:
    """First of `total` items that belongs to `worker`; the share ends where the next worker's begins."""
    return total * worker // workers
