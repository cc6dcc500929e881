"""How kernels are compiled: every option in this one file.

A kernel is a C function `void(operands, cores, step, worker, workers)` of int64s. Each worker thread calls it with its
own `worker` index; the kernel takes its share of the work. Compilation is lazy: importing a kernel costs nothing, and
`compile_kernels` (server/kernels/compilation.py) can report progress.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numba
from numba import types
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    UserProvidedCacheLocator,
)
from numba.core.ccallback import CFunc
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.extending import typeof_impl

from . import access
from .inlined import InlinedCompiler
from .shortcuts import take_shortcuts
from .trusted_files import use_trusted_files_alone

log = logging.getLogger("neuronserve.engine")
KERNELS = Path(__file__).parent.parent
SIGNATURE = types.void(types.int64, types.int64, types.int64, types.int64, types.int64)

take_shortcuts()
use_trusted_files_alone()
numba.config.DISABLE_JIT = False  # NUMBA_DISABLE_JIT is for code that Python could run too, unlike kernels

# error_model numpy: a division checks nothing. No fastmath: the order of operations is part of the contract.
OPTIONS = {"error_model": "numpy"}

# Every function is inlined into the kernels that call it. Left outside, it would be a weak symbol, named by a count of
# the functions that its process had compiled before; two cached kernels of different processes could then use one name
# for different functions, and the linker would give both kernels the first.
_njit = numba.njit(error_model="numpy", forceinline=True, _nrt=False, pipeline_class=InlinedCompiler)


class Inlined:
    """A function that is part of kernels.

    There are a thousand, and a start that finds its kernels compiled calls none. Numba's object takes longer to create
    than the function, so it is created when the first kernel needs it.
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
    """Mark a function that only kernels call, and that is inlined there."""
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
    """Compile kernels in checked mode from now on. server/kernels/checks.py provides the functions that they call."""
    assert not _mode.has_kernels, "there are kernels without checks in this process"
    _mode.is_checked = True


def declare() -> None:
    """Have Numba declare its functions, which takes a third of a second in the first compilation otherwise."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    rtsys.initialize(cpu_target.target_context)


class _Files(IndexDataCacheFile):  # type: ignore[misc]
    """Cache files of a function. A file that cannot be read, as after a power failure, is compiled again."""

    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except Exception:  # damaged pickles can raise anything
            return {}

    def _load_data(self, name: str) -> Any:
        try:
            return super()._load_data(name)
        except Exception as error:
            raise OSError(f"{name} cannot be read") from error  # Numba then treats it as missing


class _ByContent(UserProvidedCacheLocator):  # type: ignore[misc]
    """Place of a kernel of this package: the same wherever the package lies, so that environments share kernels.

    The folder's name has a hash of all sources (cache.py), which replaces the date of the file.
    """

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> Any:
        return super().from_function(function, file) if Path(file).is_relative_to(KERNELS) else None

    @classmethod
    def get_suitable_cache_subpath(cls, file: str) -> str:
        return str(Path(file).parent.relative_to(KERNELS.parent))

    def get_source_stamp(self) -> str:
        return ""


class _Impl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: ClassVar = [_ByContent, *CompileResultCacheImpl._locator_classes]


class _Cache(FunctionCache):  # type: ignore[misc]
    """Numba's cache of a function, usable before Numba has declared anything.

    Numba's own declares everything that it can compile before it loads: half of a warm start's work. Machine code needs
    none of that, and a process that compiles declares it anyway.
    """

    _impl_class = _Impl

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function, or None."""
        rtsys.initialize(target_context)  # functions that Python calls refer to Numba's runtime
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save a compiled function. If the disk is full, only this process uses it, and the next compiles it again."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            log.warning(
                "kernel %s is compiled but cannot be saved in %s: %s", self._name, self.cache_path, error.strerror
            )


class Kernel:
    """A kernel by name. It is compiled, or loaded from the cache, when its address is first needed."""

    def __init__(self, function: Callable[..., None], module: str) -> None:
        self.name, self.module = function.__name__, module
        self.function = function
        self._compiled: Any = None
        KERNELS_OF[module, self.name] = self

    @property
    def address(self) -> int:
        """Return the address of the machine code, callable with SIGNATURE."""
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
        """Whether this process or its cache has the kernel, so that nothing is left to compile."""
        return self._compiled is not None or _is_cached(self.function, SIGNATURE)

    @property
    def is_loaded(self) -> bool:
        """Whether this process has loaded it from the cache."""
        return self._compiled is not None and self._compiled.cache_hits > 0

    def make(self) -> None:
        """Compile or load it."""
        _ = self.address

    def __repr__(self) -> str:
        return f"Kernel({self.name})"


class HostFunction:
    """A compiled function that Python calls without the GIL; compiled, or loaded from the cache, at its first call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name, self.module = function.__name__, function.__module__
        self.function = function
        self._compiled: Any = None
        self._lock = threading.Lock()  # the first calls may come from several threads at once
        KERNELS_OF[self.module, self.name] = self

    def __call__(self, *arguments: Any) -> Any:
        return self._dispatcher()(*arguments)

    def compile_for(self, *arguments: Any) -> None:
        """Compile for arguments of these types without a call: the code may be for another CPU."""
        self._dispatcher().compile(tuple(map(numba.typeof, arguments)))

    @property
    def is_at_hand(self) -> bool:
        """Whether this process or its cache has it, for int64 arguments."""
        return bool(self._compiled and self._compiled.signatures) or _is_cached(self.function, self._addresses)

    @property
    def is_loaded(self) -> bool:
        """Whether this process has loaded it from the cache."""
        return self._compiled is not None and bool(self._compiled.stats.cache_hits)

    def make(self) -> None:
        """Compile or load it for int64 arguments."""
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


KERNELS_OF: dict[tuple[str, str], Kernel | HostFunction] = {}  # by defining module and name


def _is_cached(function: Callable[..., Any], key: Any) -> bool:
    """Return whether the cache's index has the function for the current CPU; nothing is loaded."""
    cache = _Cache(function)
    return cache._index_key(key, cpu_target.target_context.codegen()) in cache._cache_file._load_index()


def kernel(function: Callable[..., None]) -> Kernel:
    """Mark a function `(operands, cores, step, worker, workers)` as a kernel."""
    return Kernel(function, function.__module__)


def made_kernel(name: str, body: Any) -> Kernel:
    """Return a kernel of `body`, an inline function of a kernel's arguments, under a name that no other kernel has.

    Numba's cache identifies a function by its name and file and ignores what a closure holds. So the kernel is a
    function of a global, in the file that names it.
    """
    caller = sys._getframe(1)
    arguments = "operands, cores, step, worker, workers"
    scope = {"body": body, "__name__": __name__}
    exec(compile(f"def {name}({arguments}):\n    body({arguments})\n", caller.f_code.co_filename, "exec"), scope)
    return Kernel(scope[name], caller.f_globals["__name__"])


@inline
def share_begin(total: int, worker: int, workers: int) -> int:
    """Return the first of `total` items of `worker`; the share ends where the next worker's begins.

    `workers` below 0 means -`workers` shares of rows: items are divided by fours, which a matmul multiplies together.
    """
    if workers < 0:
        return min(total, ((total + 3) // 4 * worker - workers - 1) // -workers * 4)
    return total * worker // workers
