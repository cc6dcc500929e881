"""How the command's process ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # exit code of a process that SIGINT has ended, as shells have it


def leave(code: int) -> NoReturn:
    """End this process with its children.

    The interpreter's own end would wait for threads first, and one of them may wait for a file, or for a process that
    is still being started.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def leave_when_interrupted() -> None:
    """Have SIGINT end this process from now on, until an event loop takes the signal.

    A KeyboardInterrupt that is raised inside of their imports becomes an error of another kind in some libraries.
    """
    signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    with contextlib.suppress(OSError):
        os.write(2, b"neuronserve: interrupted\n")
    leave(INTERRUPTED)
