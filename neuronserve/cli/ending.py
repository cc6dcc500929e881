"""End of the command's process."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # exit code of a process that SIGINT has ended, as in shells


def leave(code: int) -> NoReturn:
    """End this process with its children.

    The interpreter would first wait for threads, and a thread may wait for a file or for a starting process.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def leave_when_interrupted() -> None:
    """Let SIGINT end this process until an event loop handles the signal.

    Some libraries turn a KeyboardInterrupt during their imports into another error.
    """
    signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    with contextlib.suppress(OSError):
        os.write(2, b"neuronserve: interrupted\n")
    leave(INTERRUPTED)
