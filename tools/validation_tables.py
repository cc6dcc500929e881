"""Parts of docs/internals/validation.md: what is kept of the last release, and what the calibration says of itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from neuronserve.planner.validate.markdown import body
from neuronserve.planner.validate.page import summary
from neuronserve.planner.validate.releases import Release
from neuronserve.server.cost.calibration import Calibration


def blocks(release: Release, calibration: Calibration) -> dict[str, Callable[[], str]]:
    """Return the page's parts by the names of their places."""
    return {name: partial(body, section) for name, section in summary(release, calibration).items()}
