"""Types that are planned and not served, by generic keys. Options that no key states are rows of `TRAITS`.

Scalings of rotary embeddings, caps and multipliers, which change no byte and no time, are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import Meta

from ..config_values import MAX_POSITIONS, HeadDim, Heads, Layers, Values, Width, refuse
from ..layer import Activation, AttentionSpec, ExpertsSpec, NetworkSpec, NormPlacement, QKNorm, RopeSpec
from ..spec import EmbeddingSpec, HeadSpec, NormKind, NormSpec
from .family import FamilyConfig

Count = Annotated[int, Meta(ge=0, le=4096)]

WINDOWED = ("sliding_attention", "chunked_attention")


@dataclass(frozen=True, slots=True)
class Traits:
    """Options of a type's layers that no key says. The defaults are Llama's."""

    norm: NormKind = "rms"
    placement: NormPlacement = "before"
    qk_norm: QKNorm = "none"
    activation: Activation = "silu"
    is_gated: bool = True
    has_attention_bias: bool = False
    has_ffn_bias: bool = False
    has_head_bias: bool = False
    has_attention_gate: bool = False
    has_embedding_norm: bool = False
    is_tied: bool = False
    is_rotated: bool = True
    has_learned_positions: bool = False


LIKE_LLAMA = (
    "deepseek",
    "llama",
    "vaultgemma",
)

# Source: the model's code in transformers (models/<model_type>/modeling_*.py, and the defaults of its configuration
# class); where transformers has the type, it counts as many parameters.
TRAITS: dict[str, Traits] = {
    **dict.fromkeys(LIKE_LLAMA, Traits()),
    "afmoe": Traits(placement="before_and_after", qk_norm="head", has_attention_gate=True),
    "dbrx": Traits(norm="layer_no_bias"),
    "phimoe": Traits(norm="layer", has_attention_bias=True, has_head_bias=True),
}


class GenericConfig(FamilyConfig, kw_only=True):
    """Generic keys by their first names."""

    model_type: str = "llama"
    intermediate_size: Width = 0  # 0: four times the hidden size
    rms_norm_eps: Annotated[float, Meta(ge=0.0, le=1.0)] = 1e-6
    num_key_value_heads: Heads | None = None
    head_dim: HeadDim | None = None
    num_experts: Count = 0
    num_experts_per_tok: Count = 0
    moe_intermediate_size: Width | None = None  # None: intermediate_size is an expert's
    dense_intermediate_size: Width | None = None
    shared_intermediate_size: Annotated[int, Meta(ge=0, le=1 << 20)] | None = None
    num_shared_experts: Count = 0
    num_dense_layers: Count = 0
    expert_layer_step: Layers = 1
    mlp_only_layers: tuple[int, ...] = ()
    sliding_window: Annotated[int, Meta(ge=0, le=MAX_POSITIONS)] | None = None  # 0, as null: none slides
    sliding_window_pattern: Layers | None = None
    use_sliding_window: bool = True
    layer_types: list[str] | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None

    def __post_init__(self) -> None:
        self.intermediate_size = self.intermediate_size or 4 * self.hidden_size

    @property
    def traits(self) -> Traits:
        """Options of the type."""
        return TRAITS[self.model_type]

    def embedding(self) -> EmbeddingSpec:
        return EmbeddingSpec(
            self.vocab_size,
            self.hidden_size,
            num_positions=self.max_position_embeddings if self.traits.has_learned_positions else 0,
            has_norm=self.traits.has_embedding_norm,
        )

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        has_bias = self.traits.has_attention_bias if self.attention_bias is None else self.attention_bias
        return replace(
            super().attention(rope, window),
            qk_norm=self.traits.qk_norm,
            has_qkv_bias=has_bias,
            has_o_bias=has_bias,
            has_gate=self.traits.has_attention_gate,
        )

    def ropes(self, _: Values) -> Sequence[RopeSpec | None]:
        return self.on_all(RopeSpec() if self.traits.is_rotated else None)

    def network(self, size: int) -> NetworkSpec:
        has_bias = self.traits.has_ffn_bias if self.mlp_bias is None else self.mlp_bias
        return NetworkSpec(size, self.traits.activation, self.traits.is_gated, has_bias)

    def placement(self) -> NormPlacement:
        return self.traits.placement

    def norm(self) -> NormSpec:
        return NormSpec(self.traits.norm, self.rms_norm_eps)

    def head(self) -> HeadSpec:
        is_tied = self.traits.is_tied if self.tie_word_embeddings is None else self.tie_word_embeddings
        return HeadSpec(is_tied, self.traits.has_head_bias)

    def kv_heads(self) -> int:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if kv_heads is not None and heads % kv_heads:
            raise refuse("num_attention_heads", heads, f"not a multiple of num_key_value_heads, which is {kv_heads}")
        return kv_heads or heads

    def head_size(self) -> int:
        return super().head_size() if self.head_dim is None else self.head_dim

    def experts(self) -> ExpertsSpec | None:
        if not self.num_experts:
            return None
        expert = self.moe_intermediate_size or self.intermediate_size
        shared = expert * self.num_shared_experts
        if self.shared_intermediate_size is not None:
            shared = self.shared_intermediate_size
        network = self.network(shared) if shared else None
        return ExpertsSpec(self.num_experts, self.num_experts_per_tok, self.network(expert), shared=network)

    def chooses(self) -> Sequence[bool]:
        layers, step, unless = range(self.num_hidden_layers), self.expert_layer_step, self.mlp_only_layers
        return [i >= self.num_dense_layers and (i + 1) % step == 0 and i not in unless for i in layers]

    def dense(self) -> NetworkSpec:
        own = self.dense_intermediate_size if self.num_experts else None
        return self.network(own or self.intermediate_size)

    def windows(self) -> Sequence[int]:
        """Window of each layer: by its type, by the period of layers that attend to everything, or one for all.

        A window as long as the positions never slides.
        """
        layers, window, every = range(self.num_hidden_layers), self.sliding_window, self.sliding_window_pattern
        if not window or window >= self.max_position_embeddings or not self.use_sliding_window:
            return self.on_all(0)
        if self.layer_types is None:
            return [window * (every is None or (i + 1) % every != 0) for i in layers]
        self.require_length(self.layer_types)
        for name in self.layer_types:
            if name not in (*WINDOWED, "full_attention"):
                raise refuse("layer_types", name, f"a layer may be full_attention, {' or '.join(WINDOWED)}")
        return [window * (name in WINDOWED) for name in self.layer_types]
