"""Granite 3, dense and with experts, and Granite 4, whose layers attend or are Mamba-2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta

from ..config_values import Values, Width, read_record, refuse
from ..layer import AttentionSpec, ExpertsSpec, FeedForward, LayerSpec, NormPlacement, RopeSpec
from ..names import LLAMA, Names
from ..spec import EmbeddingSpec, HeadSpec
from .decoder import DecoderConfig
from .experts import expert_layers
from .mamba import MAMBA_ROWS, MambaKeys

# Files' own names of the router and of experts in one tensor.
_IN_FILES = tuple(
    (f".block_sparse_moe.{stored}.weight", f".block_sparse_moe.{name}")
    for stored, name in (
        ("input_linear", "experts.gate_up_proj"),
        ("output_linear", "experts.down_proj"),
        ("router.layer", "router.weight"),
    )
)
_SHARED = {"gate_proj": "input_linear", "up_proj": "input_linear", "down_proj": "output_linear"}
MOE_NAMES = replace(
    Names.of(
        {
            "mlp": "block_sparse_moe",
            "mlp.gate": "block_sparse_moe.router",
            **{
                f"{at}.{word}": f"shared_mlp.{stored}"
                for at in ("mlp", "mlp.shared_expert")
                for word, stored in _SHARED.items()
            },
            **MAMBA_ROWS,
        },
        "model.",
    ),
    old_endings=_IN_FILES,
)
HYPERCLOVAX = Names.of(
    {
        "post_attention_layernorm": "post_norm1",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "post_norm2",
    },
    "model.",
)
Multiplier = Annotated[float, Meta(gt=0.0, le=1e6)]
ExpertCountOrNone = Annotated[int, Meta(ge=0, le=4096)]
LayerKind = Literal["attention", "full_attention", "mamba", "linear_attention"]
ATTENDS = ("attention", "full_attention")


class GraniteConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of GraniteConfig: Llama with multipliers of embeddings, scores, branches and logits."""

    embedding_multiplier: Multiplier = 1.0
    attention_multiplier: Multiplier = 1.0  # of scores, in place of head_dim ** -0.5
    residual_multiplier: Multiplier = 1.0
    logits_scaling: Multiplier = 1.0  # logits are divided by it

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        return tuple(replace(layer, residual_scale=self.residual_multiplier) for layer in super().layers(values))

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), scale=self.attention_multiplier)

    def embedding(self) -> EmbeddingSpec:
        return EmbeddingSpec(self.vocab_size, self.hidden_size, self.embedding_multiplier)

    def head(self) -> HeadSpec:
        return HeadSpec(self.tie_word_embeddings, scale=1.0 / self.logits_scaling)


class HyperCLOVAXConfig(GraniteConfig, kw_only=True):
    """Keys and defaults of HyperCLOVAXConfig: logits are multiplied, and branches may be normed."""

    attention_multiplier: Multiplier | None = None  # type: ignore[assignment]  # None: head_dim ** -0.5
    use_post_norm: bool = True

    comes_with_code = True

    def placement(self) -> NormPlacement:
        return "before_and_after" if self.use_post_norm else "before"

    def head(self) -> HeadSpec:
        return HeadSpec(self.tie_word_embeddings, scale=self.logits_scaling)

    def names(self) -> Names:
        return HYPERCLOVAX if self.use_post_norm else LLAMA


class GraniteMoeConfig(GraniteConfig, kw_only=True):
    """Keys and defaults of GraniteMoeConfig."""

    num_local_experts: ExpertCountOrNone = 8
    num_experts_per_tok: ExpertCountOrNone = 2

    own_names = MOE_NAMES

    def experts(self) -> ExpertsSpec:
        return ExpertsSpec(self.num_local_experts, self.num_experts_per_tok, self.network(self.intermediate_size))


class GraniteMoeSharedConfig(GraniteMoeConfig, kw_only=True):
    """Keys and defaults of GraniteMoeSharedConfig: a network that all tokens take, unless its size is 0."""

    shared_intermediate_size: Annotated[int, Meta(ge=0, le=1 << 20)] = 0

    def experts(self) -> ExpertsSpec:
        size = self.shared_intermediate_size
        return replace(super().experts(), shared=self.network(size) if size else None)


class GraniteMoeHybridConfig(GraniteMoeConfig, kw_only=True):
    """Keys and defaults of GraniteMoeHybridConfig; without experts the shared network is the only one."""

    shared_intermediate_size: Width = 1024
    layer_types: Sequence[LayerKind] | None = None
    position_embedding_type: Literal["rope", "nope"] | None = None

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        types = self.layer_types or ["mamba"] * self.num_hidden_layers
        self.require_length(types)
        attends, layers = [kind in ATTENDS for kind in types], super().layers(values)
        if not any(attends):
            raise refuse("layer_types", types[0], "one layer at least must attend")
        if all(attends):
            return layers
        state = read_record(values, MambaKeys).mixer(self.hidden_size)
        each = zip(layers, attends, strict=True)
        return tuple(layer if attending else replace(layer, mixer=state) for layer, attending in each)

    def feed_forwards(self) -> Sequence[FeedForward]:
        shared = self.network(self.shared_intermediate_size)
        if not self.num_local_experts:
            return self.on_all(shared)
        return expert_layers(replace(self.experts(), shared=shared), self.on_all(True), shared)

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        return super().ropes(values) if self.position_embedding_type == "rope" else self.on_all(None)
