"""Logical NeuronCores: how many there are, what each has, and what counts them."""

from __future__ import annotations

import pytest

from neuronserve.server.config import RuntimeCores
from neuronserve.server.device.catalog import INSTANCES, Instance, instance
from neuronserve.server.device.chips import GB
from neuronserve.server.device.visible_cores import take_cores, visible_cores
from neuronserve.server.errors import DeviceError
from neuronserve.server.host.memory import GIB

all_instances = pytest.mark.parametrize("part", INSTANCES, ids=lambda i: i.name)


@pytest.mark.parametrize(
    ("name", "lnc", "cores", "gib", "gb_s"),
    [
        ("trn2.48xlarge", 2, 64, 24, 725),  # SDK logical-neuroncore-config.rst: 64 cores, 24 GiB each
        ("trn2.48xlarge", 1, 128, 12, 362.5),  # the same page: 128
        ("trn2.3xlarge", 2, 4, 24, 725),
        ("trn2.3xlarge", 1, 8, 12, 362.5),
        ("u-trn2x64", 1, 512, 12, 362.5),
        ("trn3-gen1", 2, 256, 36, 1225),
        ("trn3-gen1", 1, 512, 18, 612.5),
        ("inf2.xlarge", 1, 2, 16, 410),
    ],
)
def test_logical_cores_share_the_chip_evenly(name: str, lnc: int, cores: int, gib: int, gb_s: float) -> None:
    part = instance(name).with_lnc(lnc)
    assert (part.num_cores, part.core_memory_bytes) == (cores, gib * GIB)
    assert part.chip.bandwidth_gb_s / part.chip.cores_per_chip == gb_s


@all_instances
def test_a_configuration_changes_neither_the_silicon_nor_the_price(part: Instance) -> None:
    for lnc in part.chip.lnc_choices:
        other = part.with_lnc(lnc)
        assert (
            other.num_chips * other.chip.physical_cores
            == part.num_chips * part.chip.physical_cores
            == other.num_cores * lnc
        )
        assert other.num_cores * other.core_memory_bytes == part.num_chips * part.chip.memory_gib * GIB
        assert (other.prices, other.chip.tflops, other.chip.bandwidth_gb_s * GB, other.link) == (
            part.prices,
            part.chip.tflops,
            part.chip.bandwidth_gb_s * GB,
            part.link,
        )
        assert other.with_lnc(part.chip.lnc) == part


@all_instances
def test_the_default_is_that_of_the_software(part: Instance) -> None:
    assert part.chip.lnc == (2 if part.chip.name in {"Trainium2", "Trainium3"} else 1)
    assert part.chip.lnc in part.chip.lnc_choices


@pytest.mark.parametrize(
    ("name", "lnc", "choices"), [("trn2.48xlarge", 4, "1 or 2"), ("trn2.3xlarge", 0, "1 or 2"), ("inf2.xlarge", 2, "1")]
)
def test_what_a_chip_does_not_have_is_refused(name: str, lnc: int, choices: str) -> None:
    part = instance(name)
    with pytest.raises(DeviceError) as refusal:
        part.with_lnc(lnc)
    assert str(refusal.value) == (f"logical NeuronCore configuration is {lnc}: on {part.chip.name} it can be {choices}")


def test_the_runtimes_variables_count_logical_cores() -> None:
    whole, finer = instance("trn2.3xlarge"), instance("trn2.3xlarge").with_lnc(1)
    assert visible_cores(RuntimeCores(), whole) == (0, 1, 2, 3)
    assert take_cores(RuntimeCores(visible="4-7"), finer, 4) == (4, 5, 6, 7)
    with pytest.raises(DeviceError, match=r"trn2\.3xlarge has cores 0-3"):
        visible_cores(RuntimeCores(visible="4-7"), whole)
