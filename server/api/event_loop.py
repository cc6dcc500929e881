"""The event loop that a command runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on uvloop and return its result.

    After an error the loop is left open: closing it would wait for its threads, and one of them may wait for a file or
    for a process that is still starting.
    """
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    result = runner.run(main)
    runner.close()
    return result
