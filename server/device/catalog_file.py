"""Reads a user's catalogue: TOML tables of chips, instances and prices, which overlay the built-in ones.

    [chips.Inferentia2]             keys of Chip; a built-in chip keeps its values of keys that are left out
    [instances."inf2.xlarge"]       keys of Instance without prices, `chip` by name; likewise
    [[prices]]                      instance, region, and any of on_demand_usd, other bases, and spot_discount

Each table has its `source` and `date` (ISO 8601).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from neuronserve.server.device.catalog_keys import (
    ORIGIN,
    Keys,
    link,
    number,
    numbers,
    one_of,
    rates,
    share,
    text,
    texts,
    ultraserver,
    whole,
)
from neuronserve.server.device.chips import Chip
from neuronserve.server.device.instances import Instance
from neuronserve.server.device.prices import PRICE_BASES, Price, PriceBasis
from neuronserve.server.errors import SettingsError

CHIP = Keys(
    core_name=text,
    cores_per_chip=whole,
    memory_gib=whole,
    bandwidth_gb_s=number,
    tflops=rates,
    dtypes=texts,
    tp_degrees=numbers,
    link=link,
    lnc=whole,
    lnc_choices=numbers,
    topology=one_of("ring", "torus", "switch"),
    **ORIGIN,
)
INSTANCE = Keys(
    chip=text,
    num_chips=whole,
    vcpus=whole,
    host_memory_gib=whole,
    network_gbps=number,
    link=link,
    efa_gbps=number,
    efa_latency_us=number,
    num_hosts=whole,
    ultraserver=ultraserver,
    **ORIGIN,
)
USD: dict[str, PriceBasis] = {f"{basis}_usd": basis for basis in PRICE_BASES}
PRICE = Keys(instance=text, region=text, **dict.fromkeys(USD, number), spot_discount=share, **ORIGIN)
OPTIONAL = ("link", "lnc", "lnc_choices", "topology", "efa_gbps", "efa_latency_us", "num_hosts", "ultraserver")


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
        given = CHIP.read(where, table)
        built_in = self._built_in_chips.get(name)
        values = {"link": None} | _fields(built_in) | given
        if built_in is not None:  # a file may correct one rate and keep the others
            values["tflops"] = {**built_in.tflops, **given.get("tflops", {})}
        _require(where, values, CHIP)
        if values["tflops"].get("bfloat16") is None:
            raise SettingsError(f"{where}.tflops.bfloat16 is missing: the cost model needs it")
        values["lnc_choices"] = _lnc_choices(where, values)
        return Chip(**_without_origin(values) | {"name": name, "is_user_given": True})

    def _instance(self, name: str, table: Any, chips: Mapping[str, Chip]) -> Instance:
        where = f'instances."{name}"'
        given = INSTANCE.read(where, table)
        values = _fields(self._built_in.get(name)) | given
        _require(where, values, INSTANCE)
        chip = values["chip"] if isinstance(values["chip"], str) else values["chip"].name
        if chip not in chips:
            raise SettingsError(f"{where}.chip is {chip!r}: known are {', '.join(chips)}")
        own = {"name": name, "chip": chips[chip], "is_user_given": True}
        return Instance(**{"link": None} | _without_origin(values) | own)

    def _price(self, where: str, table: Any, names: Iterable[str]) -> PriceEntry:
        given = PRICE.read(where, table)
        for key in ("instance", "region"):
            if key not in given:
                raise SettingsError(f"{where}.{key} is missing")
        if given["instance"] not in names:
            raise SettingsError(f"{where}.instance is {given['instance']!r}: there is no such instance")
        known = (*USD, "spot_discount")
        if not given.keys() & set(known):
            raise SettingsError(f"{where}: gives none of {', '.join(known)}")
        prices = {
            basis: Price(given[key], given["source"], given["date"]) for key, basis in USD.items() if key in given
        }
        return PriceEntry(given["instance"], given["region"], prices, given.get("spot_discount"))


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


def _without_origin(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ORIGIN}


def _require(where: str, values: Mapping[str, Any], keys: Keys) -> None:
    missing = [key for key in keys.names if key not in values and key not in OPTIONAL]
    if missing:
        raise SettingsError(f"{where}: {', '.join(missing)} missing: it is not built in, so all must be given")
