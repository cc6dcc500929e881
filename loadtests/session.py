"""Execution of commands: runs with their live line, record files and reports."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import resource
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console

from . import report_terminal
from .artifacts import Artifacts, write_text
from .bench import measure
from .compare import check_rounds, compare
from .endpoint import meet
from .fit import fit_lengths
from .pages import compare_page, run_page, sweep_page
from .plan import make_plan
from .progress import Progress, show
from .rate import rate_of
from .records import RecordFile, RequestRecord
from .result import make_result
from .specs import Scenario
from .sweep import SweepOptions, check_limits, sweep

EXIT_OK, EXIT_NOTHING, EXIT_USAGE, EXIT_REJECTED = 0, 1, 2, 3
Result = dict[str, Any]
T = TypeVar("T")


class LoadSession:
    """A command's files, console and credentials."""

    def __init__(self, artifacts: Artifacts, api_key: str | None, shows_progress: bool = True) -> None:
        self._artifacts, self._api_key, self._shows_progress = artifacts, api_key, shows_progress
        self._console = Console()

    def run(self, scenario: Scenario) -> int:
        """Do one run. Returns the exit code."""

        async def fit_and_run() -> tuple[Result, list[RequestRecord]]:
            (fitted,) = await self._fit(scenario)
            return await self._measure(fitted, scenario.run.seed, self._artifacts.records)

        result, records = run_loop(fit_and_run())
        report_terminal.print_run(result, self._console)
        self._save(result, run_page(result, records, scenario.slo))
        return _exit_code(result, result["completed"])

    def sweep(self, scenario: Scenario, options: SweepOptions) -> int:
        """Do runs at several rates. Results are saved after each. Returns the exit code."""
        points: list[Result] = []

        async def run_point(at: Scenario, seed: int) -> Result:
            path = self._artifacts.part(f"rate-{at.arrival.request_rate:.4g}")
            result, _ = await self._measure(at, seed, path)
            points.append(result)
            self._artifacts.save_partial({"kind": "sweep", "points": points})
            return result

        async def fit_and_sweep() -> Result:
            check_limits(scenario)
            (fitted,) = await self._fit(scenario)
            return await sweep(fitted, options, run_point)

        result = run_loop(fit_and_sweep())
        report_terminal.print_sweep(result, self._console)
        self._save(result, sweep_page(result, scenario.slo))
        return EXIT_OK if result["knee"] and not result["is_interrupted"] else EXIT_NOTHING

    def compare(self, sides: tuple[Scenario, Scenario], rounds: int) -> int:
        """Do interleaved runs of two endpoints. Results are saved after each. Returns the exit code."""
        runs: list[Result] = []

        async def run_side(scenario: Scenario, seed: int, name: str) -> Result:
            result, _ = await self._measure(scenario, seed, self._artifacts.part(name))
            runs.append(result)
            self._artifacts.save_partial({"kind": "compare", "runs": runs})
            return result

        async def fit_and_compare() -> Result:
            check_rounds(rounds)
            a, b = await self._fit(*sides)
            return await compare((a, b), rounds, run_side)

        result = run_loop(fit_and_compare())
        report_terminal.print_compare(result, self._console)
        self._save(result, compare_page(result))
        return _exit_code(result, result["num_rounds"])

    async def _fit(self, *sides: Scenario) -> tuple[Scenario, ...]:
        """Contact the servers, fit lengths to the shortest model among them, and print changes."""
        known = []
        for side in sides:
            make_plan(side, side.run.seed)  # reports wrong usage even without a server
            rate_of(side.price, None)
        for side in sides:
            endpoint = await meet(side.endpoint, self._api_key)
            await endpoint.http.close()
            known += [endpoint.max_model_len] if endpoint.max_model_len else []
        if not known:
            return sides
        dataset, note = fit_lengths(sides[0].dataset, min(known))
        if note is not None:
            self._console.print(note, highlight=False, markup=False)
        return tuple(msgspec.structs.replace(side, dataset=dataset) for side in sides)

    async def _measure(self, scenario: Scenario, seed: int, path: Path) -> tuple[Result, list[RequestRecord]]:
        """Measure one run with its live line; each record is written at once."""
        name = scenario.run.label or scenario.name
        if scenario.arrival.request_rate < float("inf"):
            name += f" at {scenario.arrival.request_rate:.3g}/s"
        plan = make_plan(scenario, seed)
        progress = Progress(name, plan.num_requests, scenario.price)
        file = RecordFile(path)

        def on_record(record: RequestRecord) -> None:
            file.add(record)
            progress.note(record)

        shown = asyncio.create_task(show(progress, sys.stderr)) if self._shows_progress else None
        try:
            measurement = await measure(scenario, plan, self._api_key, on_record, progress.use_rate)
        finally:
            if shown is not None:
                shown.cancel()
                await asyncio.gather(shown, return_exceptions=True)
            file.close()
        result = make_result(measurement)
        result["records_file"] = str(path)
        return result, measurement.outcome.records

    def _save(self, result: Result, page: str) -> None:
        is_publishable = bool(result.get("is_publishable", True))
        paths = [self._artifacts.save_result(result, is_publishable)]
        if is_publishable:
            paths.append(write_text(self._artifacts.page, page))
        for path in paths:
            self._console.print(f"written: {path}", highlight=False, markup=False, soft_wrap=True)
        report_terminal.print_alerts(result, self._console)  # last, to be seen


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop if it is installed: it needs about half of the CPU time."""
    _allow_many_connections()
    if importlib.util.find_spec("uvloop") is None:  # not available on every platform
        return asyncio.run(work)
    import uvloop

    return uvloop.run(work)


def _allow_many_connections() -> None:
    """Raise the limit of open files, usually 1024: an overloaded server holds thousands of connections."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _exit_code(result: Result, num_done: int) -> int:
    if not result["is_publishable"]:
        return EXIT_REJECTED
    return EXIT_OK if num_done and not result["is_interrupted"] else EXIT_NOTHING


def relabelled(scenario: Scenario, **endpoint: Any) -> Scenario:
    """Return the scenario against another endpoint."""
    changes = {key: value for key, value in endpoint.items() if key != "label" and value is not None}
    run = msgspec.structs.replace(scenario.run, label=endpoint.get("label") or scenario.run.label)
    return msgspec.structs.replace(scenario, endpoint=msgspec.structs.replace(scenario.endpoint, **changes), run=run)
