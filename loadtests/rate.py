"""Price of an hour of the emulated instance: by the flags, else by the server's inventory. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..server.config import CatalogConfig
from ..server.device.catalog import Instance, load_catalog
from ..server.device.prices import Price, PriceBasis, Prices, rent_usd
from ..server.errors import DeviceError, SettingsError
from .errors import SpecError
from .inventory import Inventory
from .specs import PriceSpec


@dataclass(frozen=True, slots=True)
class HourRate:
    """Price of an hour of the instance, and the share of it that device seconds refer to."""

    instance: str
    basis: str  # on_demand, reserved, spot, or given
    usd_per_hour: float  # of the whole instance
    source: str  # source of the price, with its date
    share: float
    prices: Prices | None  # all prices in the catalogue; None: unknown instance
    num_instances: int = 1

    def usd(self, seconds: float, utilization: float, usd_per_hour: float | None = None) -> float:
        """Return the dollars of `seconds` of device time, at the rate or at another hourly price."""
        return rent_usd(self.usd_per_hour if usd_per_hour is None else usd_per_hour, seconds, self.share) / utilization

    @property
    def label(self) -> str:
        return f"{self.basis} ${self.usd_per_hour:g}/h {self.source}"


def rate_of(spec: PriceSpec, inventory: Inventory | None) -> HourRate | str:
    """Return the rate, or the reason why there is none.

    Flags come first. Without them, the price is the one by which the server charges its requests (`cost_usd`).
    Raises SpecError if the instance is unknown or has no such price.
    """
    name = spec.instance or (inventory.device.instance if inventory else None)
    if name is None:
        return "no instance was given, and the server has no /inventory that names one"
    share = spec.instance_share or (inventory.share if inventory and inventory.device.instance == name else 1.0)
    if spec.names_a_price or inventory is None:
        part, basis = find_instance(name, spec), spec.price_basis or "on_demand"
        price = _price_of(part, basis)
        source = f"in {spec.region} of {price.date} ({price.source})"
        return HourRate(name, basis, price.usd, source, share, part.prices)
    stated, count = inventory.price, inventory.device.num_instances
    if stated.usd_per_hour is None:
        return f"the server has no price of {name}: {stated.source}"
    source = f"by the server's inventory{f' of {stated.date}' if stated.date else ''} ({stated.source})"
    return HourRate(name, stated.basis, stated.usd_per_hour, source, share, _catalogued(name, spec), count)


def find_instance(name: str, spec: PriceSpec) -> Instance:
    """Return the catalogue's instance. Raises SpecError for an unknown one, and for an invalid catalogue file."""
    try:
        return load_catalog(CatalogConfig(spec.catalog, spec.region, spec.spot_discount)).instance(name)
    except (DeviceError, SettingsError) as error:
        raise SpecError(f"price.instance: {error}") from error


def _price_of(part: Instance, basis: PriceBasis) -> Price:
    try:
        return part.price(basis)
    except DeviceError as error:
        raise SpecError(f"price.price_basis is {basis!r}: {error}") from error


def _catalogued(name: str, spec: PriceSpec) -> Prices | None:
    """Return the prices of a server's instance; None if only the server's own catalogue has it."""
    try:
        return find_instance(name, spec).prices
    except SpecError:
        return None
