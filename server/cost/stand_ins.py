"""Published times of models with layers that no fit saw, and the bands of such models.

The table is stand_ins.json: one request in bfloat16, a graph of `positions` positions. A step's band is the spread of
measured over predicted times, by series of source, release and model.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from math import log
from statistics import median
from typing import Any

import msgspec

from ..device.instances import INSTANCES
from ..models.planned import planned_spec
from ..models.public import candidates
from ..models.spec import ModelSpec
from ..typed_json import Count, Positive, Text, decode
from .calibration import Calibration
from .evidence import Band, Phase
from .model import CostModel
from .shape import unfitted
from .spread import both, interval
from .work import Runtime


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row: median times of a deployment in milliseconds."""

    model: Text
    like: Text  # public model whose configuration it has, but for `config`
    instance: Text
    tp: Count
    positions: Count
    tpot_ms: Positive
    ttft_ms: Positive
    sdk: Text
    source: Text
    config: dict[str, Any] = {}

    @property
    def series(self) -> tuple[str, str, str]:
        """Source, release and model: rows of one series are not independent."""
        return self.source, self.sdk, self.model

    @property
    def spec(self) -> ModelSpec:
        [public] = candidates(self.like)
        return planned_spec({**public.config, **self.config})

    def cost(self, calibration: Calibration) -> CostModel:
        """Return the cost model of the row's deployment."""
        part = next(each for each in INSTANCES if each.name == self.instance)
        return CostModel.of(self.spec, part, self.tp, Runtime(is_continuous=False), calibration)

    def error(self, phase: Phase, calibration: Calibration) -> float:
        """Return the measured time over the predicted one."""
        cost = self.cost(calibration)
        if phase == "prefill":
            return self.ttft_ms / 1e3 / cost.prefill(self.positions, self.positions).elapsed_s
        return self.tpot_ms / 1e3 / cost.decode(1, self.positions).elapsed_s


class _Table(msgspec.Struct):
    steps: list[Step]


@lru_cache(maxsize=1)
def steps() -> tuple[Step, ...]:
    """Return all rows in the order of the table."""
    return tuple(decode(files("neuronserve.server.cost").joinpath("stand_ins.json").read_text(), _Table).steps)


@lru_cache(maxsize=16)
def steps_of(reason: str) -> tuple[Step, ...]:
    """Return the rows of models that no fit saw for this reason (shape.unfitted)."""
    return tuple(step for step in steps() if unfitted(step.spec) == reason)


def series_errors(reason: str, phase: Phase, calibration: Calibration) -> dict[tuple[str, str, str], float]:
    """Return the log of the median error of each series of models that no fit saw for this reason."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for step in steps_of(reason):
        found.setdefault(step.series, []).append(log(step.error(phase, calibration)))
    return {series: median(errors) for series, errors in found.items()}


@lru_cache(maxsize=16)
def _interval(reason: str, phase: Phase, coefficients: tuple[tuple[str, float], ...]) -> tuple[float, float]:
    return interval(series_errors(reason, phase, Calibration(dict(coefficients), "", "", 0, {})).values())


def stand_in_band(own: Band, reason: str, phase: Phase, calibration: Calibration) -> Band:
    """Return the band of a step of such a model from that of a step of a model that a fit saw."""
    low, high = _interval(reason, phase, tuple(calibration.coefficients.items()))
    rows = len(steps_of(reason))
    return replace(own, low=both(own.low, low), high=both(own.high, high), provenance="formula", num_rows=rows)
