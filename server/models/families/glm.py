"""GLM-4: gate and up in one matrix, half of each head rotated by neighbours. GLM-4-0414: norms before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..config_values import Values
from ..layer import AttentionSpec, RopeSpec
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

    own_names = GLM

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        self.require_no_bias("mlp_bias")
        return replace(super().attention(rope, window), has_o_bias=False)

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        return self.on_all(replace(self.partial_rope(values, 0.5), is_interleaved=True))


class Glm4Config(GlmConfig, kw_only=True):
    """Keys and defaults of Glm4Config."""

    norm_placement = "before_and_after"
    own_names = GLM4
