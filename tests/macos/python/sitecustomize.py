"""Python as on a Mac for this project's modules: system modules that they import lack what macOS lacks.

Python imports a file of this name at its start, so this applies to every process with this folder on PYTHONPATH, and to
those that it spawns. Other packages see the real system: they have builds for macOS.
"""

from __future__ import annotations

import builtins
import io
import os
import platform
import resource
import sys
from types import FrameType, ModuleType
from typing import Any

OURS = frozenset({"server", "neuronserve", "loadtests"})
PAGE_BYTES = 16384  # of Apple's CPUs
NUMBERS = {  # sysctl
    b"kern.maxfilesperproc": 10240,
    b"hw.perflevel0.logicalcpu": 1,
    **{b"hw.optional.arm.FEAT_" + name: 1 for name in (b"LSE", b"DotProd", b"I8MM", b"BF16")},
    b"hw.optional.AdvSIMD": 1,
}
# `fork` exists, but not for a process that has used Apple's frameworks.
ABSENT = {
    "os": "fork forkpty posix_fallocate posix_fadvise fdatasync pidfd_open eventfd memfd_create timerfd_create "
    "getrandom copy_file_range splice sched_getaffinity sched_setaffinity sched_setscheduler O_PATH O_TMPFILE O_DIRECT",
    "signal": "SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL sigtimedwait sigwaitinfo",
    "mmap": "MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTFORK MADV_REMOVE MAP_POPULATE MAP_NORESERVE",
    "select": "epoll EPOLLIN",
    "socket": "AF_NETLINK AF_PACKET SOCK_NONBLOCK SOCK_CLOEXEC SO_PEERCRED SO_DOMAIN TCP_USER_TIMEOUT TCP_QUICKACK",
    "resource": "prlimit",
}
# `madvise` exists, but has no effect for the uses here.
ABSENT_OF_LIBC = frozenset(
    {"prctl", "syscall", "getauxval", "eventfd", "memfd_create", "timerfd_create", "madvise"}
    | {"sched_setaffinity", "sched_getcpu"}
)


class Without(ModuleType):
    """A module without some names, and with replacements of others."""

    def __init__(self, real: ModuleType, absent: frozenset[str], others: dict[str, Any]) -> None:
        super().__init__(real.__name__, real.__doc__)
        object.__getattribute__(self, "__dict__").update(_real=real, _absent=absent, _others=others)

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        if name in own["_absent"]:
            raise AttributeError(f"macOS has no {own['_real'].__name__}.{name}")
        return own["_others"].get(name) if name in own["_others"] else getattr(own["_real"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "__dict__")["_real"], name, value)


class Libc:
    """The C library of this process without Linux functions, and with a Mac's numbers."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name in ABSENT_OF_LIBC:
            raise AttributeError(f"macOS has no {name}")
        return _sysctlbyname if name == "sysctlbyname" else getattr(self._real, name)


def _sysctlbyname(name: bytes, value: Any, *_rest: Any) -> int:
    if name in NUMBERS:
        value._obj.value = NUMBERS[name]
    return 0 if name in NUMBERS else -1


def _cdll(name: str | None, *arguments: Any, **named: Any) -> Any:
    import ctypes

    real = ctypes.CDLL(name, *arguments, **named)
    return Libc(real) if name is None else real


def _setrlimit(what: int, limits: tuple[int, int]) -> None:
    if what == resource.RLIMIT_AS or (what == resource.RLIMIT_NOFILE and limits[0] > NUMBERS[b"kern.maxfilesperproc"]):
        raise ValueError("current limit exceeds maximum limit")
    resource.setrlimit(what, limits)


def _get_context(method: str | None = None) -> Any:
    import multiprocessing

    if method != "spawn":
        raise ValueError(f"{method}: on macOS processes are spawned")
    return multiprocessing.get_context(method)


def _replaced(name: str) -> dict[str, Any]:
    machine = platform.machine()
    return {
        "sys": {"platform": "darwin"},
        "platform": {"system": lambda: "Darwin", "machine": lambda: "arm64" if machine == "aarch64" else machine},
        "ctypes": {"CDLL": _cdll},
        "mmap": {"PAGESIZE": PAGE_BYTES, "ALLOCATIONGRANULARITY": PAGE_BYTES},
        "multiprocessing": {"get_context": _get_context},
        "resource": {"setrlimit": _setrlimit},
    }.get(name, {})


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether a module of this project is the caller, directly or through pathlib."""
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in {"pathlib", "io"}:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in OURS


_import, _open = builtins.__import__, io.open
_known: dict[str, Without] = {}


def _import_as_on_macos(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    module = _import(name, globals, locals, fromlist, level)
    is_ours = str((globals or {}).get("__name__")).partition(".")[0] in OURS
    if not is_ours or level or module.__name__ not in {*ABSENT, "sys", "platform", "ctypes", "multiprocessing"}:
        return module
    if module.__name__ not in _known:
        absent = frozenset(ABSENT.get(module.__name__, "").split())
        _known[module.__name__] = Without(module, absent, _replaced(module.__name__))
    return _known[module.__name__]


def _open_as_on_macos(file: Any, *arguments: Any, **named: Any) -> Any:
    if not isinstance(file, int) and os.fspath(file)[:5] in {"/proc", "/sys/"} and _is_ours(sys._getframe(1)):
        raise FileNotFoundError(2, "No such file or directory", file)
    return _open(file, *arguments, **named)


builtins.__import__ = _import_as_on_macos
builtins.open = io.open = _open_as_on_macos
