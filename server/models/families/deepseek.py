"""Latent attention: DeepSeek V2 to V3.2, whose class Kimi K2 has too, GLM-4.7-Flash, GLM-5, MiniCPM 3 and Youtu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from ..config_values import MAX_LAYERS, Positions, Values, Width, refuse
from ..layer import (
    PLAIN_CHOICE,
    AttentionSpec,
    ChoiceSpec,
    ExpertsSpec,
    LatentAttentionSpec,
    LayerSpec,
    RopeSpec,
)
from ..names import Names
from ..rope import rope_object
from ..spec import EmbeddingSpec, HeadSpec, ModelSpec
from .decoder import DecoderConfig
from .experts import ExpertCount, balanced_experts, checked_groups, names_of

Count = Annotated[int, Meta(ge=0, le=4096)]
Factor = Annotated[float, Meta(ge=0.0, le=1e6)]
Multiplier = Annotated[float, Meta(gt=0.0, le=1e6)]

# Tensors of the indexer, which chooses tokens in longer contexts than are served.
_INDEXER = tuple(
    f".self_attn.indexer.{name}"
    for name in ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
)


class LatentConfig(DecoderConfig, kw_only=True):
    """Keys of latent attention, which all of its families have."""

    kv_lora_rank: Width = 512
    q_lora_rank: Width | None = 1536
    qk_nope_head_dim: Width = 128
    qk_rope_head_dim: Width = 64
    v_head_dim: Width | None = 128
    rope_interleave: bool = True  # neighbours are rotated as a pair

    comes_with_code: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.require_no_bias("mlp_bias")  # `attention` is another one

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return LatentAttentionSpec(
            num_heads=self.num_attention_heads,
            num_kv_heads=1,
            head_dim=self.kv_lora_rank + self.qk_rope_head_dim,
            rope=rope,
            window=window,
            has_qkv_bias=self.attention_bias,
            has_o_bias=self.attention_bias,
            scale=(self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5,
            rank=self.kv_lora_rank,
            rotary=self.qk_rope_head_dim,
            size=self.qk_nope_head_dim,
            value_size=self.v_head_dim or self.head_size(),
            query_rank=self.q_lora_rank or 0,
        )

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        """Return the layers; scores of scaled rotations are multiplied as `mscale_all_dim` says."""
        layers, by = super().layers(values), rope_object(values)[1].get("mscale_all_dim") or 0.0
        return tuple(replace(layer, mixer=_scaled(layer.attention, by)) for layer in layers)

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        return [rope and replace(rope, is_interleaved=self.rope_interleave) for rope in super().ropes(values)]


def _scaled(mixer: AttentionSpec, by: float) -> AttentionSpec:
    """Return a mixer whose scores have the square of YaRN's factor for `by` (arXiv 2309.00071, section 3.4)."""
    rope = mixer.rope
    if not by or rope is None or rope.kind == "default" or rope.factor <= 1.0 or mixer.scale is None:
        return mixer
    return replace(mixer, scale=mixer.scale * (0.1 * by * math.log(rope.factor) + 1.0) ** 2)


class YoutuConfig(LatentConfig, kw_only=True):
    """Keys and defaults of YoutuConfig: a network of its own on every layer."""


class MiniCPM3Config(LatentConfig, kw_only=True):
    """Keys and defaults of MiniCPM3Config: multipliers of embeddings, branches and logits."""

    scale_emb: Multiplier = 12.0
    scale_depth: Multiplier | None = 1.4
    dim_model_base: Width | None = 256

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        scale = 1.0 if self.scale_depth is None else self.scale_depth / math.sqrt(self.num_hidden_layers)
        return tuple(replace(layer, residual_scale=scale) for layer in super().layers(values))

    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def embedding(self) -> EmbeddingSpec:
        return EmbeddingSpec(self.vocab_size, self.hidden_size, self.scale_emb)

    def head(self) -> HeadSpec:
        return HeadSpec(self.tie_word_embeddings, scale=(self.dim_model_base or self.hidden_size) / self.hidden_size)


class LatentExpertsConfig(LatentConfig, kw_only=True):
    """Keys of families whose first layers have one network, and the others experts."""

    n_routed_experts: ExpertCount = 256
    n_shared_experts: Count | None = 1
    num_experts_per_tok: ExpertCount = 8
    moe_intermediate_size: Width = 2048
    first_k_dense_replace: Annotated[int, Meta(ge=0, le=MAX_LAYERS)] = 3
    mlp_layer_types: list[Literal["dense", "sparse"]] | None = None
    moe_layer_freq: Literal[1] = 1
    n_group: ExpertCount | None = 1
    topk_group: ExpertCount | None = 1
    routed_scaling_factor: Factor = 2.5
    norm_topk_prob: bool = True
    num_nextn_predict_layers: Annotated[int, Meta(ge=0, le=16)] = 0

    def spec(self, architecture: str, values: Values) -> ModelSpec:
        return replace(super().spec(architecture, values), num_nextn_layers=self.num_nextn_predict_layers)

    def names(self) -> Names:
        return names_of(self.num_hidden_layers, self.num_nextn_predict_layers, {}, _INDEXER)

    def experts(self) -> ExpertsSpec:
        return balanced_experts(self, self.n_routed_experts, self.n_shared_experts or 0)

    def chooses(self) -> Sequence[bool]:
        if self.mlp_layer_types is None:
            return [i >= self.first_k_dense_replace for i in range(self.num_hidden_layers)]
        self.require_length(self.mlp_layer_types)
        return [name == "sparse" for name in self.mlp_layer_types]


class DeepseekV2Config(LatentExpertsConfig, kw_only=True):
    """Keys and defaults of DeepseekV2Config: the softmax of all experts weighs the chosen ones."""

    topk_method: Literal["greedy", "group_limited_greedy"] = "greedy"
    scoring_func: Literal["softmax"] = "softmax"

    def experts(self) -> ExpertsSpec:
        if self.norm_topk_prob:
            raise refuse("norm_topk_prob", True, "not supported for this architecture")
        count, choice = self.n_routed_experts, PLAIN_CHOICE
        if self.topk_method != "greedy":
            groups = ChoiceSpec(False, self.n_group or 1, self.topk_group or 1, 1)
            choice = checked_groups(groups, count, self.num_experts_per_tok)
        return replace(balanced_experts(self, count, self.n_shared_experts or 0, choice), routing="softmax")


class DeepseekV3Config(LatentExpertsConfig, kw_only=True):
    """Keys and defaults of DeepseekV3Config: sigmoids, and a bias that balances the choice of experts."""

    topk_method: Literal["noaux_tc"] = "noaux_tc"
    scoring_func: Literal["sigmoid"] = "sigmoid"


class Glm4MoeLiteConfig(DeepseekV3Config, kw_only=True):
    """Keys and defaults of Glm4MoeLiteConfig."""


class DeepseekV32Config(DeepseekV3Config, kw_only=True):
    """Keys and defaults of DeepseekV32Config.

    An indexer chooses `index_topk` tokens for attention. Contexts of so many tokens or fewer need none of it, and
    longer ones are not served.
    """

    index_topk: Positions = 2048

    def spec(self, architecture: str, values: Values) -> ModelSpec:
        model, reason = super().spec(architecture, values), f"index_topk is {self.index_topk}: there is no indexer"
        return replace(model, served_positions=min(self.index_topk, model.max_position), why_served=reason)


class GlmMoeDsaConfig(DeepseekV32Config, kw_only=True):
    """Keys and defaults of GlmMoeDsaConfig."""
