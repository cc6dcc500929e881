"""End of the command's process."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # exit code of a process that SIGINT has ended, as in shells


def leave(code: int) -> NoReturn:
    """End this process with its children.

    The interpreter's own exit would wait for threads, and a thread may be blocked by a file or by a process that is
    still starting.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def has_lost_its_reader() -> bool:
    """Return whether nobody reads this process's output any more, as below `| head`; the rest of it is discarded."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if has_lost := bool(output.poll(0)):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return has_lost


def leave_when_interrupted() -> None:
    """Let SIGINT end this process until an event loop handles the signal.

    Some libraries turn a KeyboardInterrupt during their import into another error.
    """
    signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    with contextlib.suppress(OSError):
        os.write(2, b"neuronserve: interrupted\n")
    leave(INTERRUPTED)
