"""What the cost model needs to know of a model and of how it lies over the cores. Dimensions only, never a second.

Letters: h = hidden_size, d = head_dim; "per core" is the fullest core of a tensor-parallel group, padding included.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class CostShape:
    """The dimensions of a transformer that decide the time of a step."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    ffn_matrices: int = 3  # 3 = gated (gate, up, down), 2 = plain (OPT, GPT, BERT)
    num_experts: int = 0  # 0 = dense
    experts_per_token: int = 0

    @classmethod
    def of(cls, model: ModelSpec) -> CostShape:
        """The shape of a model that this server can run."""
        return cls(
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            intermediate_size=model.intermediate_size,
            vocab_size=model.vocab_size,
        )

    @property
    def num_params(self) -> int:
        """Matrix weights of the model with an output layer apart from the embedding."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        ffn = self.ffn_matrices * self.hidden_size * self.intermediate_size * max(1, self.num_experts)
        return self.num_layers * (attention + ffn) + 2 * self.vocab_size * self.hidden_size

    def experts_read(self, tokens: int) -> float:
        """Expected number of distinct experts that `tokens` tokens are routed to in one layer; 1 when dense.

        Uniform, independent routing: E * (1 - (1 - k/E) ** tokens).
        """
        if not self.num_experts:
            return 1.0
        missed = 1 - self.experts_per_token / self.num_experts
        return self.num_experts * (1 - missed**tokens)


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
    def of(cls, shape: CostShape, tp: int) -> CoreShape:
        """Split as ShardSpec does. Raises DeviceError when `tp` is below 1."""
        shard = ShardSpec.of(_as_model(shape), tp)
        heads, kv = shard.heads_per_core, shard.kv_heads_per_core
        # With fewer KV heads than cores the Neuron libraries give each query head its own KV stream: the published
        # context slopes of Llama-3-8B and Llama-2/3-70B at TP24 and TP32 follow query heads, not KV heads.
        streams = heads if tp > shape.num_kv_heads else kv
        return cls(
            tp=tp,
            attention_weights=2 * shape.hidden_size * shape.head_dim * (heads + kv),
            ffn_weights=shape.ffn_matrices * shape.hidden_size * shard.intermediate_per_core,
            head_weights=shape.hidden_size * shard.vocab_per_core,
            query_heads=heads,
            kv_heads=kv,
            kv_streams=streams,
        )


def _as_model(shape: CostShape) -> ModelSpec:
    """The fields of `shape` that ShardSpec reads."""
    return ModelSpec(
        architecture="",
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        max_position=0,
    )
