"""Qwen3-Next, Qwen 3.5 and Qwen 3.6: gated DeltaNet, and attention with a gate on each fourth layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from ..config_values import Layers, Values, Width, refuse
from ..layer import AttentionSpec, ExpertsSpec, NetworkSpec, RopeSpec
from ..names import Names
from ..rope import DEFAULT_THETA, rope_object, rope_of
from ..spec import ModelSpec
from ..state_layer import GatedDeltaNetSpec, StateMixer
from .experts import ExpertCount, LayerIndex, softmax_experts, sparse_layers
from .hybrid import HybridConfig, StateDim, StateHeads, Taps, one_module

_KINDS = {"full_attention": True, "linear_attention": False}
_MTP = "mtp."  # beginning of the names of what predicts further tokens


def _names(words: Mapping[str, str]) -> Names:
    """Return names with these `words`; the gate of each head is behind its query."""
    names = Names.of({"self_attn.gate_proj": "self_attn.q_proj", **words}, "model.")
    return replace(names, skipped=(_MTP,), further=_MTP)


_NAMES = _names(
    {
        **one_module(("linear_attn.in_q", "linear_attn.in_k", "linear_attn.in_v"), "linear_attn.in_proj_qkv"),
        **{f"linear_attn.in_{part}": f"linear_attn.in_proj_{part}" for part in "zba"},
    }
)
_NEXT_NAMES = _names(
    {
        **one_module([f"linear_attn.in_{part}" for part in "qkvz"], "linear_attn.in_proj_qkvz"),
        **one_module(("linear_attn.in_b", "linear_attn.in_a"), "linear_attn.in_proj_ba"),
    }
)


class Qwen3_5Config(HybridConfig, kw_only=True):  # noqa: N801 - the model's name
    """Keys and defaults of Qwen3_5TextConfig."""

    linear_conv_kernel_dim: Taps = 4
    linear_key_head_dim: StateDim = 128
    linear_value_head_dim: StateDim = 128
    linear_num_key_heads: StateHeads = 16
    linear_num_value_heads: StateHeads = 32
    partial_rotary_factor: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.25
    full_attention_interval: Layers = 4
    layer_types: tuple[str, ...] | None = None
    mtp_num_hidden_layers: Annotated[int, Meta(ge=0, le=16)] = 1  # files of Qwen3-Next do not say

    norm_offset = 1.0
    qk_norm = "head"
    own_names = _NAMES

    def spec(self, architecture: str, values: Values) -> ModelSpec:
        return replace(super().spec(architecture, values), num_nextn_layers=self.mtp_num_hidden_layers)

    def state_mixer(self, _: Values) -> StateMixer:
        keys, values = self.linear_num_key_heads, self.linear_num_value_heads
        if values % keys:
            raise refuse("linear_num_value_heads", values, f"not a multiple of linear_num_key_heads, which is {keys}")
        sizes = self.linear_key_head_dim, self.linear_value_head_dim, self.linear_conv_kernel_dim
        return GatedDeltaNetSpec(keys, values, *sizes)

    def attends(self) -> Sequence[bool]:
        return self.types(self.layer_types, _KINDS, self.full_attention_interval)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_gate=True)

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        path, rope = rope_object(values)
        outer = {**values, "partial_rotary_factor": self.partial_rotary_factor}
        rotation = rope_of(outer, rope, path, self.max_position_embeddings, DEFAULT_THETA, may_be_partial=True)
        return self.on_all(rotation)


class Qwen3_5MoeConfig(Qwen3_5Config, kw_only=True):  # noqa: N801 - the model's name
    """Keys and defaults of Qwen3_5MoeTextConfig: every layer has experts, and a network that all tokens take."""

    num_experts: ExpertCount = 256
    num_experts_per_tok: ExpertCount = 8
    moe_intermediate_size: Width = 512
    shared_expert_intermediate_size: Width = 512
    norm_topk_prob: bool = True

    def experts(self) -> ExpertsSpec:
        shared = self.network(self.shared_expert_intermediate_size)
        experts = softmax_experts(self, self.network(self.moe_intermediate_size))
        return replace(experts, shared=shared, has_shared_gate=True)

    def dense(self) -> NetworkSpec:
        return self.network(self.shared_expert_intermediate_size)


class Qwen3NextConfig(Qwen3_5MoeConfig, kw_only=True):
    """Keys and defaults of Qwen3NextConfig."""

    decoder_sparse_step: Layers = 1
    mlp_only_layers: tuple[LayerIndex, ...] | None = None

    own_names = _NEXT_NAMES

    def state_mixer(self, values: Values) -> StateMixer:
        mixer = super().state_mixer(values)
        assert isinstance(mixer, GatedDeltaNetSpec)
        return replace(mixer, takes_turns=True)

    def chooses(self) -> Sequence[bool]:
        return sparse_layers(self.num_hidden_layers, self.decoder_sparse_step, self.mlp_only_layers or ())

    def dense(self) -> NetworkSpec:
        return self.network(self.intermediate_size)
