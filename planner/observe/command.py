"""`neuronserve observe` in a terminal: fit the measurements, print tables, write the calibration."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from ...server.cost.calibration import default_calibration
from ...server.errors import SettingsError
from .deployment import Deployment
from .observation import observations
from .result import ObservedEndpoint, render


def run_observe(label: str, runs: list[tuple[str, dict[str, Any]]], deployment: Deployment, output: str) -> None:
    """Fit the calibration in force to named reports of load tests on one endpoint.

    Raises SettingsError for an invalid report or a file that cannot be written.
    """
    date = time.strftime("%Y-%m-%d", time.gmtime())
    found = ObservedEndpoint.of(label, date, observations(runs, deployment), deployment, default_calibration())
    Console().print(render(found))
    try:
        Path(output).write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--output: cannot write {output}: {error.strerror}") from error
    print(f"written: {output}")
