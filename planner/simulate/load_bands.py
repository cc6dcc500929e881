"""Bands of what clients of a server see: output tokens a second, TTFT and time per token.

They hold more than the errors of steps: queues, hosts and the load tool. They are measured on published load tests.
"""

from __future__ import annotations

from typing import Literal, Protocol, get_args

from ...server.cost.calibration import default_calibration
from ...server.cost.evidence import Band, Phase
from ...server.cost.stacks import Stack

LoadFigure = Literal["throughput", "ttft", "itl"]
LOAD_FIGURES: tuple[LoadFigure, ...] = get_args(LoadFigure)


class Banded(Protocol):
    """A cost model of one replica."""

    def band(self, phase: Phase, batch: int, positions: int) -> Band: ...


def load_band(figure: LoadFigure, model: Banded, stack: Stack, num_slots: int, positions: int) -> Band:
    """Return the band of a figure under load, as factors of its prediction.

    `positions`: read of each slot by a decode step. A stack without a published load test has a wider band.
    """
    return model.band(figure, num_slots, positions).beyond(stack.host not in default_calibration().hosts)
