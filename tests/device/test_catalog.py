"""The data sheets: totals that the makers publish, what each part allows, and refusals that help."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from neuronserve.server.device import chips
from neuronserve.server.device.catalog import INSTANCES, Instance, instance
from neuronserve.server.device.chips import CHIPS, GB, Chip
from neuronserve.server.errors import DeviceError
from neuronserve.server.host.memory import GIB

# Totals of the instance tables in the SDK's *-arch.rst: cores, device memory GiB, bandwidth, bfloat16 TFLOPS.
PUBLISHED_TOTALS = {
    "inf1.xlarge": (4, 8, 50, 64),
    "inf1.2xlarge": (4, 8, 50, 64),
    "inf1.6xlarge": (16, 32, 200, 256),
    "inf1.24xlarge": (64, 128, 800, 1024),
    "inf2.xlarge": (2, 32, 820, 190),
    "inf2.8xlarge": (2, 32, 820, 190),
    "inf2.24xlarge": (12, 192, 4920, 1140),
    "inf2.48xlarge": (24, 384, 9840, 2280),
    "trn1.2xlarge": (2, 32, 820, 190),
    "trn1.32xlarge": (32, 512, 13120, 3040),
    "trn1n.32xlarge": (32, 512, 13120, 3040),
    "trn2.3xlarge": (4, 96, 2900, 667),  # one sixteenth of the trn2.48xlarge
    "trn2.48xlarge": (64, 1536, 46400, 10672),  # 64 logical cores (128 physical); printed as 10.7 PFLOPS
    "trn2u.48xlarge": (64, 1536, 46400, 10672),
    "u-trn2x64": (256, 6144, 185600, 42688),  # printed as 42.8 PFLOPS, four times the rounded 10.7
    "trn3-gen1": (256, 9216, 313600, 42944),
    "trn3-gen2": (576, 20736, 705600, 96624),
}

all_chips = pytest.mark.parametrize("chip", CHIPS, ids=lambda c: c.name)
all_instances = pytest.mark.parametrize("part", INSTANCES, ids=lambda i: i.name)


@all_instances
def test_chips_add_up_to_the_published_totals(part: Instance) -> None:
    cores, memory, bandwidth, tflops = PUBLISHED_TOTALS[part.name]
    assert part.num_cores == cores
    assert part.num_chips * part.chip.memory_gib == memory
    assert part.num_chips * part.chip.bandwidth_gb_s == bandwidth
    assert part.num_chips * (part.chip.tflops["bfloat16"] or 0) == tflops


@all_instances
def test_cores_share_exactly_the_memory_of_their_chip(part: Instance) -> None:
    assert part.core_memory_bytes * part.num_cores == part.num_chips * part.chip.memory_gib * GIB


@pytest.mark.parametrize(
    ("name", "gib"), [("inf1.xlarge", 2), ("inf2.xlarge", 16), ("inf2.48xlarge", 16), ("trn2.48xlarge", 24)]
)
def test_memory_of_one_core_is_what_the_device_guides_say(name: str, gib: int) -> None:
    assert instance(name).core_memory_bytes == gib * GIB


@all_instances
def test_the_look_up_finds_every_row_of_the_sheet(part: Instance) -> None:
    assert instance(part.name) == part


def test_names_are_unique_and_say_their_family() -> None:
    assert len({part.name for part in INSTANCES}) == len(INSTANCES)
    families = {"inf1": "Inferentia1", "inf2": "Inferentia2", "trn1": "Trainium1", "trn2": "Trainium2"}
    families["trn3"] = "Trainium3"
    assert all(part.chip.name == families[part.name.removeprefix("u-")[:4]] for part in INSTANCES)


@all_instances
def test_chips_are_linked_where_there_is_more_than_one(part: Instance) -> None:
    assert (part.link is not None) == (part.num_chips > 1)
    assert part.link is None or part.chip.link is not None


@pytest.mark.parametrize("family", ["inf1", "inf2", "trn1", "trn2"])
def test_a_larger_size_never_has_less(family: str) -> None:
    sizes = [part for part in INSTANCES if part.name.startswith(family + ".")]
    assert len(sizes) > 1
    for field in ("num_chips", "vcpus", "host_memory_gib", "network_gbps", "on_demand_usd"):
        values = [getattr(part, field) or 0 for part in sizes]
        assert values == sorted(values), field


@all_instances
def test_hosts_share_the_memory_that_checkpoints_are_loaded_with(part: Instance) -> None:
    assert part.memory_per_host_bytes * part.num_hosts == part.host_memory_gib * GIB
    assert part.vcpus % part.num_hosts == 0
    assert part.num_chips % part.num_hosts == 0


def test_an_ultraserver_is_its_instances_together() -> None:
    whole, part = instance("u-trn2x64"), instance("trn2u.48xlarge")
    assert part.ultraserver is not None
    assert part.ultraserver.name == whole.name
    count = max(part.ultraserver.sizes)
    for field in ("num_chips", "num_cores", "vcpus", "host_memory_gib", "num_hosts"):
        assert getattr(whole, field) == count * getattr(part, field), field


@all_instances
def test_adapters_are_no_faster_than_the_network(part: Instance) -> None:
    assert part.efa_gbps is None or part.efa_gbps == part.network_gbps
    assert part.efa_latency_us is None or part.efa_gbps is not None
    assert part.efa_gbps is None or part.chip.name.startswith("Trainium")


@all_chips
def test_every_rate_is_positive_or_absent(chip: Chip) -> None:
    assert all(rate is None or rate > 0 for rate in chip.tflops.values())
    assert chip.memory_gib % chip.cores_per_chip == 0
    assert chip.link is not None
    assert chip.link.gib_s_per_chip * GIB < chip.bandwidth_gb_s * GB  # links are slower than the chip's own memory


@all_chips
def test_bfloat16_computes_everywhere(chip: Chip) -> None:
    assert "bfloat16" in chip.dtypes
    assert chip.tflops["bfloat16"] == chip.tflops["float16"]


@all_chips
def test_chips_can_be_keys(chip: Chip) -> None:
    """A cost table is kept by chip; the rates do not take part in the hash, being a mapping."""
    assert {chip: 1}[chip] == 1
    with pytest.raises(FrozenInstanceError):
        chip.memory_gib = 1  # type: ignore[misc]


def test_every_figure_of_a_chip_has_its_source_beside_it() -> None:
    """Each line of a chip's sheet that holds a number, or the comment right above it, names the page it came from."""
    lines = Path(chips.__file__).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("INFERENTIA1 ="))
    sheet = [(above, line) for above, line in zip(lines[start:], lines[start + 1 :], strict=False)]
    figures = [(above, line) for above, line in sheet if re.search(r"[:=(] ?\(?\d", line.split("#")[0])]
    assert len(figures) > 40
    for above, line in figures:
        before = above if above.lstrip().startswith("#") else ""
        assert re.search(r"\b(SDK|ON)\b", before + line.partition("#")[2]), line


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("inf1.xlarge", (1, 2, 4)),
        ("inf1.6xlarge", (1, 2, 4, 8, 12)),
        ("inf1.24xlarge", (1, 2, 4, 8, 12, 24)),
        ("inf2.xlarge", (1, 2)),
        ("inf2.8xlarge", (1, 2)),
        ("inf2.24xlarge", (1, 2, 4, 8, 12)),
        ("inf2.48xlarge", (1, 2, 4, 8, 12, 24)),
        ("trn1.2xlarge", (1, 2)),
        ("trn1.32xlarge", (1, 2, 8, 16, 32)),
        ("trn2.3xlarge", (1, 2, 4)),
        ("trn2.48xlarge", (1, 2, 4, 8, 16, 32, 64)),
        ("trn3-gen2", (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_tensor_parallel_degrees_of_a_part(name: str, degrees: tuple[int, ...]) -> None:
    part = instance(name)
    assert part.allowed_tp == degrees
    for tp in degrees:
        part.check_tp(tp)


@pytest.mark.parametrize("tp", [-1, 0, 3, 16, 24, 10**30])
def test_a_refused_degree_names_the_value_the_cores_and_what_is_allowed(tp: int) -> None:
    with pytest.raises(DeviceError) as refusal:
        instance("inf2.24xlarge").check_tp(tp)
    assert str(refusal.value) == (
        f"tensor_parallel_size is {tp}: inf2.24xlarge has 12 NeuronCores and allows 1, 2, 4, 8, 12"
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("inf2.large", "inf2.xlarge"), ("INF2.XLARGE", "inf2.xlarge"), ("inf2-48xlarge", "inf2.48xlarge")],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_with_all(typed: str, meant: str) -> None:
    with pytest.raises(DeviceError) as refusal:
        instance(typed)
    question, known = str(refusal.value).split(" Known: ")
    assert repr(typed) in question
    assert meant in question.partition("Did you mean")[2]
    assert known.split(", ") == [part.name for part in INSTANCES]


@pytest.mark.parametrize("typed", ["", "p4d.24xlarge", "\x00", "gpu" * 1000])
def test_a_name_like_no_other_gets_no_suggestion(typed: str) -> None:
    with pytest.raises(DeviceError, match="there is no device") as refusal:
        instance(typed)
    assert "Known: inf1.xlarge" in str(refusal.value)
    if "xlarge" not in typed:
        assert "Did you mean" not in str(refusal.value)
