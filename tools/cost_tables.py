"""Tables of docs/internals/cost-model.md, made from a calibration: a new fit changes nothing else of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial

from neuronserve.planner.validate.document import Table
from neuronserve.planner.validate.markdown import lines
from neuronserve.server.cost.calibration import Calibration
from neuronserve.server.cost.stacks import STACKS, HostWork
from neuronserve.server.cost.terms import TERMS


def blocks(calibration: Calibration) -> dict[str, Callable[[], str]]:
    """Return the page's tables by the names of their places."""
    return {name: partial(block, calibration) for name, block in _BLOCKS.items()}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return lines(Table(tuple(head), tuple(map(tuple, rows))))


def _fit(calibration: Calibration) -> str:
    names = ("version", "date", "rows that took part", "SHA-256 of the table")
    values = (
        calibration.version,
        calibration.date,
        str(calibration.num_rows),
        f"`{calibration.data_sha256}`",
    )
    return _table(("", ""), zip(names, values, strict=True))


def _coefficients(calibration: Calibration) -> str:
    found = calibration.coefficients
    rows = [
        (f"`{name}`", _value(found.get(name)), term.unit, f"{term.start:.3g}", term.component)
        for name, term in TERMS.items()
    ]
    return _table(("term", "coefficient", "unit", "start", "part of a step"), rows)


def _value(value: float | None) -> str:
    return "not kept" if value is None else f"{value:.4g}"


def _hosts(calibration: Calibration) -> str:
    names = [each.name for each in fields(HostWork)]
    rows = [
        (f"`{stack}`", *(f"{getattr(work, name):.3g}" for name in names)) for stack, work in calibration.hosts.items()
    ]
    clients = [(f"clients: `{name}`", f"{value:.3g}") for name, value in calibration.clients.items()]
    return _table(("stack", *(f"`{name}`" for name in names)), rows) + "\n" + _table(("load tests", ""), clients)


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
    return _table(("stack", "what it does", "a prompt fills the", "a step reads the", "samples on the", "source"), rows)


_BLOCKS: dict[str, Callable[[Calibration], str]] = {
    "fit": _fit,
    "coefficients": _coefficients,
    "hosts": _hosts,
    "stacks": _stacks,
}
