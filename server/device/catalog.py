"""The catalogue in force: the data sheets of chips.py, instances.py and prices.json, overlaid by a user's file.

This file has no figures. The catalogue is chosen once, when a process starts (`use_catalog`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from ..config import CatalogConfig
from ..errors import DeviceError
from .catalog_file import CatalogFile, PriceEntry, read_catalog_file
from .chips import CHIPS
from .instances import INSTANCES, Instance
from .prices import Prices, built_in_prices, built_in_regions

__all__ = ["INSTANCES", "Catalog", "Instance", "instance", "instances", "load_catalog", "regions", "use_catalog"]


class Catalog:
    """Instances by name, with the prices of one region."""

    def __init__(self, rows: Iterable[Instance], config: CatalogConfig, entries: Iterable[PriceEntry] = ()) -> None:
        """`entries` are a user's prices, which replace built-in ones. Raises DeviceError if a region has none."""
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
        """Regions with a known price of any instance, sorted."""
        return tuple(sorted(built_in_regions() | {entry.region for entry in self._entries}))

    def in_region(self, region: str) -> Catalog:
        """Return the catalogue with the prices of another region. Raises DeviceError if none is known there."""
        return Catalog(self._rows, replace(self._config, region=region), self._entries)

    def instance(self, name: str) -> Instance:
        """Return the instance called `name`, such as "inf2.xlarge".

        Raises DeviceError for an unknown name, with the nearest and all known names, and for an instance that does not
        have the logical core configuration in force.
        """
        found = self._by_name.get(name)
        if found is None:
            near = get_close_matches(name.lower(), self._by_name, n=2)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise DeviceError(f"there is no device {name!r}.{hint} Known: {', '.join(self._by_name)}")
        lnc = self._config.logical_nc_config
        return found.with_lnc(lnc)

    def _grouped(self, row: Instance) -> Instance:
        """Return `row` with the logical core configuration in force, if its chip has that."""
        lnc = self._config.logical_nc_config
        return row.with_lnc(lnc) if lnc in row.chip.lnc_choices and lnc is not None else row

    def _prices(self, name: str) -> Prices:
        """Return the sheet's prices, overlaid by the file's. A discount of the command line replaces the file's."""
        prices, discount = built_in_prices(name, self._config.region), self._config.spot_discount
        for entry in self._entries:
            if (entry.instance, entry.region) == (name, self._config.region):
                prices = prices.updated(entry.prices)
                discount = entry.spot_discount if discount is None else discount
        return prices if discount is None else replace(prices, spot=prices.with_spot_discount(discount))


def load_catalog(config: CatalogConfig) -> Catalog:
    """Return the built-in sheet, overlaid by the user's file, with the prices of the region.

    Raises SettingsError for a wrong file, DeviceError for a region without known prices.
    """
    user = CatalogFile({}, {}, ()) if config.file is None else read_catalog_file(Path(config.file), CHIPS, INSTANCES)
    rows = {row.name: _with_chip(row, user) for row in INSTANCES} | user.instances
    return Catalog(rows.values(), config, user.prices)


def _with_chip(row: Instance, user: CatalogFile) -> Instance:
    """Return a built-in row with the user's chip, if there is one. A link that differs from its chip's is kept."""
    chip = user.chips.get(row.chip.name)
    if chip is None:
        return row
    return replace(row, chip=chip, link=chip.link if row.link == row.chip.link else row.link, is_user_given=True)


_current = Catalog(INSTANCES, CatalogConfig())


def use_catalog(config: CatalogConfig) -> None:
    """Set the catalogue of this process. If `load_catalog` raises, nothing changes."""
    global _current  # noqa: PLW0603  # global as the kernels' cache is; set before anything reads it
    _current = load_catalog(config)


def instances(region: str | None = None) -> tuple[Instance, ...]:
    """Return the instances of the catalogue in force, with the prices of `region` (None: the region in force).

    Raises DeviceError for a region without any price.
    """
    return (_current if region is None else _current.in_region(region)).instances


def regions() -> tuple[str, ...]:
    """Return the regions with prices in the catalogue in force."""
    return _current.regions


def instance(name: str) -> Instance:
    """Return the instance called `name` of the catalogue in force. Raises DeviceError as `Catalog.instance`."""
    return _current.instance(name)
