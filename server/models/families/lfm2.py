"""LFM2, dense and with experts: short convolutions, and attention on some layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, field

from ..config_values import Epsilon, Values, Width
from ..layer import ChoiceSpec, ExpertsSpec, NetworkSpec
from ..names import Names
from ..state_layer import ShortConvSpec, StateMixer
from .experts import ExpertCount
from .hybrid import HybridConfig, Taps, one_module

_KINDS = {"full_attention": True, "attention": True, "conv": False}
_NAMES = Names.of(
    {
        "model.norm": "model.embedding_norm",
        "input_layernorm": "operator_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "self_attn.out_proj",
        "q_norm": "q_layernorm",
        "k_norm": "k_layernorm",
        "mlp": "feed_forward",
        "gate_proj": "w1",
        "up_proj": "w3",
        "down_proj": "w2",
        "mlp.gate.e_score_correction_bias": "feed_forward.expert_bias",
        **one_module(("conv.in_b", "conv.in_c", "conv.in_x"), "conv.in_proj"),
    },
    "model.",
)
Multiple = Annotated[int, Meta(ge=1, le=1 << 20)]


class Lfm2Config(HybridConfig, kw_only=True):
    """Keys and defaults of Lfm2Config."""

    rms_norm_eps: Epsilon = field(default=1e-5, name="norm_eps")
    tie_embedding: bool | None = None  # older name of tie_word_embeddings, which wins
    block_ff_dim: Width | None = None  # older name of intermediate_size, which wins
    conv_bias: bool = False
    conv_L_cache: Taps = 3  # noqa: N815 - a key of the file
    block_multiple_of: Multiple = 256
    block_ffn_dim_multiplier: Annotated[float, Meta(gt=0.0, le=1e3)] | None = 1.0
    block_auto_adjust_ff_dim: bool = True
    full_attn_idxs: tuple[int, ...] | None = None
    layer_types: tuple[str, ...] | None = None

    own_names = _NAMES
    qk_norm = "head"

    def __post_init__(self) -> None:
        if self.tie_embedding is not None:
            self.tie_word_embeddings = self.tie_embedding
        if self.block_ff_dim is not None:
            self.intermediate_size = self.block_ff_dim
        if self.layer_types is None and self.full_attn_idxs is not None:
            layers = range(self.num_hidden_layers)
            self.layer_types = tuple("attention" if i in self.full_attn_idxs else "conv" for i in layers)

    def state_mixer(self, _: Values) -> StateMixer:
        return ShortConvSpec(self.hidden_size, self.conv_L_cache, self.conv_bias)

    def attends(self) -> Sequence[bool]:
        return self.types(self.layer_types, _KINDS, every=1)

    def dense(self) -> NetworkSpec:
        return self.network(self._adjusted())

    def _adjusted(self) -> int:
        """Size of the feed-forward network, as the family's code derives it from the key."""
        if not self.block_auto_adjust_ff_dim:
            return self.intermediate_size
        size = int(2 * self.intermediate_size / 3)
        if self.block_ffn_dim_multiplier is None:
            return size
        size = int(self.block_ffn_dim_multiplier * size)
        return -(-size // self.block_multiple_of) * self.block_multiple_of


class Lfm2MoeConfig(Lfm2Config, kw_only=True):
    """Keys and defaults of Lfm2MoeConfig: the first layers have one network, the others experts."""

    moe_intermediate_size: Width = 1792
    num_dense_layers: Annotated[int, Meta(ge=0, le=4096)] = 2
    num_experts: ExpertCount = 32
    num_experts_per_tok: ExpertCount = 4
    use_expert_bias: bool = True
    routed_scaling_factor: Annotated[float, Meta(gt=0.0, le=1e3)] = 1.0
    norm_topk_prob: bool = True

    def experts(self) -> ExpertsSpec:
        return ExpertsSpec(
            self.num_experts,
            self.num_experts_per_tok,
            self.network(self.moe_intermediate_size),
            routing="sigmoid_of_chosen" if self.norm_topk_prob else "sigmoid",
            choice=ChoiceSpec(has_bias=self.use_expert_bias),
            scaling=self.routed_scaling_factor,
        )

    def chooses(self) -> Sequence[bool]:
        return [i >= self.num_dense_layers for i in range(self.num_hidden_layers)]

    def dense(self) -> NetworkSpec:
        return self.network(self.intermediate_size)
