"""`neuronserve plan` and `neuronserve simulate` in a terminal: run, print tables, write files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from ..server.config.disaggregation import Disaggregation
from ..server.settings.base import write_report
from ..workload.workload import Workload
from . import references
from .emit.folder import Emission, emit
from .plan import encoder_table
from .plan import table as plan_table
from .plan.check import check_plan
from .plan.confirm import confirmed, divided
from .plan.encoders import plan_encoder
from .plan.options import PlanOptions
from .plan.pareto import write_picture
from .plan.search import plan
from .simulate import table as simulate_table
from .simulate.comparison import Comparison
from .simulate.options import SimulationOptions
from .simulate.sampling import CONFIDENCE, Sample, run_sample
from .simulate.simulator import run_simulation

WIDTH = 120  # columns of a table that goes to a file or a pipe
REPORT_WIDTH = 170  # of a simulation's


def _console(width: int = WIDTH, is_wide: bool = False) -> Console:
    """Return a console as wide as the terminal, or `width` columns for a file or pipe; a wide one does not wrap."""
    console = Console()
    if is_wide:
        return Console(width=max(console.width, plan_table.WIDE))
    return console if console.is_terminal else Console(width=width)


@dataclass(frozen=True, slots=True)
class View:
    """Parts of a plan that are shown."""

    check: bool = False  # simulate the chosen configuration
    gpus: bool = False  # published figures of GPU instances
    wide: bool = False  # all columns
    disaggregate: str | None = None  # instances of the first row that compute prompts, and those that decode


def run_plan(
    options: PlanOptions,
    json_file: Path | None,
    picture: Path | None,
    view: View,
    trace: Workload | None = None,
    emission: Emission | None = None,
) -> int:
    """Plan, simulate the first row, and print; return 1 if no row holds the limits, else 0.

    Raises the errors of `plan`, `confirmed` and `emit`.
    """
    report = confirmed(plan(options, trace))
    console = _console(is_wide=view.wide)
    console.print(plan_table.render(report, console.width, view.wide), crop=False)
    check = check_plan(report) if view.check else ()
    if view.check:
        console.print(plan_table.render_check(check))
    apart = {} if view.disaggregate is None else divided(report, Disaggregation.parse(view.disaggregate)).show(console)
    if view.gpus:
        _console(REPORT_WIDTH, view.wide).print(references.render(report))
    if picture is not None:
        write_picture(report, picture)
    if json_file is not None:
        found = {"check": [asdict(one) | {"error": one.error} for one in check]} if view.check else {}
        gpus = {"gpus": [row.as_json() for row in references.beside(report)]} if view.gpus else {}
        write_report(json_file, report.as_json() | found | gpus | apart)
    if emission is not None:
        for path in emit(report, emission):
            print(f"written: {path}")
    return int(report.best is None)


def run_encoder_plan(options: PlanOptions, json_file: Path | None, view: View) -> int:
    """Plan an encoder and print; return 1 if no row holds the limits, else 0. Raises the errors of `plan_encoder`."""
    report = plan_encoder(options)
    console = _console(is_wide=view.wide)
    console.print(encoder_table.render(report, console.width), crop=False)
    write_report(json_file, report.as_json())
    return int(not report.rows[0].meets_slo)


def run_simulate(options: SimulationOptions, json_file: Path | None) -> None:
    """Simulate and print. Raises the errors of `run_simulation`."""
    report = run_simulation(options)
    console = _console(REPORT_WIDTH)
    console.print(simulate_table.render(report))
    found = {} if options.disaggregate is None else Comparison.of(report).show(console)
    write_report(json_file, report.as_json() | found)


def run_simulate_sample(sample: Sample, slices: Iterable[SimulationOptions], json_file: Path | None) -> None:
    """Simulate slices of a deployment and print. Raises the errors of `run_simulation`."""
    figures = run_sample(sample, slices)
    _console(REPORT_WIDTH).print(simulate_table.render_sample(sample, figures))
    found = {name: figure._asdict() for name, figure in figures.items()}
    write_report(json_file, {"sample": asdict(sample), "confidence": CONFIDENCE, "figures": found})
