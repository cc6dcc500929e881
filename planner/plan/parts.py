"""The parts that a plan considers: at whose prices, with which logical cores, and how many of them together."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from neuronserve.planner.plan.options import PlanOptions
from neuronserve.server.device.catalog import instance, instances
from neuronserve.server.device.groups import Place, instance_group
from neuronserve.server.device.instances import Instance
from neuronserve.server.errors import DeviceError

GROUP_SIZES = (
    2,
    4,
    8,
    16,
)  # instances of a replica that are tried, the fewest first, where no single one holds a model


def parts_in_question(options: PlanOptions) -> tuple[Instance, ...]:
    """Each part at the cheapest of the regions, once for each logical core configuration asked for that it can have.

    Raises DeviceError for an unknown instance or region, a configuration that no part in question has, and a price
    basis that no instance has a price by.
    """
    wanted = [instance(name).name for name in dict.fromkeys(options.devices)] or [part.name for part in instances()]
    sheets = [{part.name: part for part in instances(region)} for region in options.regions or (None,)]
    parts = [min((sheet[name] for sheet in sheets), key=lambda part: _usd(part, options)) for name in wanted]
    if all(_usd(part, options) == inf for sheet in sheets for part in sheet.values()):
        parts[0].price(options.price_basis)  # raises: not a price of one part is missing, but all
    for lnc in options.logical_nc_configs:
        if not any(lnc in part.chip.lnc_choices for part in parts):
            can = sorted({choice for part in parts for choice in part.chip.lnc_choices})
            raise DeviceError(f"lnc is {lnc}: the parts in question can have {' or '.join(map(str, can))}")
    return tuple(grouped for part in parts for grouped in _grouped(part, options.logical_nc_configs))


def place_of(part: Instance, count: int) -> Place:
    """The part, or a group of `count` of it. Raises DeviceError where it cannot be in a group."""
    return part if count == 1 else instance_group(part, count)


def _usd(part: Instance, options: PlanOptions) -> float:
    usd = part.usd(options.price_basis)
    return inf if usd is None else usd


def _grouped(part: Instance, configs: tuple[int, ...]) -> Iterator[Instance]:
    """With each of the logical core configurations that its chip can have, or as it comes where that is none."""
    choices = [lnc for lnc in dict.fromkeys(configs) if lnc in part.chip.lnc_choices]
    return (part.with_lnc(lnc) for lnc in choices or [part.chip.lnc])
