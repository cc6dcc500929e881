"""Rows of a checkpoint's module with several projections: in order, in turns by head, or in blocks of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .linear import WeightRows
from .names import Names


def side_by_side(given: Sequence[WeightRows], names: Names) -> tuple[WeightRows, ...]:
    """Return modules side by side; modules that the checkpoint's names make one are its rows in order."""
    parts: list[WeightRows] = []
    for part in given:
        alike = [before.outputs for before in parts if before.module == part.module]
        parts.append(replace(part, first_row=sum(outputs.size for outputs in alike)))
    if len({part.module for part in parts}) > 1 or len(parts) == 1:
        return tuple(parts)
    if len(parts) == 2 and names.is_up_first:
        parts = [replace(part, first_row=parts[1 - i].first_row) for i, part in enumerate(parts)]
    if names.blocks:
        rows, units = parts[0].outputs.size // names.blocks, parts[0].outputs.units // names.blocks
        each = zip(parts, (0, 2, 1), strict=True)  # q, v and k
        return tuple(
            replace(part, first_row=at * rows, unit_stride=3 * rows, units_per_stride=units) for part, at in each
        )
    return in_turns(parts) if names.take_turns else tuple(parts)


def in_turns(parts: Sequence[WeightRows]) -> tuple[WeightRows, ...]:
    """Return parts of one module of which as many units as there are for one unit of the last follow in turn."""
    runs = [part.outputs.units // parts[-1].outputs.units for part in parts]
    sizes = [run * part.outputs.unit_size for run, part in zip(runs, parts, strict=True)]
    return tuple(
        replace(part, first_row=sum(sizes[:i]), unit_stride=sum(sizes), units_per_stride=run)
        for i, (part, run) in enumerate(zip(parts, runs, strict=True))
    )
