"""docs/reference/hardware.md says what the catalogue has."""

from __future__ import annotations

from pathlib import Path

from neuronserve.server.device.catalog import INSTANCES, instance, instances, regions
from neuronserve.server.device.groups import instance_group
from neuronserve.server.device.prices import PRICE_BASES
from neuronserve.server.host.memory import GIB

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "hardware.md").read_text()


def table(*head: str) -> list[list[str]]:
    """Cells of the rows below the only table that is headed by `head` first."""
    lines = iter(PAGE.splitlines())
    start = "| " + " | ".join(head) + " |"
    assert any(line.startswith(start) for line in lines), start
    next(lines)
    rows: list[list[str]] = []
    for line in lines:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.10g}"


def test_the_table_of_chips() -> None:
    families = {}
    for families_cell, chip, cores, memory, degrees in table("family", "chip"):
        for family in families_cell.split(", "):
            families[family] = (chip, int(cores.split()[0]), memory, degrees)
    for part in INSTANCES:
        family = part.name.split(".")[0]
        gib = part.core_memory_bytes // GIB
        degrees = ", ".join(map(str, part.chip.tp_degrees))
        assert families[family] == (part.chip.name, part.chip.cores_per_chip, f"{gib} GiB", degrees)


def test_the_table_of_instances() -> None:
    rows = []
    for part in INSTANCES:
        silicon = f" of {shown(part.num_chips * part.chip.physical_cores)}" if part.chip.lnc > 1 else ""
        numbers = (part.vcpus, part.host_memory_gib, part.num_hosts, part.network_gbps, part.efa_gbps)
        device_gib = shown(part.num_chips * part.chip.memory_gib)
        rows.append(
            [part.name, shown(part.num_chips), shown(part.num_cores) + silicon, device_gib, *map(shown, numbers)]
        )
    assert table("instance", "chips", "NeuronCores") == rows


def test_the_table_of_logical_cores() -> None:
    for what, *cells in table("of", "LNC 2", "LNC 1"):
        for lnc, cell in zip((2, 1), cells, strict=True):
            name = "trn3-gen1" if "Trainium3" in what else "trn2.3xlarge" if "trn2.3xlarge" in what else "trn2.48xlarge"
            part = instance(name).with_lnc(lnc)
            values = {
                "cores": str(part.num_cores),
                "memory": f"{part.core_memory_bytes // GIB} GiB",
                "bandwidth": f"{part.chip.bandwidth_gb_s / part.chip.cores_per_chip:g} GB/s",
            }
            assert cell == values[what.split()[0]], what


def test_the_table_of_groups() -> None:
    for which, link, gb_s, latency in table("group", "link"):
        found = instance_group(instance(which.split()[-1]), 2).link
        assert link.startswith(found.kind)
        assert shown(round(found.gb_s, 6)) == gb_s
        assert latency == ("not published" if found.latency_s is None else f"{found.latency_s * 1e6:.0f} us")


def test_the_table_of_prices() -> None:
    rows = table("instance", "region", *PRICE_BASES)
    assert len(rows) > 10
    for name, region, *cells in rows:
        part = next(part for part in instances(region) if part.name == name)
        usd = [part.usd(basis) for basis in PRICE_BASES]
        assert cells == ["-" if each is None else f"{each:.5g}" for each in usd], name
    listed = {name for name, region, *_ in rows if region == "us-east-1"}
    assert listed == {part.name for part in instances("us-east-1") if any(map(part.usd, PRICE_BASES))}


def test_every_basis_is_explained() -> None:
    assert [row[0] for row in table("basis", "what")] == list(PRICE_BASES)


def test_the_number_of_regions() -> None:
    assert f"{len(regions())} regions" in PAGE
