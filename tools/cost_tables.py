"""Tables of docs/internals/cost-model.md, made from a calibration: a new fit changes nothing else of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial

from neuronserve.planner.calibrate.report import PHASES
from neuronserve.server.cost.calibration import Calibration, ErrorStats
from neuronserve.server.cost.evidence import Point
from neuronserve.server.cost.stacks import STACKS, HostWork
from neuronserve.server.cost.terms import TERMS

STEP_WAYS, SERVING_WAYS = ("source", "model", "degree"), ("source", "model")


def blocks(calibration: Calibration) -> dict[str, Callable[[], str]]:
    """Return the page's tables by the names of their places."""
    return {name: partial(block, calibration) for name, block in _BLOCKS.items()}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of Markdown."""
    lines = [f"| {' | '.join(cells)} |\n" for cells in (head, *rows)]
    return "".join([lines[0], "|---" * len(head), "|\n", *lines[1:]])


def _fit(calibration: Calibration) -> str:
    names = ("version", "date", "rows that took part", "SHA-256 of the table")
    values = (
        calibration.version,
        calibration.date,
        str(calibration.num_rows),
        f"`{calibration.data_sha256}`",
    )
    return table(("", ""), zip(names, values, strict=True))


def _coefficients(calibration: Calibration) -> str:
    found = calibration.coefficients
    rows = [
        (f"`{name}`", _value(found.get(name)), term.unit, f"{term.start:.3g}", term.component)
        for name, term in TERMS.items()
    ]
    return table(("term", "coefficient", "unit", "start", "part of a step"), rows)


def _value(value: float | None) -> str:
    return "not kept" if value is None else f"{value:.4g}"


def _hosts(calibration: Calibration) -> str:
    names = [each.name for each in fields(HostWork)]
    rows = [
        (f"`{stack}`", *(f"{getattr(work, name):.3g}" for name in names)) for stack, work in calibration.hosts.items()
    ]
    clients = [(f"clients: `{name}`", f"{value:.3g}") for name, value in calibration.clients.items()]
    return table(("stack", *(f"`{name}`" for name in names)), rows) + "\n" + table(("load tests", ""), clients)


def _stacks(_: Calibration) -> str:
    rows = [
        (
            f"`{stack.name}`",
            stack.meaning,
            stack.prompts_fill,
            stack.steps_read,
            "device" if stack.samples_on_device else "host",
            stack.source,
        )
        for stack in STACKS.values()
    ]
    return table(("stack", "what it does", "a prompt fills the", "a step reads the", "samples on the", "source"), rows)


def _steps(calibration: Calibration) -> str:
    return _errors(calibration, _is_step, STEP_WAYS)


def _is_step(group: str) -> bool:
    """Return whether a group is of decode steps and prompts that other rows do not contradict."""
    return not group.startswith(("serving", "encode")) and "contradicted" not in group


def _serving(calibration: Calibration) -> str:
    def is_sound(name: str) -> bool:
        return name.startswith("serving") and "contradicted" not in name and "saturated" not in name

    return _errors(calibration, is_sound, SERVING_WAYS)


def _apart(calibration: Calibration) -> str:
    rows = [
        (f"`{name}`", str(group.n), _stats(group.all))
        for name, group in calibration.errors.items()
        if "contradicted" in name or "saturated" in name
    ]
    return table(("group", "n", "error of the shipped fit"), rows)


def _errors(calibration: Calibration, is_shown: Callable[[str], bool], ways: Sequence[str]) -> str:
    rows = [
        (f"`{name}`", str(group.n), *(_stats(group.left_out.get(way)) for way in ways))
        for name, group in calibration.errors.items()
        if is_shown(name)
    ]
    return table(("group", "n", *(f"unseen {way}" for way in ways)), rows)


def _baselines(calibration: Calibration) -> str:
    names = list(filter(_is_step, calibration.errors))
    plain = {name: groups for name, groups in calibration.baselines.items() if any(map(groups.get, names))}
    rows = [(f"`{name}`", *(_stats(groups.get(name)) for groups in plain.values())) for name in names]
    return table(("group", *plain), rows)


def _encoders(calibration: Calibration) -> str:
    """Errors of passes: mean sizes, with the interval of series."""
    plain = calibration.baselines
    rows = []
    for name, group in calibration.errors.items():
        if name.startswith("encode"):
            series, unseen = group.series, (_mean(group.left_out.get(way)) for way in ("source", "model", "chip"))
            by_series = "-" if series is None else f"{series.mean:.0%} ({series.low:.0%} to {series.high:.0%})"
            two, roof = (_mean(plain.get(way, {}).get(name)) for way in ("two coefficients", "roofline"))
            rows.append((f"`{name}`", str(group.n), _mean(group.all), by_series, *unseen, two, roof))
    head = "group", "n", "fitted", "series", "release", "layers' size", "chip", "two coefficients", "roofline"
    return table(head, rows)


def _mean(stats: ErrorStats | None) -> str:
    return "-" if stats is None else f"{stats.mean:.0%}"


def _stats(stats: ErrorStats | None) -> str:
    """Median and 90th percentile of sizes, and the bias."""
    if stats is None:
        return "-"
    return f"{stats.median:.1%}/{stats.p90:.1%}, {stats.bias:+.1%}"


def _evidence(calibration: Calibration) -> str:
    evidence, rows = calibration.evidence, []
    for phase in PHASES:
        own = [each for each in evidence.samples if each.point.phase == phase]
        for chip, has_experts in sorted({(each.point.chip, each.point.has_experts) for each in own}):
            kind = [each for each in own if (each.point.chip, each.point.has_experts) == (chip, has_experts)]
            points = [each.point for each in kind]
            sizes = [_range(points, name) for name in ("billions", "tp", "batch", "positions")]
            counts = str(len(kind)), str(sum(each.num_rows for each in kind))
            rows.append((phase, chip, "MoE" if has_experts else "dense", *counts, *sizes))
    return table(("phase", "chip", "", "steps", "rows", "B parameters", "cores", "slots", "positions"), rows)


def _range(points: Sequence[Point], name: str) -> str:
    values = [getattr(point, name) for point in points]
    least, most = (f"{value:.3g}" if name == "billions" else f"{value:,}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def _coverage(calibration: Calibration) -> str:
    rows = [(phase, *(f"{share:.0%}" for share in calibration.evidence.coverage(phase))) for phase in PHASES]
    return table(("phase", "configurations within the band that other sources give", "their rows"), rows)


_BLOCKS: dict[str, Callable[[Calibration], str]] = {
    "fit": _fit,
    "coefficients": _coefficients,
    "hosts": _hosts,
    "stacks": _stacks,
    "steps": _steps,
    "serving": _serving,
    "apart": _apart,
    "baselines": _baselines,
    "encoders": _encoders,
    "evidence": _evidence,
    "coverage": _coverage,
}
