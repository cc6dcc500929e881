"""`neuronserve` with engines that fail by an exception in the middle of a step when they get SIGUSR1."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from typing import Any

from neuronserve.cli import run_process
from neuronserve.server.config import EngineConfig
from neuronserve.server.engine.loop import Pending, Runner
from neuronserve.server.link.handle import EngineEnd
from neuronserve.server.types import StepPlan


class FailingRunner:
    """A runner whose next step fails once its process has got the signal."""

    def __init__(self, runner: Runner) -> None:
        self._runner, self._fails = runner, False
        signal.signal(signal.SIGUSR1, self._fail)

    def submit(self, plan: StepPlan) -> Pending:
        pending = self._runner.submit(plan)
        if self._fails:
            raise RuntimeError("a kernel's wrapper has failed")
        return pending

    def _fail(self, *_: Any) -> None:
        self._fails = True


def load_failing(config: EngineConfig, on_progress: Any) -> Any:
    from neuronserve.server.engine.serving import load_served

    loaded = load_served(config, on_progress)
    return replace(loaded, runner=FailingRunner(loaded.runner))


def run_failing(config: EngineConfig, end: EngineEnd) -> int:
    """Main function of the engine's process."""
    from neuronserve.server.engine.process import run_engine

    return run_engine(load_failing, config, end)


if __name__ == "__main__":
    sys.exit(run_process(run_failing))
