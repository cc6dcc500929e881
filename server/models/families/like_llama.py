"""Families that differ from Llama in a few options, one class each: their keys, defaults and what they change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta, field

from ..config_values import Epsilon, Layers, Positions, Values, Width, refuse
from ..layer import AttentionSpec, LayerSpec, NetworkSpec, NormPlacement, RopeSpec
from ..names import Names
from ..rope import read_rope
from ..spec import EmbeddingSpec, HeadSpec, NormSpec
from .decoder import DecoderConfig
from .family import LayerType

INTERNLM2 = replace(
    Names.of(
        {
            "model.embed_tokens": "model.tok_embeddings",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
            **dict.fromkeys((f"self_attn.{name}_proj" for name in "qkv"), "attention.wqkv"),
            "self_attn.o_proj": "attention.wo",
            "mlp": "feed_forward",
            "gate_proj": "w1",
            "up_proj": "w3",
            "down_proj": "w2",
            "lm_head": "output",
        },
        "model.",
    ),
    take_turns=True,
)
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
OLMO_EPSILON = 1e-5  # OlmoLayerNorm of transformers reads no key


class SeedOssConfig(DecoderConfig, kw_only=True):
    """SeedOssConfig: biases of q, k and v, and another key for the one behind attention."""

    attention_out_bias: bool = False

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_o_bias=self.attention_out_bias)


class InternLM2Config(DecoderConfig, kw_only=True):
    """Keys that come with InternLM 2 and 2.5: q, k and v of each KV head in turn in one matrix."""

    attention_bias: bool = field(default=True, name="bias")

    comes_with_code = True
    own_names = INTERNLM2


class InternLM3Config(DecoderConfig, kw_only=True):
    """InternLM3Config: one key for biases of q, k and v, one for all others."""

    attention_bias: bool = field(default=False, name="qkv_bias")
    mlp_bias: bool = field(default=False, name="bias")

    comes_with_code = True

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_o_bias=self.mlp_bias)


class MiniCPMConfig(DecoderConfig, kw_only=True):
    """Keys that come with MiniCPM 1, 2 and 4: multipliers of embeddings, branches and logits."""

    scale_emb: Annotated[float, Meta(gt=0.0, le=1e6)] = 1.0
    scale_depth: Annotated[float, Meta(gt=0.0, le=1e6)] = 1.0
    dim_model_base: Width = 1
    num_experts: Annotated[int, Meta(ge=0)] = 0
    sparse_config: dict[str, object] | None = None

    comes_with_code = True

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        if self.num_experts:
            raise refuse("num_experts", self.num_experts, "experts of this family are not supported")
        if self.sparse_config is not None:
            raise refuse("sparse_config", self.sparse_config, "attention to chosen blocks is not supported")
        scale = self.scale_depth * self.num_hidden_layers**-0.5
        return tuple(replace(layer, residual_scale=scale) for layer in super().layers(values))

    def embedding(self) -> EmbeddingSpec:
        return EmbeddingSpec(self.vocab_size, self.hidden_size, self.scale_emb)

    def head(self) -> HeadSpec:
        return HeadSpec(self.tie_word_embeddings, scale=self.dim_model_base / self.hidden_size)


class CwmConfig(DecoderConfig, kw_only=True):
    """CwmConfig: each fourth layer, from the first on, attends to everything."""

    sliding_window: Positions | None = 8192
    layer_types: list[LayerType] | None = None

    refused_biases = ("attention_bias", "mlp_bias")

    def windows(self) -> Sequence[int]:
        layers = range(self.num_hidden_layers)
        types = self.layer_types or ["sliding_attention" if i % 4 else "full_attention" for i in layers]
        return self.sliding_windows(self.sliding_window, types)


class ArceeConfig(DecoderConfig, kw_only=True):
    """ArceeConfig: a network without a gate, whose activation is a square."""

    hidden_act: Literal["relu2"] = "relu2"  # type: ignore[assignment]

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, "relu2", is_gated=False, has_bias=self.mlp_bias)


class Jais2Config(ArceeConfig, kw_only=True):
    """Jais2Config: layer norms and all biases."""

    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_eps")

    norm_kind = "layer"


class NemotronConfig(ArceeConfig, kw_only=True):
    """NemotronConfig: layer norms of (1 + w), half of each head rotated."""

    rms_norm_eps: Epsilon = field(default=1e-5, name="norm_eps")

    norm_kind = "layer"
    norm_offset = 1.0
    rotated_share = 0.5


class StableLmConfig(DecoderConfig, kw_only=True):
    """StableLmConfig: layer norms, a quarter of each head rotated, branches one by one or side by side."""

    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_eps")
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    use_parallel_residual: bool = False

    norm_kind = "layer"
    refused_biases = ("mlp_bias",)
    lacks_o_bias = True
    rotated_share = 0.25

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        if self.qk_layernorm:
            raise refuse("qk_layernorm", True, "norms of heads in a tensor for each are not supported")
        return replace(super().attention(rope, window), has_qkv_bias=self.use_qkv_bias)

    def placement(self) -> NormPlacement:
        return "parallel" if self.use_parallel_residual else "before"


class HeliumConfig(DecoderConfig, kw_only=True):
    """HeliumConfig: neighbours are rotated as a pair; no bias behind attention."""

    lacks_o_bias = True
    is_interleaved = True


class Ernie45Config(HeliumConfig, kw_only=True):
    """Ernie4_5Config: one key for all biases."""

    use_bias: bool = False

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_qkv_bias=self.use_bias, has_o_bias=self.use_bias)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, has_bias=self.use_bias)


class OlmoConfig(DecoderConfig, kw_only=True):
    """OlmoConfig: layer norms without weights."""

    clip_qkv: float | None = None

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        if self.clip_qkv is not None:
            raise refuse("clip_qkv", self.clip_qkv, "not supported")
        return super().attention(rope, window)

    def norm(self) -> NormSpec:
        return NormSpec("layer_no_weight", OLMO_EPSILON)


class ApertusConfig(DecoderConfig, kw_only=True):
    """ApertusConfig: normed heads, and networks without a gate whose activation, xIELU, has learned numbers."""

    hidden_act: Literal["xielu"] = "xielu"  # type: ignore[assignment]

    qk_norm = "head"
    own_names = Names.of(
        {"input_layernorm": "attention_layernorm", "post_attention_layernorm": "feedforward_layernorm"}, "model."
    )

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, "xielu", is_gated=False)


class GlmConfig(DecoderConfig, kw_only=True):
    """GlmConfig: gate and up in one matrix, half of each head rotated by neighbours, no bias behind attention."""

    own_names = GLM
    refused_biases = ("mlp_bias",)
    lacks_o_bias = True
    rotated_share = 0.5
    is_interleaved = True


class Glm4Config(GlmConfig, kw_only=True):
    """Glm4Config, of GLM-4-0414: norms before and after."""

    norm_placement = "before_and_after"
    own_names = GLM4


class SmolLM3Config(DecoderConfig, kw_only=True):
    """SmolLM3Config: every fourth layer is not rotated, and may slide where the others do not."""

    no_rope_layers: list[Annotated[int, Meta(ge=0, le=1)]] | None = None  # 1: the layer is rotated
    no_rope_layer_interval: Layers = 4
    use_sliding_window: bool = False
    sliding_window: Positions | None = None
    layer_types: list[LayerType] | None = None

    def windows(self) -> Sequence[int]:
        if not self.use_sliding_window or self.sliding_window is None:
            return self.on_all(0)
        types = self.layer_types or ["full_attention" if turns else "sliding_attention" for turns in self._rotated()]
        return self.sliding_windows(self.sliding_window, types)

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        rope = read_rope(values, self.max_position_embeddings)
        return [rope if turns else None for turns in self._rotated()]

    def _rotated(self) -> Sequence[int]:
        return self.rotated_layers(self.no_rope_layers, self.no_rope_layer_interval)
