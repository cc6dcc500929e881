"""Published figures beside their predictions, with the series that each is of and the band of its prediction.

A series has the figures of one source, release and model. They err together, so a series counts as one witness
wherever errors are judged.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ...server.cost.evidence import Band, Evidence, Phase, Series
from .observation import Observation
from .published import PublishedRow
from .serving_errors import ServingError
from .step_errors import RowError

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
    observations: Sequence[Observation], errors: Sequence[RowError], months: Mapping[str, str], evidence: Evidence
) -> list[Figure]:
    """Return the figures of steps, predicted without their series where a fit of that kind is at hand.

    `months` are of publication, by row.
    """
    return [
        Figure(
            row_id=o.row_id,
            group=error.group,
            series=series_name(o.series),
            source=o.source,
            month=months.get(o.row_id, ""),
            setup=(o.shape, o.point, _work(o)),
            label=f"TP{o.point.tp} batch {o.point.batch}, {o.point.positions:,} positions",
            unit="ms",
            measured=error.measured_ms,
            predicted=error.measured_ms * (1 + (error.error if error.left_out is None else error.left_out)),
            band=evidence.band(o.point, None if error.left_out is None else o.series),
            is_seen=_is_seen(evidence, o.point.phase, o.series),
        )
        for o, error in zip(observations, errors, strict=True)
    ]


def series_name(series: Series) -> str:
    """Return a series as text."""
    source, release, model = series
    return f"{source} 2.{release} {model}"


def _is_seen(evidence: Evidence, phase: Phase, series: Series) -> bool:
    """Return whether a calibration was fitted to such figures of a series; release 0 of a sample stands for all."""
    source, _, model = series
    return not evidence.series_of(phase).isdisjoint({series, (source, 0, model)})


def _work(observation: Observation) -> Hashable:
    """Return the work of a step, without terms that depend on the release."""
    return tuple(f"{amount:.3g}" for name, amount in observation.work.items() if not name.startswith("old"))


def compare_load_tests(
    errors: Sequence[ServingError], rows: Sequence[PublishedRow], evidence: Evidence
) -> list[Figure]:
    """Return the figures of load tests, predicted without their series where a fit of that kind is at hand."""
    by_id = {row.row_id: row for row in rows}
    return [
        Figure(
            row_id=error.row_id,
            group=error.group,
            series=series_name(error.series),
            source=error.series[0],
            month=by_id[error.row_id].texts["date"][:7],
            setup=(error.point.phase, error.model, *_load(by_id[error.row_id])),
            label=_load_label(by_id[error.row_id]),
            unit=error.unit,
            measured=error.measured,
            predicted=error.measured * (1 + (error.error if error.left_out is None else error.left_out)),
            band=evidence.band(error.point, None if error.left_out is None else error.series),
            is_seen=_is_seen(evidence, error.point.phase, error.series),
        )
        for error in errors
    ]


def _load(row: PublishedRow) -> tuple[Hashable, ...]:
    """Return what makes two load tests the same test."""
    counts = ("tp", "dp", "batch_size", "concurrency", "max_seq_len", "input_len", "output_len")
    software = row.texts["framework"], row.texts["instance"], row.label("arrival"), row.measures.get("req_per_s")
    return (*(row.counts.get(name) for name in counts), *software)


def _load_label(row: PublishedRow) -> str:
    counts = row.counts
    users = f"{counts['concurrency']} users" if "concurrency" in counts else row.texts["arrival"]
    return f"TP{counts['tp']} x {counts.get('dp', 1)}, {counts['batch_size']} slots, {users}"


def phase_of(group: str) -> str:
    """Return what the figures of a group are, such as decode, serving_ttft, or encoder_decoder."""
    words = group.split("_")
    return "_".join(words[:2]) if words[1] in ("ttft", "itl", "decoder") else words[0]
