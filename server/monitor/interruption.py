"""Quiet ends of a command that runs for ever: Ctrl-C, and a closed pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_quietly() -> Iterator[None]:
    """End the command without an error on Ctrl-C, or when the reader of its output has gone."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards what is flushed at the end
