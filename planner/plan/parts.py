"""Instances that a plan considers, with the cheapest region's prices, their logical cores, and groups of them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ...server.device.catalog import instance, instances
from ...server.device.groups import Place, instance_group
from ...server.device.instances import Instance
from ...server.errors import DeviceError
from .options import PlanOptions

GROUP_SIZES = (
    2,
    4,
    8,
    16,
)  # instances of a replica, tried from the fewest on if no single one holds a model


def parts_in_question(options: PlanOptions) -> tuple[Instance, ...]:
    """Return each instance at the price of its cheapest region, once for each wanted logical core configuration.

    Raises DeviceError for an unknown instance or region, a configuration that no considered instance can have, and a
    price basis without any price.
    """
    wanted = [instance(name).name for name in dict.fromkeys(options.devices)] or [part.name for part in instances()]
    sheets = [{part.name: part for part in instances(region)} for region in options.regions or (None,)]
    parts = [min((sheet[name] for sheet in sheets), key=lambda part: _usd(part, options)) for name in wanted]
    if all(_usd(part, options) == inf for sheet in sheets for part in sheet.values()):
        parts[0].price(options.price_basis)  # raises: no instance has a price
    for lnc in options.logical_nc_configs:
        if not any(lnc in part.chip.lnc_choices for part in parts):
            can = sorted({choice for part in parts for choice in part.chip.lnc_choices})
            raise DeviceError(f"lnc is {lnc}: the considered instances can have {' or '.join(map(str, can))}")
    return tuple(grouped for part in parts for grouped in _grouped(part, options.logical_nc_configs))


def place_of(part: Instance, count: int) -> Place:
    """Return the instance, or a group of `count` of it. Raises DeviceError if it cannot be in a group."""
    return part if count == 1 else instance_group(part, count)


def _usd(part: Instance, options: PlanOptions) -> float:
    usd = part.usd(options.price_basis)
    return inf if usd is None else usd


def _grouped(part: Instance, configs: tuple[int, ...]) -> Iterator[Instance]:
    """Yield the instance with each wanted configuration that its chip can have; unchanged if there is none."""
    choices = [lnc for lnc in dict.fromkeys(configs) if lnc in part.chip.lnc_choices]
    return (part.with_lnc(lnc) for lnc in choices or [part.chip.lnc])
