"""The catalogue in force: the data sheets of parts.py and instances.py, with a user's file over them if there is one.

There are no figures here. The catalogue is chosen once, when a process starts (`use_catalog`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from server.config import CatalogConfig
from server.device.catalog_file import CatalogFile, PriceEntry, read_catalog_file
from server.device.instances import INSTANCES, Instance
from server.device.parts import CHIPS
from server.device.prices import Prices
from server.errors import DeviceError

__all__ = ["INSTANCES", "Catalog", "Instance", "instance", "instances", "load_catalog", "use_catalog"]


class Catalog:
    """Instances by name, with the prices of one region."""

    def __init__(self, instances: Iterable[Instance]) -> None:
        self._by_name = {instance.name: instance for instance in instances}

    @property
    def instances(self) -> tuple[Instance, ...]:
        return tuple(self._by_name.values())

    def instance(self, name: str) -> Instance:
        """The instance called `name`, such as "inf2.xlarge". Raises DeviceError with the nearest names and all."""
        found = self._by_name.get(name)
        if found is None:
            near = get_close_matches(name.lower(), self._by_name, n=2)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise DeviceError(f"there is no device {name!r}.{hint} Known: {', '.join(self._by_name)}")
        return found


def load_catalog(config: CatalogConfig) -> Catalog:
    """The built-in sheet with the user's file over it, and the prices of the region.

    Raises SettingsError for a file that is wrong, DeviceError for a region that no price is known of.
    """
    user = CatalogFile({}, {}, ()) if config.file is None else read_catalog_file(Path(config.file), CHIPS, INSTANCES)
    rows = {row.name: _with_chip(row, user) for row in INSTANCES} | user.instances
    _require_region(config.region, rows.values(), user.prices)
    return Catalog(_priced(row, config, user.prices) for row in rows.values())


def _with_chip(row: Instance, user: CatalogFile) -> Instance:
    """A built-in row, on the user's chip where that is given; links of its own stay as they are."""
    chip = user.chips.get(row.chip.name)
    if chip is None:
        return row
    return replace(row, chip=chip, link=chip.link if row.link == row.chip.link else row.link, is_user_given=True)


def _priced(row: Instance, config: CatalogConfig, entries: Iterable[PriceEntry]) -> Instance:
    prices = _prices(row, config, entries)
    return row if prices == row.prices else replace(row, prices=prices)


def _prices(row: Instance, config: CatalogConfig, entries: Iterable[PriceEntry]) -> Prices:
    """Prices of the file over those of the sheet, and a discount of the command line over the file's."""
    prices = row.prices if row.prices.region == config.region else Prices(config.region)
    discount = config.spot_discount
    for entry in entries:
        if (entry.instance, entry.region) == (row.name, config.region):
            prices = replace(
                prices,
                on_demand=entry.on_demand or prices.on_demand,
                reserved=entry.reserved or prices.reserved,
            )
            discount = entry.spot_discount if discount is None else discount
    return prices if discount is None else replace(prices, spot=prices.with_spot_discount(discount))


def _require_region(region: str, rows: Iterable[Instance], entries: Iterable[PriceEntry]) -> None:
    known = {row.prices.region for row in rows} | {entry.region for entry in entries}
    if region not in known:
        raise DeviceError(
            f"no price of any instance is known for region {region!r}: known are {', '.join(sorted(known))}; "
            "a --catalog file can give others"
        )


_current = Catalog(INSTANCES)


def use_catalog(config: CatalogConfig) -> None:
    """Set the catalogue of this process to the one that `config` names. Raises as `load_catalog`, changing nothing."""
    global _current  # noqa: PLW0603  # data of the whole process, as the kernels' cache is; set before anything reads it
    _current = load_catalog(config)


def instances() -> tuple[Instance, ...]:
    """Instances of the sheet in force."""
    return _current.instances


def instance(name: str) -> Instance:
    """The instance called `name` of the sheet in force. Raises DeviceError with the nearest names and all of them."""
    return _current.instance(name)
