"""Values of this project's chart (emulated, and on nodes that have the accelerator), and a Karpenter NodePool.

Labels, resources and capacity types: Karpenter's instance type reference, scheduling and NodePool pages at 1d927085d
(2026-08-21).
"""

from __future__ import annotations

from typing import Any

from ...server.device.prices import PriceBasis
from ...server.host.memory import GIB
from .deployment import Deployment, LeftOut
from .neuronserve import batched_tokens, quantization

_SERVER_GIB = 2  # the chart's request for a small model

Values = dict[str, Any]


def emulated(d: Deployment) -> Values:
    """Return values with a pod for each server of the row, on CPUs."""
    return _values(d, d.num_servers, 1) | {"accelerator": {"type": "emulated"}}


def on_nodes(d: Deployment) -> Values | LeftOut:
    """Return values with a pod for each instance, which requests its Neuron devices; cores stay emulated."""
    if d.part.num_hosts > 1:
        return LeftOut(
            f"{d.part.name} is {d.part.num_hosts} hosts, and no instance type that nodes have as their label"
        )
    memory = _memory_gib(d, d.dp)
    if memory > d.part.host_memory_gib:
        host = f"the host of {d.part.name} has {d.part.host_memory_gib}"
        return LeftOut(f"emulated cores of one instance take {memory} GiB of memory, and {host}")
    return _values(d, d.instances, d.dp) | {
        "accelerator": {"type": "neuron", **_resource(d)},
        "nodeSelector": {"node.kubernetes.io/instance-type": d.part.name},
    }


def _values(d: Deployment, pods: int, servers: int) -> Values:
    memory = f"{_memory_gib(d, servers)}Gi"
    return {
        "replicaCount": pods,
        "model": {"name": d.model, "quantization": quantization(d), "maxModelLen": d.max_model_len},
        "device": d.part.name,
        "tensorParallelSize": d.tp,
        "dataParallelSize": servers,
        "engine": {
            "stack": d.stack.name,
            "pace": "device",
            "contextEncodingBuckets": list(d.prompt_buckets),
            "maxNumSeqs": d.slots,
            "maxNumBatchedTokens": batched_tokens(d),
            "enablePrefixCaching": False,
            "deviceMemoryUtilization": d.device_memory_utilization,
        },
        "price": _price(d),
        "resources": {"requests": {"memory": memory}, "limits": {"memory": memory}},
    }


def _price(d: Deployment) -> Values:
    if d.price is None:
        return {}
    return {"basis": d.price_basis} if d.is_listed_price else {"hourlyUsd": d.price.usd}


def _memory_gib(d: Deployment, servers: int) -> int:
    """Return the host memory of a pod: its emulated cores when full, and the server."""
    return -(-d.core_bytes * d.tp * servers // GIB) + _SERVER_GIB


def _resource(d: Deployment) -> Values:
    """Return the resource: cores, or whole devices if software groups cores, as nodes then count cores by a setting."""
    if d.part.chip.lnc == 1:
        return {"resourceName": "aws.amazon.com/neuroncore", "count": d.tp * d.dp}
    return {"resourceName": "aws.amazon.com/neuron", "count": d.devices}


_CAPACITY: dict[PriceBasis, str] = {"spot": "spot", "capacity_block": "reserved"}


def node_pool(d: Deployment) -> dict[str, Any] | LeftOut:
    """Return the NodePool with the row's devices. Nodes are removed only when empty, so that no stream is cut."""
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
