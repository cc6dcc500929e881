"""Questions of the API to the planner's process: plain records that import nothing of the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..server.config import CatalogConfig
from ..server.cost.calibration import use_calibration
from ..server.device.catalog import use_catalog

Lengths = tuple[tuple[float, int, int], ...]  # arrival in seconds, prompt and output tokens, by arrival


@dataclass(frozen=True, slots=True)
class InForce:
    """Data of a whole process: the catalogue and the calibration."""

    catalog: CatalogConfig
    calibration: str | None = None  # file; None: the shipped one

    def apply(self) -> None:
        """Make this process use them."""
        use_catalog(self.catalog)
        use_calibration(self.calibration)


@dataclass(frozen=True, slots=True)
class Defaults:
    """Model of a plan when the question names none."""

    path: str  # for `plan`; pages cannot name a directory of this host
    name: str  # shown on the page


@dataclass(frozen=True, slots=True)
class Question:
    """A workload and its limits; `lengths` is the traffic that the server has seen."""

    options: Mapping[str, Any]  # fields of PlanOptions
    lengths: Lengths = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Name of one configuration of a plan."""

    device: str
    tp: int
    pp: int
    dtype: str
    batch: int
