"""What the API asks the planner's process: plain records, without anything of the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neuronserve.server.config import CatalogConfig
from neuronserve.server.cost.calibration import use_calibration
from neuronserve.server.device.catalog import use_catalog

Lengths = tuple[tuple[float, int, int], ...]  # arrival in seconds, prompt and output tokens, by arrival


@dataclass(frozen=True, slots=True)
class InForce:
    """What is data of a whole process: the catalogue and the calibration."""

    catalog: CatalogConfig
    calibration: str | None = None  # file; None: the shipped one

    def apply(self) -> None:
        """Have this process use them."""
        use_catalog(self.catalog)
        use_calibration(self.calibration)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The model that is planned for when none is named."""

    path: str  # as `plan` takes it; a directory of this host is never named by a page
    name: str  # shown


@dataclass(frozen=True, slots=True)
class Question:
    """A workload and its limits; with `lengths` the traffic that was seen."""

    options: Mapping[str, Any]  # fields of PlanOptions
    lengths: Lengths = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Names one configuration of a plan."""

    device: str
    tp: int
    pp: int
    dtype: str
    batch: int
