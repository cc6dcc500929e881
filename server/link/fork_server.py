"""Where engines' processes come from: a process that has imported what they run, and is forked for each of them.

`serve` starts it before all else, so that the first engine's imports take the time in which settings are read. Engines
beside the first, and those that follow one that died, find everything imported. macOS has libraries that do not survive
a fork: there each engine is a new process.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.context import ForkServerContext, SpawnContext

PRELOAD = "neuronserve.preload"


def fork_context() -> ForkServerContext | SpawnContext:
    """What makes processes of engines."""
    if sys.platform == "darwin":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    return context


def start_fork_server() -> None:
    """Begin with the imports; harmless where they are done, or where nothing is forked."""
    if sys.platform != "darwin":
        from multiprocessing import forkserver

        fork_context()
        forkserver.ensure_running()
