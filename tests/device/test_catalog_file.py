"""A user's file over the data sheet: what it changes, what it leaves, and refusals that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronserve.server.config import CatalogConfig
from neuronserve.server.cost.model import CostModel
from neuronserve.server.device.catalog import (
    INSTANCES,
    Catalog,
    instance,
    instances,
    load_catalog,
    regions,
    use_catalog,
)
from neuronserve.server.device.groups import GroupLink, instance_group
from neuronserve.server.device.instances import Instance
from neuronserve.server.device.prices import PriceBasis
from neuronserve.server.errors import DeviceError, SettingsError
from neuronserve.server.models.public import known_model

ORIGIN = 'source = "our measurements"\ndate = 2026-09-01\n'
NEW_CHIP = (
    '[chips.Inferentia9]\ncore_name = "NeuronCore-v9"\ncores_per_chip = 2\nmemory_gib = 64\nbandwidth_gb_s = 4000\n'
    f'dtypes = ["bfloat16"]\ntp_degrees = [4, 1, 2]\ntopology = "switch"\n{ORIGIN}tflops = {{bfloat16 = 400}}\n'
)
NEW_INSTANCE = (
    '[instances."inf9.xlarge"]\nchip = "Inferentia9"\nnum_chips = 2\nvcpus = 8\nhost_memory_gib = 32\n'
    f'network_gbps = 10\nlink = {{generation = "NeuronLink-v9", gib_s_per_chip = 1000}}\n{ORIGIN}'
)


def read(tmp_path: Path, text: str, region: str = "us-east-1", discount: float | None = None) -> Catalog:
    file = tmp_path / "catalog.toml"
    file.write_text(text)
    return load_catalog(CatalogConfig(str(file), region, discount))


def test_without_a_file_it_is_the_built_in_sheet() -> None:
    assert load_catalog(CatalogConfig()).instances == INSTANCES


def test_a_figure_of_a_chip_is_corrected_and_the_others_stay(tmp_path: Path) -> None:
    text = f"[chips.Inferentia2]\nbandwidth_gb_s = 700\n{ORIGIN}tflops = {{bfloat16 = 150}}\n"
    catalog = read(tmp_path, text)
    ours, built_in = catalog.instance("inf2.48xlarge").chip, instance("inf2.48xlarge").chip
    assert (ours.bandwidth_gb_s, ours.tflops["bfloat16"], ours.tflops["float32"]) == (700, 150, 47.5)
    assert (ours.memory_gib, ours.tp_degrees, ours.link) == (built_in.memory_gib, built_in.tp_degrees, built_in.link)
    assert catalog.instance("trn1.32xlarge") == instance("trn1.32xlarge")


def test_a_chips_link_is_that_of_the_instances_that_have_no_other(tmp_path: Path) -> None:
    text = f'[chips.Trainium1]\nlink = {{generation = "NeuronLink-v2", gib_s_per_chip = 300}}\n{ORIGIN}'
    catalog = read(tmp_path, text)
    links = {name: catalog.instance(name).link for name in ("trn1.2xlarge", "trn1.32xlarge", "trn1n.32xlarge")}
    assert {name: link and link.gib_s_per_chip for name, link in links.items()} == {
        "trn1.2xlarge": None,
        "trn1.32xlarge": 300,
        "trn1n.32xlarge": 768,
    }


def test_a_part_with_logical_cores_adapters_and_an_ultraserver(tmp_path: Path) -> None:
    chip = NEW_CHIP.replace("cores_per_chip = 2", "cores_per_chip = 2\nlnc = 2\nlnc_choices = [1, 2]")
    rack = "{name = 'u-inf9', sizes = [4, 2], link = {generation = 'NeuronLink-v9', gib_s_per_chip = 100}}"
    own = f"efa_gbps = 400\nefa_latency_us = 9\nnum_hosts = 2\nultraserver = {rack}\n"
    part = read(tmp_path, chip + NEW_INSTANCE + own).instance("inf9.xlarge")
    assert (part.num_cores, part.num_chips * part.chip.physical_cores, part.with_lnc(1).num_cores) == (4, 8, 8)
    alone = read(tmp_path, chip.replace("lnc_choices = [1, 2]", "") + NEW_INSTANCE).instance("inf9.xlarge")
    assert alone.chip.lnc_choices == (2,)
    assert part.memory_per_host_bytes == 16 * 2**30
    assert part.ultraserver is not None
    assert set(part.ultraserver.sizes) == {2, 4}
    assert instance_group(part, 3).link == GroupLink("EFA", 50, 9e-6)
    assert instance_group(part, 4).link.kind == "NeuronLink"


def test_times_on_a_changed_part_are_marked_as_not_measured(tmp_path: Path) -> None:
    shape = known_model("llama-3-8b")
    assert shape is not None
    part = read(tmp_path, f"[chips.Inferentia2]\nbandwidth_gb_s = 410\n{ORIGIN}").instance("inf2.xlarge")
    slow, fast = (CostModel.of(shape, which, 2).decode(1, 2048) for which in (part, instance("inf2.xlarge")))
    assert slow.memory_s == pytest.approx(2 * fast.memory_s)
    assert "catalogue file" in slow.extrapolated
    assert not fast.extrapolated


def test_a_new_part_with_its_price(tmp_path: Path) -> None:
    price = (
        f'[[prices]]\ninstance = "inf9.xlarge"\nregion = "us-east-1"\non_demand_usd = 2\nspot_discount = 0.5\n{ORIGIN}'
    )
    part = read(tmp_path, NEW_CHIP + NEW_INSTANCE + price).instance("inf9.xlarge")
    assert (part.num_cores, part.core_memory_bytes, part.allowed_tp) == (4, 32 * 2**30, (1, 2, 4))
    assert part.price("on_demand").usd == 2
    assert (part.price("on_demand").source, part.price("on_demand").date) == ("our measurements", "2026-09-01")
    assert part.price("spot").usd == 1
    with pytest.raises(DeviceError, match=r"no reserved price of inf9\.xlarge in us-east-1"):
        part.price("reserved")


@pytest.mark.parametrize(
    ("region", "basis", "usd"),
    [
        ("eu-central-1", "on_demand", 0.95),
        ("eu-central-1", "reserved", None),  # that of another region is no price of this one
        ("us-east-1", "on_demand", 0.7582),
        ("us-east-1", "reserved", 0.3),  # the file's beats the sheet's
        ("us-east-1", "reserved_1y", 0.47767),
        ("us-east-1", "capacity_block", None),  # not sold so
        ("us-east-1", "spot", 0.5),  # the file's, over the sheet's
        ("eu-central-1", "reserved_1y", 0.7165),
    ],
)
def test_prices_are_those_of_the_region(tmp_path: Path, region: str, basis: PriceBasis, usd: float | None) -> None:
    text = (
        f'[[prices]]\ninstance = "inf2.xlarge"\nregion = "eu-central-1"\non_demand_usd = 0.95\n{ORIGIN}'
        f'[[prices]]\ninstance = "inf2.xlarge"\nregion = "us-east-1"\nreserved_usd = 0.3\nspot_usd = 0.5\n'
        f"{ORIGIN}"
    )
    part = read(tmp_path, text, region).instance("inf2.xlarge")
    assert part.usd(basis) == usd
    if usd is None:
        with pytest.raises(DeviceError, match=f"no {basis} price of inf2.xlarge in {region} is known: .*--catalog"):
            part.price(basis)


def test_a_region_without_any_price_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"region 'eu-west-9': known are af-south-1, .*us-west-2; a --catalog file"):
        load_catalog(CatalogConfig(region="eu-west-9"))
    text = f'[[prices]]\ninstance = "inf2.xlarge"\nregion = "eu-south-9"\non_demand_usd = 0.95\n{ORIGIN}'
    with pytest.raises(DeviceError, match=r"eu-south-1, eu-south-9, eu-west-1"):
        read(tmp_path, text, "eu-west-9")
    assert read(tmp_path, text).in_region("eu-south-9").instance("inf2.xlarge").on_demand_usd == 0.95


def test_a_missing_price_names_the_regions_that_have_it() -> None:
    with pytest.raises(DeviceError, match=r"trn2\.48xlarge in us-east-1 is known: .*; it is for --region us-east-2$"):
        instance("trn2.48xlarge").price("on_demand")
    with pytest.raises(DeviceError, match=r"for --region ap-south-2 or us-east-2$"):
        instance("trn2.48xlarge").price("capacity_block")


def test_instances_of_another_region_than_the_one_in_force() -> None:
    cheap, dear = ({part.name: part for part in instances(region)} for region in ("us-west-2", "eu-central-1"))
    assert cheap.keys() == dear.keys() == {part.name for part in INSTANCES}
    assert (cheap["inf2.xlarge"].on_demand_usd, dear["inf2.xlarge"].on_demand_usd) == (0.7582, 1.1373)
    assert dear["inf2.xlarge"].prices.region == "eu-central-1"
    assert dear["trn1.2xlarge"].on_demand_usd is None  # not sold there
    assert {"us-west-2", "eu-central-1"} < set(regions())
    assert instances() == INSTANCES


def test_a_spot_discount_is_taken_off_the_on_demand_price() -> None:
    catalog = load_catalog(CatalogConfig(spot_discount=0.6))
    spot = catalog.instance("inf2.xlarge").price("spot")
    assert spot.usd == pytest.approx(0.4 * 0.7582)
    assert spot.source.startswith("60% off on-demand")  # a user's word beats the sheet's
    with pytest.raises(DeviceError, match=r"no spot price of trn2\.48xlarge"):
        catalog.instance("trn2.48xlarge").price("spot")


PRICE = '[[prices]]\ninstance = "inf2.xlarge"\nregion = "eu-central-1"\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[chip.Inferentia2]\n", "chip: there is no such table; known are chips, instances, prices"),
        (f"[chips.Inferentia2]\nbandwith_gb_s = 1\n{ORIGIN}", "chips.Inferentia2.bandwith_gb_s: there is no such key"),
        (f"[chips.Inferentia2]\nbandwith_gb_s = 1\n{ORIGIN}", "did you mean bandwidth_gb_s?"),
        (
            f"[chips.Inferentia2]\nbandwidth_gb_s = -820\n{ORIGIN}",
            "chips.Inferentia2.bandwidth_gb_s is -820: expected `float` > 0.0",
        ),
        (f"[chips.Inferentia2]\nbandwidth_gb_s = inf\n{ORIGIN}", "is inf: expected `float` <= 1.79"),
        (f"[chips.Inferentia2]\nbandwidth_gb_s = true\n{ORIGIN}", "is True: expected `float`, got `bool`"),
        (f"[chips.Inferentia2]\nmemory_gib = 1.5\n{ORIGIN}", "memory_gib is 1.5: expected `int`, got `float`"),
        (
            f"[chips.Inferentia2]\n{ORIGIN}tflops = {{bfloat16 = 0}}\n",
            "tflops.bfloat16 is 0: expected `float` > 0.0",
        ),
        (
            f'[chips.Inferentia2]\ntopology = "star"\n{ORIGIN}',
            "topology is 'star': expected 'ring' or 'torus' or 'switch'",
        ),
        ("[chips.Inferentia2]\nmemory_gib = 3\ndate = 2026-09-01\n", "chips.Inferentia2.source is missing"),
        ('[chips.Inferentia2]\nmemory_gib = 3\nsource = "x"\n', "chips.Inferentia2.date is missing"),
        (
            '[chips.Inferentia2]\nsource = "x"\ndate = "last week"\n',
            "date is 'last week': invalid RFC3339 encoded date",
        ),
        (f"[chips.Mine]\nmemory_gib = 3\n{ORIGIN}", "chips.Mine: core_name, cores_per_chip, bandwidth_gb_s, tflops"),
        (NEW_CHIP.replace("{bfloat16 = 400}", "{float32 = 4}"), "chips.Inferentia9.tflops.bfloat16 is missing"),
        (f"[chips.Trainium2]\nlnc = 4\n{ORIGIN}", "lnc_choices is [1, 2]: it must have lnc, 4, and divisors of the 16"),
        (f"[chips.Inferentia2]\nlnc_choices = [1, 3]\n{ORIGIN}", "must have lnc, 1, and divisors of the 2 physical"),
        (NEW_INSTANCE, "chip is 'Inferentia9': known are Inferentia1"),
        (f"[chips.Inferentia2]\ntp_degrees = []\n{ORIGIN}", "tp_degrees is []: expected `array` of length >= 1"),
        (f'[instances."inf2.xlarge"]\nnum_chips = 0\n{ORIGIN}', 'instances."inf2.xlarge".num_chips is 0'),
        (f'[instances."inf2.xlarge"]\nlink = "fast"\n{ORIGIN}', "link is 'fast': expected `object`, got `str`"),
        (f'[instances."inf2.xlarge"]\nultraserver = 4\n{ORIGIN}', "ultraserver is 4: expected `object`, got `int`"),
        (f"{PRICE}on_demand_usd = -1\n{ORIGIN}", "prices[0].on_demand_usd is -1"),
        (f"{PRICE}spot_discount = 1\n{ORIGIN}", "prices[0].spot_discount is 1: expected `float` < 1.0"),
        (
            f"{PRICE}{ORIGIN}",
            "prices[0]: gives none of on_demand_usd, reserved_1y_usd, reserved_usd, capacity_block_usd, spot_usd, sp",
        ),
        (f'[[prices]]\nregion = "x"\non_demand_usd = 1\n{ORIGIN}', "prices[0].instance is missing"),
        (f"{PRICE.replace('xlarge', 'huge')}on_demand_usd = 1\n{ORIGIN}", "instance is 'inf2.huge': there is no such"),
        ("prices = 3\n", "prices: must be tables, each headed [[prices]]"),
        ("chips = 3\n", "chips: must hold tables"),
        ("chips = \n", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_the_name_of_the_key(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        read(tmp_path, text)
    assert str(refusal.value).startswith(f"--catalog: {tmp_path / 'catalog.toml'}: ")
    assert complaint in str(refusal.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml: cannot be read: No such file"):
        load_catalog(CatalogConfig(str(tmp_path / "nowhere.toml")))


def test_a_sheet_is_put_in_force_or_nothing_changes(tmp_path: Path) -> None:
    file = tmp_path / "catalog.toml"
    file.write_text("\N{BOM}" + NEW_CHIP + NEW_INSTANCE)  # as editors of Windows write it
    try:
        use_catalog(CatalogConfig(str(file)))
        assert isinstance(instance("inf9.xlarge"), Instance)
        with pytest.raises(DeviceError):
            use_catalog(CatalogConfig(region="nowhere"))
        assert len(instances()) == len(INSTANCES) + 1
    finally:
        use_catalog(CatalogConfig())
    assert instances() == INSTANCES
