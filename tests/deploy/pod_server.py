"""The image's program in lifecycle tests: `neuronserve` with a fake model, of 10 ms a step but for FAKE_DEVICE."""

from __future__ import annotations

import dataclasses
import os
import sys

from neuronserve.cli import run_process
from neuronserve.server.config import EngineConfig
from neuronserve.server.link.handle import EngineEnd
from tests.api.serving import run_fake


def run_paced(config: EngineConfig, end: EngineEnd) -> int:
    """Main function of the engine's process, which must be able to import it."""
    return run_fake(dataclasses.replace(config, device=os.environ.get("FAKE_DEVICE", "slow:0.01")), end)


if __name__ == "__main__":
    sys.exit(run_process(run_paced))
