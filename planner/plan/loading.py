"""What loading a checkpoint takes of an instance's own memory, and what is said of parts that have too little.

NxD Inference reads a whole checkpoint into the memory of the host before it divides the weights over the cores, unless
they were divided beforehand (`save_sharded_checkpoint`), when each core's share is read by itself: contrib/models/
Trinity/README.md of github.com/aws-neuron/neuronx-distributed-inference at 4bcdc54b (2026-07-28).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.report import Candidate
from neuronserve.planner.plan.weight_types import WeightDtype
from neuronserve.server.cost.shape import STORED_BYTES
from neuronserve.server.device.instances import Instance
from neuronserve.server.host.memory import GIB
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import num_params

# Of the host, for each byte of a checkpoint: the only published figure is of a 12 GB model whose loading was killed at
# 15.3 GB, so that it takes more. One copy is the least, and all that a part is refused for.
KILLED_SHARE = 15.3 / 12


def checkpoint_bytes(model: ModelSpec, dtype: WeightDtype) -> int:
    """Bytes of one copy of the weights in the files of a checkpoint of this type."""
    return int(num_params(model) * STORED_BYTES[dtype])


def why_not_loaded(model: ModelSpec, dtype: WeightDtype, part: Instance, count: int, options: PlanOptions) -> str:
    """Why the hosts of `count` instances cannot load a model, each reading its own layers; empty when they can."""
    needed = checkpoint_bytes(model, dtype) / count
    if options.save_sharded_checkpoint or needed <= part.memory_per_host_bytes:
        return ""
    return (
        f"loading reads {needed / GIB:.1f} GiB of weights into the {part.memory_per_host_bytes / GIB:.0f} GiB of the "
        "host, unless they were sharded elsewhere (--save-sharded-checkpoint)"
    )


def loading_notes(
    model: ModelSpec, options: PlanOptions, parts: Iterable[Instance], rows: Iterable[Candidate]
) -> Iterator[str]:
    """Warnings of hosts that hold a copy of the weights, but not as much more as was seen."""
    if options.save_sharded_checkpoint:
        return
    host_bytes = {part.name: part.memory_per_host_bytes for part in parts}
    tight: dict[str, set[str]] = {}
    for row in rows:
        needed = checkpoint_bytes(model, row.dtype) / row.instances_per_replica
        if needed * KILLED_SHARE > host_bytes[row.device]:
            tight.setdefault(row.device, set()).add(f"{row.dtype} ({needed / 1e9:.1f} GB)")
    for device, types in tight.items():
        yield (
            f"{device}: its host may be too small to load weights in {' or '.join(sorted(types))}: loading 12 GB was "
            "killed at 15.3 GB on a host of 16 GiB; sharded elsewhere (save_sharded_checkpoint), they loaded"
        )
