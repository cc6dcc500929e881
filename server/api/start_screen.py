"""What a start shows of its progress: a bar for each series of steps on a terminal, lines of the log elsewhere."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("neuronserve")
Report = Callable[[str], None]
BARS = "neuronserve.server.api.start_bars"  # imported where somebody sees them: it has all of rich


@contextmanager
def start_screen() -> Iterator[Report]:
    """A function that takes the lines of a start. While it is in use, others may write whole lines to sys.stderr."""
    if not is_watched():
        yield lambda line: log.info("%s", line)
        return
    with importlib.import_module(BARS).bars() as report:
        yield report


def show_way_in(url: str) -> None:
    """Tell a person at a terminal how to talk to the server at `url`."""
    if is_watched():
        print(f"talk to it: neuronserve chat --url {url}", file=sys.stderr)


def is_watched() -> bool:
    """Whether a person at a terminal sees stderr."""
    return sys.stderr is not None and sys.stderr.isatty()
