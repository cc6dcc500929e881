"""Seconds of bytes between groups of NeuronCores: of one instance over NeuronLink, or of two instances over EFA.

No published measurement has such transfers of a served model, so every result is marked as extrapolated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..device.chips import GB
from ..device.groups import InstanceGroup
from ..host.memory import GIB
from .model import CostModel, StepCost
from .shape import state_bytes

# SDK nccom-test.rst: all-reduces of 32 MB over two ranks reach 40.7 GB/s, a fifth of an Inf2 chip's links.
LINK_SHARE = 0.2
HOP_S = 1.5e-6  # SDK intranode-collective-comm.rst: 1 to 2 us
HAND_OVER_REASON = "copies of KV blocks between groups of cores were never measured"


class Hop(NamedTuple):
    """Way between two groups of cores."""

    byte_s: float  # seconds a byte
    latency_s: float


def near_hop(model: CostModel) -> Hop:
    """Return the way between neighbouring groups: over NeuronLink, or within one chip's memory."""
    instance = model.instance
    if instance.link is None:
        return Hop(model.calibration.coefficients["weights"] / (instance.chip.bandwidth_gb_s * GB), 0.0)
    return Hop(1 / (instance.link.gib_s_per_chip * GIB * LINK_SHARE), HOP_S)


def far_hop(model: CostModel, group: InstanceGroup) -> Hop:
    """Return the way between instances. A group of cores has its share of LINK_SHARE of the instance's link."""
    share = model.step_work.core.tp / group.instance.num_cores
    latency_s = HOP_S if group.link.latency_s is None else group.link.latency_s
    return Hop(1 / (group.link.gb_s * GB * share * LINK_SHARE), latency_s)


NO_HOP = Hop(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class HandOver:
    """Price of KV blocks and states that one group of cores copies from another. Sizes are of all cores of a group."""

    block_bytes: int = 0
    state_bytes: int = 0
    hop: Hop = NO_HOP
    lanes: int = 1  # chips of a group, which copy at the same time

    @classmethod
    def of(cls, model: CostModel, block_bytes: int, between: InstanceGroup | None = None) -> HandOver:
        """Return the price within an instance, or `between` two. `block_bytes`: of a block on one core."""
        tp = model.step_work.core.tp
        sizes = block_bytes * tp, state_bytes(model.step_work.model, tp) * tp
        if between is not None:
            return cls(*sizes, far_hop(model, between))
        return cls(*sizes, near_hop(model), max(1, tp // model.instance.chip.cores_per_chip))

    def cost(self, num_blocks: int, num_states: int) -> StepCost:
        """Return the cost of a copy that waits for no other one."""
        num_bytes = num_blocks * self.block_bytes + num_states * self.state_bytes
        seconds = self.hop.latency_s + num_bytes * self.hop.byte_s / self.lanes
        return StepCost(0.0, 0.0, num_bytes, 0.0, 0.0, 0.0, seconds, seconds, HAND_OVER_REASON)
