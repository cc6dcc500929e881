"""Links between devices, compared with neuron-ls on real instances."""

from __future__ import annotations

import pytest

from neuronserve.server.device.catalog import INSTANCES, Instance, instance
from neuronserve.server.device.topology import neighbours


@pytest.mark.parametrize("part", INSTANCES, ids=lambda part: part.name)
def test_links_go_both_ways_and_reach_every_chip(part: Instance) -> None:
    links = {chip: neighbours(part, chip) for chip in range(part.num_chips)}
    assert all(chip in links[other] and chip != other for chip, others in links.items() for other in others)
    reached, new = {0}, [0]
    while new:
        new = [other for chip in new for other in links[chip] if other not in reached]
        reached |= set(new)
    assert len(reached) == (part.num_chips if part.link else 1)


@pytest.mark.parametrize(
    ("name", "chip", "linked"),
    [
        ("inf2.xlarge", 0, ()),
        ("inf2.48xlarge", 0, (11, 1)),  # a ring, as neuron-ls prints it (optimum-neuron benchmark.mdx)
        ("inf2.48xlarge", 7, (6, 8)),
        ("trn2.48xlarge", 0, (12, 3, 4, 1)),  # SDK neuron-ls.rst, in its order
        ("trn2.48xlarge", 4, (0, 7, 8, 5)),
        ("trn2.48xlarge", 15, (11, 14, 3, 12)),
        ("u-trn2x64", 0, (12, 3, 4, 1, 48, 16)),  # and the same place in the next servers of the UltraServer
        ("inf1.6xlarge", 3, (2, 0)),
    ],
)
def test_neighbours_are_those_of_the_real_part(name: str, chip: int, linked: tuple[int, ...]) -> None:
    assert neighbours(instance(name), chip) == linked


def test_behind_a_switch_all_are_neighbours() -> None:
    assert len(neighbours(instance("trn3-gen2"), 5)) == 143
