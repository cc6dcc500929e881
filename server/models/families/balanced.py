"""Families whose routers choose experts by scores with a bias that balances them, with attention as Llama's.

GLM-4.5 to 4.7, dots.llm1, EXAONE 4's experts (K-EXAONE), Solar Open, MiniMax M2 and ERNIE 4.5 with experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from ..config_values import MAX_LAYERS, Layers, Positions, Values, Width
from ..layer import AttentionSpec, ChoiceSpec, ExpertsSpec, RopeSpec
from ..names import Names
from ..spec import ModelSpec
from .decoder import DecoderConfig
from .exaone import Exaone4Config
from .experts import ExpertCount, balanced_experts, names_of
from .like_llama import Ernie45Config
from .mistral import MIXTRAL_WORDS

Count = Annotated[int, Meta(ge=0, le=4096)]
LayerCount = Annotated[int, Meta(ge=0, le=MAX_LAYERS)]
Factor = Annotated[float, Meta(ge=0.0, le=1e6)]


class Glm4MoeConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of Glm4MoeConfig: half of each head is rotated, and heads may be normed."""

    moe_intermediate_size: Width = 1408
    num_experts_per_tok: ExpertCount = 8
    n_shared_experts: Count | None = 1
    n_routed_experts: ExpertCount = 128
    routed_scaling_factor: Factor = 1.0
    n_group: ExpertCount | None = 1
    topk_group: ExpertCount | None = 1
    first_k_dense_replace: LayerCount = 1
    norm_topk_prob: bool = True
    use_qk_norm: bool = False
    num_nextn_predict_layers: Annotated[int, Meta(ge=0, le=16)] = 1

    refused_biases = ("mlp_bias",)
    lacks_o_bias: ClassVar[bool] = True
    rotated_share: ClassVar[float | None] = 0.5

    def spec(self, architecture: str, values: Values) -> ModelSpec:
        return replace(super().spec(architecture, values), num_nextn_layers=self.num_nextn_predict_layers)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), qk_norm="head" if self.use_qk_norm else "none")

    def experts(self) -> ExpertsSpec:
        return balanced_experts(self, self.n_routed_experts, self.n_shared_experts or 0)

    def chooses(self) -> Sequence[bool]:
        return [i >= self.first_k_dense_replace for i in range(self.num_hidden_layers)]

    def names(self) -> Names:
        return names_of(self.num_hidden_layers, self.num_nextn_predict_layers, {})


class SolarOpenConfig(Glm4MoeConfig, kw_only=True):
    """Keys and defaults of SolarOpenConfig: experts on all layers, and whole heads are rotated."""

    rotated_share = 1.0


class Dots1Config(Glm4MoeConfig, kw_only=True):
    """Keys and defaults of Dots1Config: heads are normed, and layers may slide."""

    sliding_window: Positions | None = 4096
    max_window_layers: LayerCount = 62
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None

    lacks_o_bias = False
    rotated_share = None

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), qk_norm="head")

    def windows(self) -> Sequence[int]:
        first = self.max_window_layers if self.sliding_window is not None else self.num_hidden_layers
        types = self.layer_types or [
            "sliding_attention" if i >= first else "full_attention" for i in range(self.num_hidden_layers)
        ]
        return self.sliding_windows(self.sliding_window, types)


class ExaoneMoeConfig(Exaone4Config, kw_only=True):
    """Keys and defaults of ExaoneMoeConfig: norms before branches, and experts."""

    first_k_dense_replace: LayerCount = 1
    mlp_layer_types: list[Literal["dense", "sparse"]] | None = None
    moe_intermediate_size: Width = 1024
    num_experts: ExpertCount = 64
    num_experts_per_tok: ExpertCount = 8
    num_shared_experts: Count = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: Factor = 2.5
    n_group: ExpertCount | None = 1
    topk_group: ExpertCount | None = 1

    norm_placement = "before"

    def experts(self) -> ExpertsSpec:
        return balanced_experts(self, self.num_experts, self.num_shared_experts)

    def chooses(self) -> Sequence[bool]:
        layers = range(self.num_hidden_layers)
        types = self.mlp_layer_types or ["sparse" if i >= self.first_k_dense_replace else "dense" for i in layers]
        self.require_length(types)
        return [name == "sparse" for name in types]

    def names(self) -> Names:
        bias = {"mlp.gate.e_score_correction_bias": "mlp.e_score_correction_bias"}
        return names_of(self.num_hidden_layers, 1, bias)


class MiniMaxM2Config(DecoderConfig, kw_only=True):
    """Keys and defaults of MiniMaxM2Config: norms over all heads together, experts on all layers."""

    num_experts_per_tok: ExpertCount = 8
    num_local_experts: ExpertCount = 256
    rotary_dim: Positions | None = None  # of a head, in files of its own code

    comes_with_code = True
    qk_norm = "all_heads"
    own_names = Names.of(
        {**MIXTRAL_WORDS, "mlp.gate.e_score_correction_bias": "block_sparse_moe.e_score_correction_bias"}, "model."
    )

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        share = 1.0 if self.rotary_dim is None else min(1.0, (self.rotary_dim + 0.5) / self.head_size())
        return self.on_all(self.partial_rope(values, share))

    def experts(self) -> ExpertsSpec:
        choice, counts = ChoiceSpec(has_bias=True), (self.num_local_experts, self.num_experts_per_tok)
        return ExpertsSpec(*counts, self.dense(), routing="sigmoid_of_chosen", choice=choice)


class Ernie45MoeConfig(Ernie45Config, kw_only=True):
    """Keys and defaults of Ernie4_5_MoeConfig."""

    moe_intermediate_size: Width = 1536
    moe_k: ExpertCount = 6
    moe_num_experts: ExpertCount = 64
    moe_num_shared_experts: Count = 2
    moe_layer_start_index: LayerCount = 1
    moe_layer_end_index: Annotated[int, Meta(ge=-1, le=MAX_LAYERS)] = -1
    moe_layer_interval: Layers = 1

    def experts(self) -> ExpertsSpec:
        size, shared = self.moe_intermediate_size, self.moe_num_shared_experts
        return ExpertsSpec(
            self.moe_num_experts,
            self.moe_k,
            self.network(size),
            shared=self.network(size * shared) if shared else None,
            choice=ChoiceSpec(has_bias=True, is_bias_folded=True),
        )

    def chooses(self) -> Sequence[bool]:
        layers, every = self.num_hidden_layers, self.moe_layer_interval
        last = layers - 1 if self.moe_layer_end_index == -1 else self.moe_layer_end_index
        return [(i + 1) % every == 0 and self.moe_layer_start_index <= i <= last for i in range(layers)]

    def names(self) -> Names:
        bias = {"mlp.gate.e_score_correction_bias": "mlp.moe_statics.e_score_correction_bias"}
        return names_of(self.num_hidden_layers, 1, bias)
