"""`neuronserve plan` and `neuronserve simulate` in a terminal: run, print tables, write files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from server.errors import SettingsError
from server.planner import references
from server.planner.emit.folder import Emission, emit
from server.planner.plan import table as plan_table
from server.planner.plan.check import check_plan
from server.planner.plan.options import PlanOptions
from server.planner.plan.pareto import write_picture
from server.planner.plan.search import plan
from server.planner.simulate import table as simulate_table
from server.planner.simulate.options import SimulationOptions
from server.planner.simulate.simulator import run_simulation
from server.workload.workload import Workload

WIDTH = 170  # columns of a table that goes to a file or a pipe


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


@dataclass(frozen=True, slots=True)
class Beside:
    """What is shown beside a plan."""

    check: bool  # the chosen configuration, simulated
    gpus: bool  # published figures of GPU instances


def run_plan(
    options: PlanOptions,
    json_file: Path | None,
    picture: Path | None,
    beside: Beside,
    trace: Workload | None = None,
    emission: Emission | None = None,
) -> None:
    """Plan and print. Raises as `plan` and `emit` do."""
    report = plan(options, trace)
    _console().print(plan_table.render(report))
    check = check_plan(report) if beside.check else ()
    if beside.check:
        _console().print(plan_table.render_check(check))
    if beside.gpus:
        _console().print(references.render(report))
    if picture is not None:
        write_picture(report, picture)
    found = {"check": [asdict(one) | {"error": one.error} for one in check]} if beside.check else {}
    gpus = {"gpus": [row.as_json() for row in references.beside(report)]} if beside.gpus else {}
    write_json(json_file, report.as_json() | found | gpus)
    if emission is not None:
        for path in emit(report, emission):
            print(f"written: {path}")


def run_simulate(options: SimulationOptions, json_file: Path | None) -> None:
    """Simulate and print. Raises StartError as `run_simulation` does."""
    report = run_simulation(options)
    _console().print(simulate_table.render(report))
    write_json(json_file, report.as_json())


def write_json(path: Path | None, value: Any) -> None:
    """Write the file that `--json` names, if it names one. Raises SettingsError when it cannot be written."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--json: cannot write {path}: {error.strerror}") from error
