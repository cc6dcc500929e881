"""What the cost model needs to know of how a model lies over the cores. Dimensions only, never a second.

"Per core" is the fullest core of a tensor-parallel group, padding included.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.models.decoder import decoder_graph
from server.models.graph import layer_ops, linears
from server.models.ops import AxisName, Linear
from server.models.spec import ModelSpec
from server.placement.shard import ShardSpec

# Bytes of one stored weight. Eight-bit types are storage only on these parts (SDK data-types.rst): the values are
# widened to bfloat16 before the matmul.
WEIGHT_BYTES: dict[str, float] = {
    "float32": 4,
    "fp32": 4,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp16": 2,
    "int8": 1,
    "fp8": 1,
}
ACTIVATION_BYTES = 2  # bfloat16: activations on the links, and the KV cache


def matrix_params(model: ModelSpec) -> int:
    """Weights of the model's matrices, with an output layer apart from the embedding; routers are left out."""
    graph = decoder_graph(model)
    routed = sum(linear.num_weights for linear in linears(graph) if not _joins(linear, "experts"))
    return routed + graph.embed.part.outputs.size * graph.embed.hidden.size


def experts_read(model: ModelSpec, tokens: int) -> float:
    """Expected number of distinct experts that `tokens` tokens are routed to in one layer; 1 when dense.

    Uniform, independent routing: E * (1 - (1 - k/E) ** tokens).
    """
    if not model.num_experts:
        return 1.0
    missed = 1 - model.experts_per_token / model.num_experts
    return model.num_experts * (1 - missed**tokens)


@dataclass(frozen=True, slots=True)
class CoreShape:
    """One core's share of a model: numbers of weights, heads and KV streams."""

    tp: int
    attention_weights: int  # of one layer
    ffn_weights: int  # of one layer, of one expert
    head_weights: int  # of the output layer
    query_heads: int
    kv_heads: int  # stored
    kv_streams: int  # KV heads read from memory in a decode step

    @classmethod
    def of(cls, model: ModelSpec, tp: int) -> CoreShape:
        """Split as ShardSpec does. Raises DeviceError when `tp` is below 1."""
        shard, graph = ShardSpec.of(model, tp), decoder_graph(model)
        layer = [op for op in layer_ops(graph.layers[0]) if isinstance(op, Linear)]
        heads, kv = shard.heads_per_core, shard.kv_heads_per_core
        # With fewer KV heads than cores the Neuron libraries give each query head its own KV stream: the published
        # context slopes of Llama-3-8B and Llama-2/3-70B at TP24 and TP32 follow query heads, not KV heads.
        streams = heads if tp > model.num_kv_heads else kv
        ffn = sum(_core_weights(linear, shard) for linear in layer if _joins(linear, "ffn"))
        return cls(
            tp=tp,
            attention_weights=sum(_core_weights(linear, shard) for linear in layer if _joins(linear, "query")),
            ffn_weights=ffn // max(1, model.num_experts),
            head_weights=_core_weights(graph.head, shard),
            query_heads=heads,
            kv_heads=kv,
            kv_streams=streams,
        )


def _joins(linear: Linear, axis: AxisName) -> bool:
    """Whether a linear layer goes from or to an axis."""
    return axis in {linear.inputs.name, *(part.outputs.name for part in linear.parts)}


def _core_weights(linear: Linear, shard: ShardSpec) -> int:
    return sum(shard.size(part.outputs) for part in linear.parts) * shard.size(linear.inputs)
