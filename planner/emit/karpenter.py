"""A Karpenter NodePool (karpenter.sh/v1) of the row's instance type, tainted as the Neuron device plugin expects.

Labels, resources and capacity types: Karpenter's instance type reference, scheduling and NodePool pages at 1d927085d
(2026-08-21).
"""

from __future__ import annotations

from typing import Any

from neuronserve.planner.emit.deployment import Deployment
from neuronserve.planner.emit.left_out import LeftOut
from neuronserve.server.device.prices import PriceBasis

_CAPACITY: dict[PriceBasis, str] = {"spot": "spot", "capacity_block": "reserved"}


def node_pool(d: Deployment) -> dict[str, Any] | LeftOut:
    """The NodePool: as many devices as the row has, removed only when empty, because a stream must not be cut."""
    if d.part.num_hosts > 1:
        return LeftOut(f"{d.part.name} is {d.part.num_hosts} hosts, and no instance type that Karpenter could start")
    capacity = _CAPACITY.get(d.price_basis, "on-demand")
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": d.name},
        "spec": {
            "template": {
                "spec": {
                    "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "neuron"},
                    "requirements": [
                        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [d.part.name]},
                        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity]},
                    ],
                    "taints": [{"key": "aws.amazon.com/neuron", "effect": "NoSchedule"}],
                    "expireAfter": "Never",
                }
            },
            "limits": {"aws.amazon.com/neuron": d.instances * d.part.num_chips},
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "5m"},
        },
    }
