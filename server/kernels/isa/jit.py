"""How kernels are compiled: every option in this one file.

A kernel is a C function `void(operands, cores, step, worker, workers)` of int64s. Each worker thread calls it with its
own `worker` index; the kernel takes its share of the work. Compilation is lazy: importing a kernel costs nothing, and
`compile_kernels` (server/kernels/compilation.py) can say what it is doing.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
from numba import types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.extending import typeof_impl

from neuronserve.server.kernels.isa import access
from neuronserve.server.kernels.isa.inlined import InlinedCompiler
from neuronserve.server.kernels.isa.shortcuts import take_shortcuts
from neuronserve.server.kernels.isa.trusted_files import use_trusted_files_alone

log = logging.getLogger("neuronserve.engine")
SIGNATURE = types.void(types.int64, types.int64, types.int64, types.int64, types.int64)

take_shortcuts()
use_trusted_files_alone()
numba.config.DISABLE_JIT = False  # NUMBA_DISABLE_JIT is for code that Python could run too; no kernel is

# error_model numpy: a division checks nothing. No fastmath: the order of operations is part of the contract.
OPTIONS = {"error_model": "numpy"}

# Every function goes into the kernels that call it. One left beside a kernel would be a weak symbol, named by a count
# of the functions that its process had compiled before; two cached kernels from different processes may have one name
# for different functions, and the linker would give both kernels the first.
_njit = numba.njit(error_model="numpy", forceinline=True, _nrt=False, pipeline_class=InlinedCompiler)


class Inlined:
    """A function that kernels are made of.

    There are a thousand, and a start that finds its kernels compiled calls none. So Numba's own object, which takes
    longer to make than the function, is made when the first kernel asks for it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @functools.cached_property
    def dispatcher(self) -> Any:
        return _njit(self.function)


@typeof_impl.register(Inlined)
def _type_of(function: Inlined, _: object) -> types.Dispatcher:
    return types.Dispatcher(function.dispatcher)


def inline(function: Callable[..., Any]) -> Any:
    """Mark a function that is called from kernels alone, and is inlined there."""
    return Inlined(function)


@dataclass(slots=True)
class _Mode:
    """How this process compiles kernels."""

    is_checked: bool = False
    has_kernels: bool = False  # at least one is compiled


_mode = _Mode()


def is_checked() -> bool:
    """Whether this process compiles kernels with a check before each access."""
    return _mode.is_checked


def check_kernels() -> None:
    """Compile kernels in checked mode from now on: for server/kernels/checks.py, which gives them what they call."""
    assert not _mode.has_kernels, "there are kernels without checks in this process"
    _mode.is_checked = True


def declare() -> None:
    """Have Numba declare what it can compile, which the first compilation does otherwise: a third of a second."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    rtsys.initialize(cpu_target.target_context)


class _Files(IndexDataCacheFile):  # type: ignore[misc]
    """The files of a function's cache. What cannot be read, as after a power cut, is compiled anew and written over."""

    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except Exception:  # damaged pickles may raise anything
            return {}

    def _load_data(self, name: str) -> Any:
        try:
            return super()._load_data(name)
        except Exception as error:
            raise OSError(f"{name} cannot be read") from error  # to Numba, as if it had been removed


class _Cache(FunctionCache):  # type: ignore[misc]
    """Numba's cache of a function, for a process in which Numba knows nothing yet.

    Its own declares all that Numba can compile before it loads anything: half of a warm start's work. Machine code
    refers to none of that, and who compiles declares it anyway.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None."""
        rtsys.initialize(target_context)  # what Python calls of them refers to Numba's runtime
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function; where its disk is full it serves this process, and the next compiles it again."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            log.warning("%s is compiled, and cannot be kept in %s: %s", self._name, self.cache_path, error.strerror)


class Kernel:
    """A kernel by name; compiled, or loaded from the cache, when its address is first asked for."""

    def __init__(self, function: Callable[..., None], module: str) -> None:
        self.name, self.module = function.__name__, module
        self.function = function
        self._compiled: Any = None
        KERNELS_OF[module, self.name] = self

    @property
    def address(self) -> int:
        """Address of the machine code, callable with SIGNATURE."""
        if self._compiled is None:
            with access.checked(_mode.is_checked):
                compiled: Any = CFunc(self.function, (SIGNATURE.args, SIGNATURE.return_type), {}, OPTIONS)
                compiled._cache = _Cache(self.function)
                compiled.compile()
                self._compiled = compiled
            _mode.has_kernels = True
        return int(self._compiled.address)

    @property
    def is_at_hand(self) -> bool:
        """Whether this process or its cache has it, so that nothing is left to compile."""
        return self._compiled is not None or _is_cached(self.function, SIGNATURE)

    @property
    def is_loaded(self) -> bool:
        """Whether this process has it from the cache."""
        return self._compiled is not None and self._compiled.cache_hits > 0

    def make(self) -> None:
        """Compile it, or load it."""
        _ = self.address

    def __repr__(self) -> str:
        return f"Kernel({self.name})"


class HostFunction:
    """A compiled function that Python calls, GIL released; compiled, or loaded from the cache, at its first call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name, self.module = function.__name__, function.__module__
        self.function = function
        self._compiled: Any = None
        self._lock = threading.Lock()  # the first call may come from several threads at once
        KERNELS_OF[self.module, self.name] = self

    def __call__(self, *arguments: Any) -> Any:
        return self._dispatcher()(*arguments)

    def compile_for(self, *arguments: Any) -> None:
        """Compile for arguments of these types, without a call: the code may be for a CPU that this host is not."""
        self._dispatcher().compile(tuple(map(numba.typeof, arguments)))

    @property
    def is_at_hand(self) -> bool:
        """As of a kernel, where all arguments are int64."""
        return bool(self._compiled and self._compiled.signatures) or _is_cached(self.function, self._addresses)

    @property
    def is_loaded(self) -> bool:
        """As of a kernel."""
        return self._compiled is not None and bool(self._compiled.stats.cache_hits)

    def make(self) -> None:
        """As of a kernel, where all arguments are int64."""
        self._dispatcher().compile(self._addresses)

    @property
    def _addresses(self) -> tuple[Any, ...]:
        return (types.int64,) * self.function.__code__.co_argcount

    def _dispatcher(self) -> Any:
        with self._lock:
            if self._compiled is None:
                self._compiled = numba.njit(nogil=True, **OPTIONS)(self.function)
                self._compiled._cache = _Cache(self.function)
            return self._compiled


KERNELS_OF: dict[tuple[str, str], Kernel | HostFunction] = {}  # by the module that makes them, and name


def _is_cached(function: Callable[..., Any], key: Any) -> bool:
    """Whether the index of the cache has the function, for the CPU that Numba compiles for; nothing is loaded."""
    cache = _Cache(function)
    return cache._index_key(key, cpu_target.target_context.codegen()) in cache._cache_file._load_index()


def kernel(function: Callable[..., None]) -> Kernel:
    """Mark a function `(operands, cores, step, worker, workers)` as a kernel."""
    return Kernel(function, function.__module__)


def made_kernel(name: str, body: Any) -> Kernel:
    """A kernel that is `body`, an inline function of a kernel's arguments, under a name that no other kernel has.

    Numba's cache goes by a function's name and file, and has no room for what a closure holds: so the kernel is a
    function of a global, of the file that names it.
    """
    caller = sys._getframe(1)
    arguments = "operands, cores, step, worker, workers"
    scope = {"body": body, "__name__": __name__}
    exec(compile(f"def {name}({arguments}):\n    body({arguments})\n", caller.f_code.co_filename, "exec"), scope)
    return Kernel(scope[name], caller.f_globals["__name__"])


@inline
def share_begin(total: int, worker: int, workers: int) -> int:
    """First of `total` items that belongs to `worker`; the share ends where the next worker's begins.

    `workers` below 0 are -`workers` shares of rows: items are divided by fours, which a matmul multiplies together.
    """
    if workers < 0:
        return min(total, ((total + 3) // 4 * worker - workers - 1) // -workers * 4)
    return total * worker // workers
