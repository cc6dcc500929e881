"""ModernBERT: norms before, a gated feed-forward network, and layers of two kinds, global and local.

Local layers see `local_attention / 2` tokens on either side and have a rotary base of their own. Layer 0 has no norm
before attention: the embeddings are normed already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import msgspec

from ...typed_json import shown
from ..config_values import Epsilon, Layers, Positions, Values, refuse
from ..layer import AttentionSpec, LayerSpec, NetworkSpec, RopeSpec
from ..rope import Theta, rope_object
from ..spec import EmbeddingSpec, NormSpec
from .encoder import EncoderConfig
from .family import ACTIVATIONS, ActivationName, LayerType


class ModernBertConfig(EncoderConfig, kw_only=True):
    """Keys and defaults of ModernBertConfig."""

    hidden_act: ActivationName = msgspec.field(default="gelu", name="hidden_activation")
    rms_norm_eps: Epsilon = msgspec.field(default=1e-5, name="norm_eps")
    local_attention: Positions = 128
    global_attn_every_n_layers: Layers = 3
    layer_types: list[LayerType] | None = None
    global_rope_theta: Theta = 160_000.0
    local_rope_theta: Theta | None = 10_000.0
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False

    norm_placement = "before"
    prefix = "model."
    layer_names = "attn.Wqkv attn.Wqkv attn.Wqkv attn.Wo attn_norm mlp.Wi mlp.Wo mlp_norm mlp.Wi"
    other_names: ClassVar[Mapping[str, str]] = {
        "model.embed_tokens": "embeddings.tok_embeddings",
        "model.embed_norm": "embeddings.norm",
        "model.layers": "layers",
        "model.norm": "final_norm",
    }

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        first, *others = super().layers(values)
        return (replace(first, norms="before_ffn"), *others)

    def embedding(self) -> EmbeddingSpec:
        return EmbeddingSpec(self.vocab_size, self.hidden_size, has_norm=True)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        attention = super().attention(rope, window)
        return replace(attention, has_qkv_bias=self.attention_bias, has_o_bias=self.attention_bias)

    def windows(self) -> Sequence[int]:
        return [self.local_attention * (name == "sliding_attention") for name in self._types()]

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        local_theta = self.global_rope_theta if self.local_rope_theta is None else self.local_rope_theta
        whole = self._rope(values, "full_attention", self.global_rope_theta)
        local = self._rope(values, "sliding_attention", local_theta)
        return [local if name == "sliding_attention" else whole for name in self._types()]

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, ACTIVATIONS[self.hidden_act], has_bias=self.mlp_bias)

    def norm(self) -> NormSpec:
        return NormSpec("layer" if self.norm_bias else "layer_no_bias", self.rms_norm_eps)

    def _types(self) -> list[LayerType]:
        if self.layer_types is None:
            every = self.global_attn_every_n_layers
            return ["sliding_attention" if i % every else "full_attention" for i in range(self.num_hidden_layers)]
        self.require_length(self.layer_types)
        return self.layer_types

    def _rope(self, values: Values, kind: LayerType, theta: float) -> RopeSpec:
        """Return the rotation of one kind of layers; files of transformers 5 have an object for each."""
        path, rope = rope_object(values)
        inner = rope.get(kind) or {}
        if not isinstance(inner, dict):
            raise refuse(f"{path}{kind}", inner, "must be an object")
        if inner.get("rope_type", "default") != "default":
            raise refuse(f"{path}{kind}.rope_type", inner["rope_type"], "only default is supported")
        stated = inner.get("rope_theta", theta)
        if not isinstance(stated, int | float) or not 2.0 <= stated <= 1e15:
            raise refuse(f"{path}{kind}.rope_theta", shown(stated), "must be a number from 2 to 1e15")
        return RopeSpec(float(stated))
