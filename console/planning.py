"""Work of the planner's process for the pages: one instance at a time, so that a page fills while others are planned.

All functions are called in that process; arguments and results are plain records.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ..planner.emit.folder import texts_of
from ..planner.plan.demand import with_trace
from ..planner.plan.options import PlanOptions
from ..planner.plan.report import Candidate, PlanReport
from ..planner.plan.search import plan
from ..server.clock import NS
from ..server.device.catalog import instances
from ..server.errors import DeviceMemoryError, SettingsError
from ..server.models.public import models
from ..workload.workload import Workload
from .question import Lengths, Question, Row


def _report(question: Question, device: str, **narrowed: Any) -> PlanReport:
    """Return the plan of one instance. Raises as `plan`, and SettingsError for traffic without a rate."""
    own = {"devices": (device,), "instances_per_replica": (1,), **narrowed}
    options = PlanOptions(**{**question.options, **own})
    if not question.lengths:
        return plan(options)
    trace = _workload(question.lengths)
    return plan(with_trace(options, trace), trace)


def choices() -> dict[str, Any]:
    """Return the choices of the page's controls: instances, and public models."""
    return {
        "devices": [{"name": part.name, "chip": part.chip.name, "cores": part.num_cores} for part in instances()],
        "models": [model.hub_id for model in models()],
    }


def require_public(model: str) -> None:
    """Raise SettingsError for the path of a file: a page may name models, but not explore this host."""
    if Path(model).expanduser().exists():
        raise SettingsError(f"model {model!r} is a path on the server: a public model's name is needed")


def plan_part(question: Question, device: str) -> dict[str, Any]:
    """Return all configurations of one instance, or none and the reason when the model does not fit.

    Raises as `plan`.
    """
    try:
        report = _report(question, device)
    except DeviceMemoryError as error:
        return {"device": device, "rows": [], "why_none": str(error)}
    return {
        "device": device,
        "rows": [_row(report, candidate) for candidate in report.candidates],
        "demand": report.demand.as_json(),
        "calibration": report.calibration,
        "notes": [*report.notes],
    }


def files_of(question: Question, row: Row) -> bytes:
    """Return the files that deploy a configuration, as a ZIP archive. Raises SettingsError for an unknown one."""
    report = _report(question, row.device, tensor_parallel_sizes=(row.tp,), pipeline_parallel_sizes=(row.pp,))
    found = [each for each in report.candidates if (each.dtype, each.batch) == (row.dtype, row.batch)]
    if not found:
        raise SettingsError(f"row: no configuration of {row.device} TP {row.tp} has {row.dtype} and batch {row.batch}")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as folder:
        for name, text in texts_of(report, found[0]).items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # a fixed date: the same plan gives the same file
            entry.external_attr = (0o755 if text.startswith("#!") else 0o644) << 16
            folder.writestr(entry, text)
    return archive.getvalue()


def _workload(lengths: Lengths) -> Workload:
    arrivals, inputs, outputs = (np.asarray(column) for column in zip(*lengths, strict=True))
    arrival_ns = np.rint((arrivals - arrivals[0]) * NS).astype(np.int64)
    return Workload(f"the last {len(lengths)} requests", arrival_ns, inputs, outputs)


def _row(report: PlanReport, row: Candidate) -> dict[str, Any]:
    price = row.at_rate[report.options.price_basis]
    known = row.known.as_json()
    return {
        "device": row.device,
        "tp": row.tp,
        "pp": row.pp,
        "dp": row.dp,
        "dtype": row.dtype,
        "batch": row.batch,
        "stack": row.stack,
        "load": row.load,
        "ttft_ms": row.ttft_s * 1e3,
        "tpot_ms": row.tpot_s * 1e3,
        "usd": None if price is None else price.total_usd,
        "hourly_usd": None if price is None else price.hourly_usd,
        "misses": list(row.misses),
        "extrapolated": row.extrapolated,
        "runs": row.running.runs,
        "running": row.running.sentence,
        "order": row.order(report.options.price_basis),
        "instances": row.instances,
        "provenance": known["provenance"],
        "nearest": known["nearest"],
        "bands": {name: known[name] for name in ("ttft_s", "tpot_s", "instances")},
    }
