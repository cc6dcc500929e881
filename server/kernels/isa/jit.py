"""How kernels are compiled: every option, and the cache, in this one file.

A kernel is a C function `void(operands, cores, step, worker, workers)` of int64s. Each worker thread calls it with its
own `worker` index; the kernel takes its share of the work. Compilation is lazy: importing a kernel costs nothing, and
`compile_kernels` can say what it is doing. Numba's cache does not see changes in called files, so the cache folder is
named by a hash of the sources of the kernels and of the layouts they read. A package that was installed with compiled
kernels (tools/precompile) has them in `prebuilt/`; they are where a new cache folder begins.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
from numba import types

from server.errors import SettingsError
from server.kernels.isa import access

SIGNATURE = types.void(types.int64, types.int64, types.int64, types.int64, types.int64)

# error_model numpy: a division checks nothing. No fastmath: the order of operations is part of the contract.
OPTIONS = {"error_model": "numpy", "cache": True}

KERNELS = Path(__file__).parent.parent
LAYOUTS = tuple(KERNELS.parent / "device" / name for name in ("attention_layout.py", "layout.py"))
PREBUILT = KERNELS / "prebuilt"

# Every function goes into the kernels that call it. One left beside a kernel would be a weak symbol, named by a count
# of the functions that its process had compiled before; two cached kernels from different processes may have one name
# for different functions, and the linker would give both kernels the first.
inline = numba.njit(error_model="numpy", forceinline=True)


@dataclass(slots=True)
class _Mode:
    """How this process compiles kernels."""

    is_checked: bool = False
    has_kernels: bool = False  # at least one is compiled


_mode = _Mode()


def check_kernels() -> None:
    """Compile kernels in checked mode from now on: for server/kernels/checks.py, which gives them what they call."""
    assert not _mode.has_kernels, "there are kernels without checks in this process"
    _mode.is_checked = True


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
            with access.checked(_mode.is_checked):
                self._compiled = numba.cfunc(SIGNATURE, **OPTIONS)(self._function)
            _mode.has_kernels = True
        return int(self._compiled.address)

    def __repr__(self) -> str:
        return f"Kernel({self.name})"


class HostFunction:
    """A compiled function that Python calls, GIL released; compiled, or loaded from the cache, at its first call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Any = None
        self._lock = threading.Lock()  # the first call may come from several threads at once

    def __call__(self, *arguments: Any) -> Any:
        return self._dispatcher()(*arguments)

    def compile_for(self, *arguments: Any) -> None:
        """Compile for arguments of these types, without a call: the code may be for a CPU that this host is not."""
        self._dispatcher().compile(tuple(map(numba.typeof, arguments)))

    def _dispatcher(self) -> Any:
        with self._lock:
            if self._compiled is None:
                self._compiled = numba.njit(nogil=True, **OPTIONS)(self._function)
            return self._compiled


def kernel(function: Callable[..., None]) -> Kernel:
    """Mark a function `(operands, cores, step, worker, workers)` as a kernel."""
    return Kernel(function)


def made_kernel(name: str, body: Any) -> Kernel:
    """A kernel that is `body`, an inline function of a kernel's arguments, under a name that no other kernel has.

    Numba's cache goes by a function's name and file, and has no room for what a closure holds: so the kernel is a
    function of a global, of the file that names it.
    """
    caller = sys._getframe(1).f_code.co_filename
    arguments = "operands, cores, step, worker, workers"
    scope = {"body": body, "__name__": __name__}
    exec(compile(f"def {name}({arguments}):\n    body({arguments})\n", caller, "exec"), scope)
    return Kernel(scope[name])


def source_hash() -> str:
    """Short hash over all sources that a kernel can depend on, and numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in (*sorted(KERNELS.rglob("*.py")), *LAYOUTS):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def use_cache(directory: str, prebuilt: Path = PREBUILT) -> Path:
    """Keep compiled kernels below `directory`, a new one beginning with the prebuilt; before the first compilation.

    One that has kernels and cannot be written, as an image's is, is used as it is: kernels that it lacks are kept in a
    temporary directory until this process ends. Raises SettingsError when it has none.
    """
    path = Path(directory) / (source_hash() + ("-checked" if _mode.is_checked else ""))
    try:
        if not path.exists():
            _begin_cache(path, prebuilt / path.name)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        if not _has_kernels(path):
            reason = f"kernel_cache_dir is {directory}: cannot write there: {error.strerror}"
            raise SettingsError(f"{reason}; --kernel-cache-dir names another directory") from error
        path = _overlay(path)
    numba.config.CACHE_DIR = str(path)
    return path


def _has_kernels(path: Path) -> bool:
    return next(path.rglob("*.nbi"), None) is not None


def _overlay(path: Path) -> Path:
    """A temporary folder that begins with links to the files of `path`; Numba replaces a link, never what is behind."""
    top = Path(tempfile.mkdtemp(prefix="neuronserve-kernels-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    for file in path.rglob("*.nb[ic]"):
        link = top / file.relative_to(path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())
    return top


def _begin_cache(path: Path, prebuilt: Path) -> None:
    """Make the folder with what `prebuilt` has, whole or not at all: other processes may be starting too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as scratch:
        copy = Path(scratch, path.name)
        if prebuilt.is_dir():
            shutil.copytree(prebuilt, copy, copy_function=shutil.copyfile)
        else:
            copy.mkdir()
        with contextlib.suppress(OSError):  # another process was first
            copy.rename(path)


def compile_kernels(kernels: Iterable[Kernel], report: Callable[[str], None]) -> float:
    """Compile or load each kernel, one progress line each; returns the seconds it took."""
    begin = time.perf_counter()
    names = {k.name: k for k in kernels}
    with _turn_in_cache():
        for i, (name, each) in enumerate(names.items(), 1):
            report(f"compiling kernel {name} ({i}/{len(names)})")
            _ = each.address
    return time.perf_counter() - begin


@contextlib.contextmanager
def _turn_in_cache() -> Iterator[None]:
    """One process at a time: those that start together wait for the first, and find in the cache what it compiled."""
    if not numba.config.CACHE_DIR:
        yield
        return
    folder = os.open(numba.config.CACHE_DIR, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: each compiles for itself
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@inline
def share_begin(total: int, worker: int, workers: int) -> int:
    """First of `total` items that belongs to `worker`; the share ends where the next worker's begins."""
    return total * worker // workers
