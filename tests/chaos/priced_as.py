"""The shipped model priced as a larger one: a paced server whose part is slower than the host that stands in for it.

Its steps take what the larger model's take on the part, and the host's CPUs, which its clients use too, wait for it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from neuronserve.planner.model_names import resolve_shape
from neuronserve.server.cost.calibration import shipped_calibration
from neuronserve.server.cost.model import CostModel
from neuronserve.server.device.catalog import instance
from neuronserve.server.settings.model import DEFAULT_MODEL

LARGE, PART, CORES = "llama-8b", "inf2.8xlarge", 2
SLOTS, POSITIONS = 16, 2048


def write_calibration(file: Path) -> Path:
    """Return the shipped calibration, each coefficient times the ratio of the two models' work."""
    base, work = shipped_calibration(), dict[str, float]()
    small, large = (
        CostModel.of(resolve_shape(name), instance(PART), CORES, calibration=base).step_work
        for name in (str(DEFAULT_MODEL), LARGE)
    )
    for mine, its in (
        (small.prefill(POSITIONS), large.prefill(POSITIONS)),
        (small.decode(SLOTS, POSITIONS), large.decode(SLOTS, POSITIONS)),
    ):
        work |= {name: its[name] / amount for name, amount in mine.items() if amount}
    scaled = {name: price * work.get(name, 1.0) for name, price in base.coefficients.items()}
    file.write_text(json.dumps(replace(base, coefficients=scaled, data_sha256="0" * 64).as_dict()))
    return file
