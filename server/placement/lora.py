"""Bytes of LoRA adapters on one core, as NxD Inference keeps them: many stored, and one gathered for each slot.

Source: modules/lora_serving of github.com/aws-neuron/neuronx-distributed-inference at 4bcdc54b (2026-07-28). Stored
adapters are divided over the cores (`lora_shard_linear_layer`, on by default); what a slot works with is gathered
(`weight_active`): of each pair the matrix that faces an undivided side is whole on every core. Adapters have the type
of the weights, taken as bfloat16, and are on every matrix of attention and of networks that all tokens go through;
those of experts and the output layer have none.
"""

from __future__ import annotations

from functools import lru_cache

from neuronserve.server.models.decoder import decoder_graph
from neuronserve.server.models.graph import flat_ops
from neuronserve.server.models.linear import Linear
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.placement.core_share import DTYPE_BYTES, CoreShare

CELL_BYTES = DTYPE_BYTES["bfloat16"]


@lru_cache(maxsize=256)  # a plan asks for it with every batch
def core_lora_weights(model: ModelSpec, tp: int, rank: int) -> int:
    """Weights of one adapter that a core works with. Each part of a fused matrix has a pair of its own."""
    share = CoreShare.of(model, tp)
    return rank * sum(
        group.count * (len(op.parts) * share.size(op.inputs) + sum(share.size(part.outputs) for part in op.parts))
        for group in decoder_graph(model).groups
        for op in flat_ops(group.ops)
        if isinstance(op, Linear)
    )


def lora_bytes(model: ModelSpec, tp: int, rank: int, stored: int, slots: int) -> int:
    """Bytes on one core of `stored` adapters, and of one gathered for each of `slots` slots."""
    whole = core_lora_weights(model, 1, rank)
    return CELL_BYTES * (stored * -(-whole // tp) + slots * core_lora_weights(model, tp, rank))
