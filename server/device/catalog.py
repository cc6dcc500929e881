"""The catalogue in force: the data sheets of parts.py, instances.py and prices.json, with a user's file over them.

There are no figures here. The catalogue is chosen once, when a process starts (`use_catalog`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from neuronserve.server.config import CatalogConfig
from neuronserve.server.device.catalog_file import CatalogFile, PriceEntry, read_catalog_file
from neuronserve.server.device.instances import INSTANCES, Instance
from neuronserve.server.device.parts import CHIPS
from neuronserve.server.device.prices import Prices, built_in_prices, built_in_regions
from neuronserve.server.errors import DeviceError

__all__ = ["INSTANCES", "Catalog", "Instance", "instance", "instances", "load_catalog", "regions", "use_catalog"]


class Catalog:
    """Instances by name, with the prices of one region."""

    def __init__(self, rows: Iterable[Instance], config: CatalogConfig, entries: Iterable[PriceEntry] = ()) -> None:
        """`entries` are a user's prices, over the built-in ones. Raises DeviceError for a region without any price."""
        self._rows, self._config, self._entries = tuple(rows), config, tuple(entries)
        if config.region not in self.regions:
            raise DeviceError(
                f"no price of any instance is known for region {config.region!r}: known are "
                f"{', '.join(self.regions)}; a --catalog file can give others"
            )
        priced = (replace(row, prices=self._prices(row.name)) for row in self._rows)
        self._by_name = {row.name: self._grouped(row) for row in priced}

    @property
    def instances(self) -> tuple[Instance, ...]:
        return tuple(self._by_name.values())

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions that a price of any instance is known in, in order."""
        return tuple(sorted(built_in_regions() | {entry.region for entry in self._entries}))

    def in_region(self, region: str) -> Catalog:
        """The same with the prices of another region. Raises DeviceError where none is known."""
        return Catalog(self._rows, replace(self._config, region=region), self._entries)

    def instance(self, name: str) -> Instance:
        """The instance called `name`, such as "inf2.xlarge".

        Raises DeviceError with the nearest names and all, and where it cannot have the logical cores that are in force.
        """
        found = self._by_name.get(name)
        if found is None:
            near = get_close_matches(name.lower(), self._by_name, n=2)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise DeviceError(f"there is no device {name!r}.{hint} Known: {', '.join(self._by_name)}")
        lnc = self._config.logical_nc_config
        return found if lnc is None else found.with_lnc(lnc)

    def _grouped(self, row: Instance) -> Instance:
        """With the logical cores that are in force, where the chip can have them."""
        lnc = self._config.logical_nc_config
        return row.with_lnc(lnc) if lnc in row.chip.lnc_choices and lnc is not None else row

    def _prices(self, name: str) -> Prices:
        """Prices of the file over those of the sheet, and a discount of the command line over the file's."""
        prices, discount = built_in_prices(name, self._config.region), self._config.spot_discount
        for entry in self._entries:
            if (entry.instance, entry.region) == (name, self._config.region):
                prices = prices.updated(entry.prices)
                discount = entry.spot_discount if discount is None else discount
        return prices if discount is None else replace(prices, spot=prices.with_spot_discount(discount))


def load_catalog(config: CatalogConfig) -> Catalog:
    """The built-in sheet with the user's file over it, and the prices of the region.

    Raises SettingsError for a file that is wrong, DeviceError for a region that no price is known of.
    """
    user = CatalogFile({}, {}, ()) if config.file is None else read_catalog_file(Path(config.file), CHIPS, INSTANCES)
    rows = {row.name: _with_chip(row, user) for row in INSTANCES} | user.instances
    return Catalog(rows.values(), config, user.prices)


def _with_chip(row: Instance, user: CatalogFile) -> Instance:
    """A built-in row, on the user's chip where that is given; links of its own stay as they are."""
    chip = user.chips.get(row.chip.name)
    if chip is None:
        return row
    return replace(row, chip=chip, link=chip.link if row.link == row.chip.link else row.link, is_user_given=True)


_current = Catalog(INSTANCES, CatalogConfig())


def use_catalog(config: CatalogConfig) -> None:
    """Set the catalogue of this process to the one that `config` names. Raises as `load_catalog`, changing nothing."""
    global _current  # noqa: PLW0603  # data of the whole process, as the kernels' cache is; set before anything reads it
    _current = load_catalog(config)


def instances(region: str | None = None) -> tuple[Instance, ...]:
    """Instances of the sheet in force, with the prices of `region` (None: the one in force).

    Raises DeviceError for a region without any price.
    """
    return (_current if region is None else _current.in_region(region)).instances


def regions() -> tuple[str, ...]:
    """Regions that the sheet in force knows prices of."""
    return _current.regions


def instance(name: str) -> Instance:
    """The instance called `name` of the sheet in force. Raises DeviceError with the nearest names and all of them."""
    return _current.instance(name)
