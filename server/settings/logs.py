"""The log of a server: lines with date and time on stderr."""

from __future__ import annotations

import logging
import sys


def log_to_stderr(level: str) -> None:
    """Write messages of `level` (a name, such as info) and above to stderr."""
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format=form, datefmt="%Y-%m-%d %H:%M:%S")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
