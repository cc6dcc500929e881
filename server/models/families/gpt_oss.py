"""GPT-OSS: experts with biases and a clamped gate, attention sinks, windows on every other layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuronserve.server.models.config_values import (
    Epsilon,
    HeadDim,
    Heads,
    Layers,
    Positions,
    Values,
    Vocab,
    Width,
    refuse,
)
from neuronserve.server.models.families.decoder import DecoderConfig, LayerType
from neuronserve.server.models.families.experts import Experts, expert_fields
from neuronserve.server.models.names import Names
from neuronserve.server.models.rope import read_rope

NAMES = replace(Names.of({"mlp.gate": "mlp.router"}, "model."), fused="inputs, in turns")
THETA = 150_000.0
# Of configurations that leave rope_parameters out: GptOssConfig.__post_init__.
ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
SWIGLU = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # that the kernel computes


class GptOssConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of GptOssConfig."""

    vocab_size: Vocab = 201_088
    hidden_size: Width = 2880
    intermediate_size: Width = 2880
    num_hidden_layers: Layers = 36
    num_attention_heads: Heads = 64
    num_key_value_heads: Heads | None = 8
    head_dim: HeadDim | None = 64
    max_position_embeddings: Positions = 131_072
    rms_norm_eps: Epsilon = 1e-5
    attention_bias: bool = True
    sliding_window: Positions | None = 128
    layer_types: list[LayerType] | None = None
    num_local_experts: Experts = 128
    num_experts_per_tok: Experts = 4
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    def features(self, values: Values) -> dict[str, Any]:
        for key, computed in SWIGLU.items():
            if getattr(self, key) != computed:
                raise refuse(key, getattr(self, key), f"only {computed} is computed")
        types = self.types_by_period(2) if self.layer_types is None else self.layer_types
        chooses, size = [True] * self.num_hidden_layers, self.intermediate_size
        return {
            **super().features(values),
            **expert_fields(self.num_local_experts, self.num_experts_per_tok, chooses, size, size),
            "windows": self.sliding_windows(self.sliding_window, types),
            "activation": "swiglu_clamped",
            "has_ffn_bias": True,
            "has_router_bias": True,
            "has_sinks": True,
            "names": NAMES,
        }

    def ropes(self, values: Values) -> dict[str, Any]:
        if values.get("rope_parameters") is None and values.get("rope_scaling") is None:
            values = {**values, "rope_scaling": ROPE}
        return {"rope": read_rope(values, self.max_position_embeddings, THETA)}
