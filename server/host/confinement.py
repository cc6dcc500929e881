"""Restrictions that a computing process puts on itself at its start: no network, and first to be killed without memory.

Neither needs a privilege.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import os
import platform
import signal
import socket
import struct
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

# include/uapi/linux: prctl.h, seccomp.h, bpf_common.h, audit.h
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SECCOMP_SET_MODE_FILTER = 1
_TSYNC, _SPEC_ALLOW = (
    1,
    4,
)  # flags: all threads; without the speculation barrier of old kernels
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data, little-endian
_X32_CALLS = 0x40000000  # first number of the x32 calls of x86-64; ARM has no call so high
_INSTRUCTION = struct.Struct("=HBBI")  # code, jumps if true and if not, operand

OOM_SCORE = 500  # of 1000: killed before the API process, which cannot be restarted, unless that is much larger


@dataclass(frozen=True, slots=True)
class _Calls:
    """Numbers of an architecture and of its system calls that make sockets."""

    architecture: int
    seccomp: int
    socket: int
    io_uring_setup: int  # rings open sockets too


_CALLS = {"x86_64": _Calls(0xC000003E, 317, 41, 425), "aarch64": _Calls(0xC00000B7, 277, 198, 425)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def give_up_network() -> bool:
    """Forbid this process, its threads and children all sockets but Unix ones; return False when that is impossible.

    A seccomp filter answers other families with EAFNOSUPPORT, as a kernel without network would.
    """
    calls = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
    if calls is None:
        return False
    code = _filter(calls)
    program = _Program(len(code) // _INSTRUCTION.size, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    mode = _SECCOMP_SET_MODE_FILTER, _TSYNC | _SPEC_ALLOW
    return bool(libc.syscall(calls.seccomp, *mode, ctypes.byref(program)) == 0)


def go_first_when_memory_runs_out() -> None:
    """Make the kernel's OOM killer prefer this process to its parents."""
    file = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        file.write_text(str(min(1000, int(file.read_text()) + OOM_SCORE)))


def end_with_parent() -> None:
    """Make the kernel kill this process when its parent ends in any way; does nothing outside Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def follow_parent() -> None:
    """Start a thread that ends this process when its multiprocessing parent ends."""
    threading.Thread(target=_end_after_parent, name="follow-parent", daemon=True).start()


def _end_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _filter(calls: _Calls) -> bytes:
    """Return the filter's program; jumps count the instructions that they skip."""
    lines = (
        (_LOAD_WORD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 0, 7, calls.architecture),  # refuse calls of another architecture
        (_LOAD_WORD, 0, 0, _NUMBER),
        (_JUMP_AT_LEAST, 5, 0, _X32_CALLS),
        (_JUMP_EQUAL, 4, 0, calls.io_uring_setup),
        (_JUMP_EQUAL, 0, 4, calls.socket),
        (_LOAD_WORD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_EQUAL, 2, 0, socket.AF_UNIX),
        (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    )
    return b"".join(_INSTRUCTION.pack(*line) for line in lines)
