"""Accuracy of each release of neuronserve on a table of its time, kept so that a later one can be held against it.

`python -m tools.record_release` writes releases.json. A release keeps its coefficients, but errors as its own formulas
gave them: terms change, so old coefficients say nothing under new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ...server.typed_json import decode
from ..calibrate.accuracy import Accuracy
from .noise import Scatter, Spread

ALL = "all"


@dataclass(frozen=True, slots=True)
class Split:
    """Accuracy on figures of series that the fit has seen, and on others; None where there are none."""

    seen: Accuracy | None
    unseen: Accuracy | None


@dataclass(frozen=True, slots=True)
class Release:
    """Accuracy of a release on one table of published figures."""

    name: str
    calibration: str  # version
    table_sha256: str
    coefficients: dict[str, float]
    six: dict[str, float]  # coefficients of the plain fit to the rows that the calibration has seen
    totals: dict[str, Split]  # by phase, and of ALL, without groups that no fit uses
    groups: dict[str, Split]
    plain: dict[str, dict[str, Split]]  # of plain models, by name and group
    left_out: dict[str, Accuracy]  # of fits without the predicted part: of ALL, by phase, and by kind and chip
    spreads: list[Spread]
    scatters: list[Scatter]


@cache
def releases() -> tuple[Release, ...]:
    """Return all kept releases, oldest first."""
    text = files("neuronserve.planner.validate").joinpath("releases.json").read_text()
    return tuple(decode(text, list[Release]))
