"""Phi 3, 3.5, 4 and 4-mini: fused projections, LongRoPE, rotation of a part of each head, a sliding window or none."""

from __future__ import annotations

from collections.abc import Sequence

from ..config_values import Epsilon, Positions, Values, Vocab, Width
from ..layer import AttentionSpec, RopeSpec
from ..names import Names
from ..rope import DEFAULT_THETA, rope_object, rope_of
from .decoder import DecoderConfig

PHI3 = Names.of(
    {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
        **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
    },
    prefix="model.",
)
LONGROPE = ("su", "yarn", "longrope")  # the names that files of this family have given it


class Phi3Config(DecoderConfig, kw_only=True):
    """Keys and defaults of Phi3Config; there are no biases."""

    vocab_size: Vocab = 32_064
    hidden_size: Width = 3072
    intermediate_size: Width = 8192
    max_position_embeddings: Positions = 4096
    original_max_position_embeddings: Positions = 4096
    rms_norm_eps: Epsilon = 1e-5
    sliding_window: Positions | None = None

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        self.require_no_bias("attention_bias", "mlp_bias")
        return super().attention(rope, window)

    def windows(self) -> Sequence[int]:
        return self.on_all(self.sliding_window or 0)

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        path, rope = rope_object(values)
        if rope.get("rope_type", rope.get("type")) in LONGROPE:
            rope = {**rope, "rope_type": "longrope"}
        values = {**values, "original_max_position_embeddings": self.original_max_position_embeddings}
        length = self.max_position_embeddings
        return self.on_all(rope_of(values, rope, path, length, DEFAULT_THETA, may_be_partial=True))

    def names(self) -> Names:
        return PHI3
