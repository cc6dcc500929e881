"""Several instances together: what links them, what they have, and what cannot be a group."""

from __future__ import annotations

import pytest

from neuronserve.server.device.catalog import INSTANCES, Instance, instance, instances
from neuronserve.server.device.groups import GROUP_REASON, GroupLink, instance_group
from neuronserve.server.errors import DeviceError
from neuronserve.server.host.memory import GIB


@pytest.mark.parametrize(
    ("name", "count", "link"),
    [
        ("trn2u.48xlarge", 2, GroupLink("NeuronLink", 4096, None)),  # SDK trn2-arch.rst: 16 chips x 256 GB/s
        ("trn2u.48xlarge", 4, GroupLink("NeuronLink", 4096, None)),
        ("trn2u.48xlarge", 3, GroupLink("EFA", 400, 15e-6)),  # no such group: SDK ultraserver.rst has 1, 2 and 4
        ("trn2u.48xlarge", 8, GroupLink("EFA", 400, 15e-6)),  # two UltraServers
        ("trn2.48xlarge", 2, GroupLink("EFA", 400, 15e-6)),  # SDK collectives.rst: 3.2 Tbps, 15 us
        ("trn2.3xlarge", 2, GroupLink("EFA", 25, None)),
        ("trn1.32xlarge", 4, GroupLink("EFA", 100, None)),
        ("trn3-gen1", 2, GroupLink("EFA", 1600, None)),
    ],
)
def test_the_link_is_the_documented_one(name: str, count: int, link: GroupLink) -> None:
    found = instance_group(instance(name), count).link
    assert (found.kind, found.latency_s) == (link.kind, pytest.approx(link.latency_s) if link.latency_s else None)
    assert found.gb_s == pytest.approx(link.gb_s)


@pytest.mark.parametrize("part", [i for i in INSTANCES if i.efa_gbps], ids=lambda i: i.name)
def test_a_group_has_what_its_instances_have(part: Instance) -> None:
    group = instance_group(part, 2)
    assert group.num_cores == 2 * part.num_cores
    assert group.host_memory_bytes == 2 * part.num_hosts * part.memory_per_host_bytes
    assert group.name == f"2 x {part.name}"
    assert group.extrapolated == GROUP_REASON


def test_an_ultraserver_of_four_is_the_one_of_the_sheet() -> None:
    group, whole = instance_group(instance("trn2u.48xlarge"), 4), instance("u-trn2x64")
    assert (group.num_cores, group.host_memory_bytes) == (whole.num_cores, whole.host_memory_gib * GIB)
    assert instance_group(instance("trn2.48xlarge").with_lnc(1), 2).num_cores == whole.num_cores


def test_all_instances_of_a_group_are_paid() -> None:
    part = next(i for i in instances("us-east-2") if i.name == "trn2.48xlarge")
    assert instance_group(part, 3).usd("capacity_block") == pytest.approx(3 * 35.7608)
    assert instance_group(part, 3).usd("reserved") is None


def test_a_message_takes_the_latency_and_its_bytes() -> None:
    link = instance_group(instance("trn2.48xlarge"), 2).link
    assert link.seconds(400_000) == pytest.approx(15e-6 + 1e-6)
    assert instance_group(instance("trn1.32xlarge"), 2).link.seconds(10**9) == pytest.approx(0.01)


@pytest.mark.parametrize("count", [1, 0, -2])
def test_fewer_than_two_are_no_group(count: int) -> None:
    with pytest.raises(DeviceError, match=rf"a group of {count} instances of trn2\.48xlarge: it must be at least 2"):
        instance_group(instance("trn2.48xlarge"), count)


@pytest.mark.parametrize("name", ["inf1.24xlarge", "inf2.48xlarge", "trn1.2xlarge"])
def test_instances_without_an_adapter_are_no_group(name: str) -> None:
    with pytest.raises(DeviceError, match=f"{name} has no Elastic Fabric Adapter: 2 of them"):
        instance_group(instance(name), 2)
