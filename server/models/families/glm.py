"""GLM-4: gate and up in one matrix, half of each head rotated by neighbours. GLM-4-0414: norms before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..config_values import Epsilon, HeadDim, Heads, Layers, Positions, Values, Vocab, Width
from ..layer import AttentionSpec, NormPlacement, RopeSpec
from ..names import Names
from .decoder import DecoderConfig

_FUSED = dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj")
GLM = Names.of(_FUSED, "model.")
GLM4 = Names.of(
    {
        **_FUSED,
        "post_attention_layernorm": "post_self_attn_layernorm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "post_mlp_layernorm",
    },
    "model.",
)


class GlmConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of GlmConfig; the output projection has no bias."""

    vocab_size: Vocab = 151_552
    intermediate_size: Width = 13_696
    num_hidden_layers: Layers = 40
    num_key_value_heads: Heads | None = 2
    head_dim: HeadDim | None = 128
    max_position_embeddings: Positions = 131_072
    rms_norm_eps: Epsilon = 1.5625e-07
    attention_bias: bool = True

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        self.require_no_bias("mlp_bias")
        return replace(super().attention(rope, window), has_o_bias=False)

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        return self.on_all(replace(self.partial_rope(values, 0.5), is_interleaved=True))

    def names(self) -> Names:
        return GLM


class Glm4Config(GlmConfig, kw_only=True):
    """Keys and defaults of Glm4Config."""

    def placement(self) -> NormPlacement:
        return "before_and_after"

    def names(self) -> Names:
        return GLM4
