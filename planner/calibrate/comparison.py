"""Published figures beside their predictions, with the series that each is of and the band of its prediction.

A series has the figures of one source, release and model. They err together, so a series counts as one witness
wherever errors are judged.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ...server.cost.evidence import Band, Evidence, Point
from .observation import Observation
from .published import PublishedRow
from .serving_errors import ServingError
from .step_errors import RowError

DIGITS = 4  # of a stored size of a model
APART = ("contradicted", "saturated")  # groups that no fit uses: their rows contradict others, or queues only grow


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure and its prediction, in `unit`."""

    row_id: str
    group: str
    series: str
    source: str
    month: str  # of publication, such as 2024-04; empty if it is not stated
    setup: Hashable  # equal for figures of the same work in the same graph, of any source
    label: str  # of the setup, within a series
    unit: str
    measured: float
    predicted: float
    band: Band | None = None  # factors of measured over predicted
    is_seen: bool = False  # the calibration was fitted to it

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1

    @property
    def is_apart(self) -> bool:
        """Whether the figure is of a group that no fit uses."""
        return any(word in self.group for word in APART)


def compare_steps(
    observations: Sequence[Observation], errors: Sequence[RowError], rows: Sequence[PublishedRow], evidence: Evidence
) -> list[Figure]:
    """Return the figures of steps, predicted without their source where a fit of that kind is at hand."""
    by_id = {row.row_id: row for row in rows}
    seen = {_key(each.point, each.model, each.source) for each in evidence.samples}
    return [
        Figure(
            row_id=o.row_id,
            group=error.group,
            series=by_id[o.row_id].series,
            source=o.source,
            month=by_id[o.row_id].texts["date"][:7],
            setup=(o.shape, o.point, _work(o)),
            label=f"TP{o.point.tp} batch {o.point.batch}, {o.point.positions:,} positions",
            unit="ms",
            measured=error.measured_ms,
            predicted=error.measured_ms * (1 + (error.error if error.left_out is None else error.left_out)),
            band=evidence.band(o.point, "" if error.left_out is None else o.source),
            is_seen=_key(o.point, o.model, o.source) in seen,
        )
        for o, error in zip(observations, errors, strict=True)
    ]


def _key(point: Point, model: str, source: str) -> Hashable:
    """Return what identifies a configuration among stored samples, whose sizes are rounded."""
    sizes = f"{point.billions:.{DIGITS}g}", point.tp, point.batch, point.positions, point.weight_bytes
    return (point.phase, point.chip, point.has_experts, *sizes, model, source)


def _work(observation: Observation) -> Hashable:
    """Return the work of a step, without terms that depend on the release."""
    return tuple(f"{amount:.3g}" for name, amount in observation.work.items() if not name.startswith("old"))


def compare_load_tests(errors: Sequence[ServingError], rows: Sequence[PublishedRow]) -> list[Figure]:
    """Return the figures of load tests. They count as seen: a calibration does not keep which it was fitted to."""
    by_id = {row.row_id: row for row in rows}
    return [_load_figure(error, by_id[error.row_id]) for error in errors]


def phase_of(group: str) -> str:
    """Return what the figures of a group are, such as decode, or serving_ttft."""
    words = group.split("_")
    return "_".join(words[:2]) if words[1] in ("ttft", "itl") else words[0]


def _load_figure(error: ServingError, row: PublishedRow) -> Figure:
    counts = {name: row.counts.get(name, 0) for name in ("tp", "dp", "batch_size", "concurrency")}
    lengths = tuple(row.counts.get(name, 0) for name in ("max_seq_len", "input_len", "output_len"))
    software = row.texts["framework"], row.texts["instance"], row.label("arrival"), row.measures.get("req_per_s")
    users = f"{counts['concurrency']} users" if counts["concurrency"] else row.texts["arrival"]
    return Figure(
        row_id=error.row_id,
        group=error.group,
        series=row.series,
        source=row.texts["source_group"],
        month=row.texts["date"][:7],
        setup=(phase_of(error.group), row.texts["model"], *counts.values(), *lengths, *software),
        label=f"TP{counts['tp']} x {counts['dp'] or 1}, {counts['batch_size']} slots, {users}",
        unit=error.unit,
        measured=error.measured,
        predicted=error.predicted if error.left_out is None else error.measured * (1 + error.left_out),
        is_seen=True,
    )
