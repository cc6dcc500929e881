"""Progress of a start: a bar for each series of steps on a terminal, log lines elsewhere."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("neuronserve")
Report = Callable[[str], None]
BARS = "neuronserve.server.api.start_bars"  # imported only for a terminal: it imports all of rich


@contextmanager
def start_screen() -> Iterator[Report]:
    """Return a function that takes the lines of a start. Meanwhile, others may write whole lines to sys.stderr."""
    if not is_watched():
        yield lambda line: log.info("%s", line)
        return
    with importlib.import_module(BARS).bars() as report:
        yield report


def show_way_in(url: str) -> None:
    """Print to a terminal how to talk to the server at `url`."""
    if is_watched():
        body = '{"messages": [{"role": "user", "content": "Hello!"}]}'
        print(f"talk to it: neuronserve chat --url {url}", file=sys.stderr)
        print(f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'", file=sys.stderr)


def is_watched() -> bool:
    """Return whether stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()
