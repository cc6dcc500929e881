"""Keys of a person at a terminal, one at a time, without Enter."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Wait = Callable[[float], str]


@contextmanager
def key_presses() -> Iterator[Wait]:
    """A function that waits some seconds, or until a key is pressed, which it returns; "" where nobody types."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    try:
        yield lambda seconds: os.read(file, 1).decode("ascii", "replace") if _is_ready(file, seconds) else ""
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _is_ready(file: int, seconds: float) -> bool:
    return bool(select.select([file], [], [], seconds)[0])


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""
