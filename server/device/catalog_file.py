"""Reads a user's catalogue: TOML tables of chips, instances and prices, which overlay the built-in ones.

    [chips.Inferentia2]             keys of Chip; a built-in chip keeps its values of keys that are left out
    [instances."inf2.xlarge"]       keys of Instance without prices, `chip` by name; likewise
    [[prices]]                      instance, region, and any of on_demand_usd, other bases, and spot_discount

Each table has its `source` and `date` (ISO 8601).
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from ..typed_json import Count, Counts, JsonError, Positive, Share, Text, Texts, convert
from .chips import Chip, Link, Topology
from .instances import Instance, UltraServer
from .prices import PRICE_BASES, Price, PriceBasis


@dataclass(frozen=True, slots=True)
class _Origin:
    source: Text  # of the figures
    date: datetime.date  # of the source


@dataclass(frozen=True, slots=True)
class _ChipTable(_Origin):
    core_name: Text | None = None
    cores_per_chip: Count | None = None
    memory_gib: Count | None = None
    bandwidth_gb_s: Positive | None = None
    tflops: dict[str, Positive] | None = None
    dtypes: Texts | None = None
    tp_degrees: Counts | None = None
    link: Link | None = None
    lnc: Count | None = None
    lnc_choices: Counts | None = None
    topology: Topology | None = None


@dataclass(frozen=True, slots=True)
class _InstanceTable(_Origin):
    chip: Text | None = None
    num_chips: Count | None = None
    vcpus: Count | None = None
    host_memory_gib: Count | None = None
    network_gbps: Positive | None = None
    link: Link | None = None
    efa_gbps: Positive | None = None
    efa_latency_us: Positive | None = None
    num_hosts: Count | None = None
    ultraserver: UltraServer | None = None


@dataclass(frozen=True, slots=True)
class _PriceTable(_Origin):
    instance: Text
    region: Text
    on_demand_usd: Positive | None = None
    reserved_1y_usd: Positive | None = None
    reserved_usd: Positive | None = None
    capacity_block_usd: Positive | None = None
    spot_usd: Positive | None = None
    spot_discount: Share | None = None


USD: dict[str, PriceBasis] = {f"{basis}_usd": basis for basis in PRICE_BASES}
SORTED = ("tp_degrees", "lnc_choices")


@dataclass(frozen=True, slots=True)
class PriceEntry:
    """A user's prices of one instance in one region."""

    instance: str
    region: str
    prices: Mapping[PriceBasis, Price]
    spot_discount: float | None  # None = not given


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """Complete rows: keys that the file leaves out of a built-in row are filled in."""

    chips: dict[str, Chip]
    instances: dict[str, Instance]
    prices: tuple[PriceEntry, ...]


def read_catalog_file(path: Path, chips: Iterable[Chip], instances: Iterable[Instance]) -> CatalogFile:
    """Return the file's rows, completed by the built-in ones. Raises SettingsError, naming the file and the key."""
    try:
        return _Reader(chips, instances).read(_toml(path))
    except SettingsError as error:
        raise SettingsError(f"--catalog: {path}: {error}") from error


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"is not TOML: {error}") from error


class _Reader:
    def __init__(self, chips: Iterable[Chip], instances: Iterable[Instance]) -> None:
        self._built_in_chips = {chip.name: chip for chip in chips}
        self._built_in = {row.name: row for row in instances}

    def read(self, document: Mapping[str, Any]) -> CatalogFile:
        for name in document.keys() - {"chips", "instances", "prices"}:
            raise SettingsError(f"{name}: there is no such table; known are chips, instances, prices")
        chips = {name: self._chip(name, table) for name, table in _tables(document, "chips")}
        known = self._built_in_chips | chips
        instances = {name: self._instance(name, table, known) for name, table in _tables(document, "instances")}
        prices = document.get("prices", [])
        if not isinstance(prices, list):
            raise SettingsError("prices: must be tables, each headed [[prices]]")
        names = self._built_in.keys() | instances.keys()
        entries = tuple(self._price(f"prices[{i}]", table, names) for i, table in enumerate(prices))
        return CatalogFile(chips, instances, entries)

    def _chip(self, name: str, table: Any) -> Chip:
        where = f"chips.{name}"
        given = _read(where, table, _ChipTable)
        built_in = self._built_in_chips.get(name)
        values = {"link": None} | _fields(built_in) | given
        if built_in is not None:  # a file may correct one rate and keep the others
            values["tflops"] = {**built_in.tflops, **given.get("tflops", {})}
        _require(where, values, Chip)
        if values["tflops"].get("bfloat16") is None:
            raise SettingsError(f"{where}.tflops.bfloat16 is missing: the cost model needs it")
        values["lnc_choices"] = _lnc_choices(where, values)
        return Chip(**values | {"name": name, "is_user_given": True})

    def _instance(self, name: str, table: Any, chips: Mapping[str, Chip]) -> Instance:
        where = f'instances."{name}"'
        values = {"link": None} | _fields(self._built_in.get(name)) | _read(where, table, _InstanceTable)
        _require(where, values, Instance)
        chip = values["chip"] if isinstance(values["chip"], str) else values["chip"].name
        if chip not in chips:
            raise SettingsError(f"{where}.chip is {chip!r}: known are {', '.join(chips)}")
        return Instance(**values | {"name": name, "chip": chips[chip], "is_user_given": True})

    def _price(self, where: str, table: Any, names: Iterable[str]) -> PriceEntry:
        given = _read(where, table, _PriceTable)
        if given["instance"] not in names:
            raise SettingsError(f"{where}.instance is {given['instance']!r}: there is no such instance")
        known = (*USD, "spot_discount")
        if not given.keys() & set(known):
            raise SettingsError(f"{where}: gives none of {', '.join(known)}")
        origin = table["source"], str(table["date"])
        prices = {basis: Price(given[key], *origin) for key, basis in USD.items() if key in given}
        return PriceEntry(given["instance"], given["region"], prices, given.get("spot_discount"))


def _read(where: str, table: Any, record: type[_Origin]) -> dict[str, Any]:
    """Return the values of a table, without its origin. Raises SettingsError, naming the key and the value."""
    if not isinstance(table, dict):
        raise SettingsError(f"{where}: must be a table, not {table!r}")
    known = [each.name for each in fields(record)]
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingsError(f"{where}.{key}: there is no such key{hint} Known: {', '.join(known)}")
    try:
        read = convert(table, record, f"{where}.")
    except JsonError as error:
        raise SettingsError(str(error).replace(" | null", "")) from error  # TOML has no null
    values = {name: getattr(read, name) for name in known if name not in ("source", "date")}
    values |= {name: tuple(sorted(set(values[name]))) for name in SORTED if values.get(name)}
    return {name: value for name, value in values.items() if value is not None}


def _tables(document: Mapping[str, Any], kind: str) -> Iterable[tuple[str, Any]]:
    tables = document.get(kind, {})
    if not isinstance(tables, dict):
        raise SettingsError(f"{kind}: must hold tables, headed [{kind}.NAME]")
    return tables.items()


def _lnc_choices(where: str, values: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the choices of `lnc`: by default only `lnc`. Each must divide the physical cores."""
    lnc = values.get("lnc", 1)
    choices: tuple[int, ...] = values.get("lnc_choices", (lnc,))
    physical = values["cores_per_chip"] * lnc
    if lnc not in choices or any(physical % choice for choice in choices):
        raise SettingsError(
            f"{where}.lnc_choices is {list(choices)}: it must have lnc, {lnc}, and divisors of the {physical} physical "
            "cores"
        )
    return choices


def _fields(row: Chip | Instance | None) -> dict[str, Any]:
    """Return the values of a built-in row by field. Records in it stay records."""
    return {} if row is None else {field.name: getattr(row, field.name) for field in fields(row)}


def _require(where: str, values: Mapping[str, Any], row: type[Chip | Instance]) -> None:
    required = [each.name for each in fields(row) if each.default is MISSING and each.default_factory is MISSING]
    missing = [name for name in required if name not in values and name != "name"]
    if missing:
        raise SettingsError(f"{where}: {', '.join(missing)} missing: it is not built in, so all must be given")
