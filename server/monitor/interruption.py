"""The usual ends of what runs for ever: Ctrl-C, and a reader of the output that leaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Neither is an error of the command."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more can be flushed at the end
