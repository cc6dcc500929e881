"""The image's program in lifecycle tests: `neuronserve` with a fake model of a known pace (10 ms a step)."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial

from server.cli import run
from server.config import EngineConfig
from server.engine.process import run_engine
from tests.api.serving import FakeEngine, load_fake


def load_paced(config: EngineConfig, report: Callable[[str], None]) -> FakeEngine:
    """A loader; the engine's process must be able to import it."""
    return load_fake(dataclasses.replace(config, device="slow:0.01"), report)


if __name__ == "__main__":
    sys.exit(run(None, partial(run_engine, load_paced)))
