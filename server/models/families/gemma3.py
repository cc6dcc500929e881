"""Gemma 3 (text): norms of (1 + w) before and after; GeGLU; local layers have a window and rotary base of their own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from server.models.config_values import HeadDim, Heads, Layers, Positions, Values, Vocab, Width, refuse
from server.models.families.decoder import DecoderConfig, LayerType
from server.models.rope import LAYER_TYPES, Theta, rope_object, rope_of
from server.models.spec import RopeSpec

GLOBAL_THETA = 1_000_000.0


class Gemma3Config(DecoderConfig, kw_only=True):
    """Keys and defaults of Gemma3TextConfig."""

    vocab_size: Vocab = 262_208
    hidden_size: Width = 2304
    intermediate_size: Width = 9216
    num_hidden_layers: Layers = 26
    num_attention_heads: Heads = 8
    num_key_value_heads: Heads | None = 4
    head_dim: HeadDim | None = 256
    max_position_embeddings: Positions = 131_072
    tie_word_embeddings: bool = True
    hidden_activation: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    query_pre_attn_scalar: Annotated[float, Meta(gt=0.0, le=1e6)] = 256.0
    sliding_window: Positions | None = 4096
    sliding_window_pattern: Layers = 6  # every so manieth layer is global, where there is no layer_types
    layer_types: list[LayerType] | None = None
    rope_local_base_freq: Theta = 10_000.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool = False

    def features(self, values: Values) -> dict[str, Any]:
        for key in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
            if getattr(self, key):
                raise refuse(key, getattr(self, key), "not supported")
        types = self._types()
        local, whole = self._ropes(values)
        return {
            "windows": self.sliding_windows(self.sliding_window, types),
            "rope": whole,
            "ropes": tuple(local if name == "sliding_attention" else whole for name in types),
            "has_qk_norm": True,
            "has_post_norms": True,
            "norm_offset": 1.0,
            "activation": "gelu_tanh",
            "attention_scale": self.query_pre_attn_scalar**-0.5,
            "embedding_scale": self.hidden_size**0.5,
        }

    def _types(self) -> list[LayerType]:
        if self.layer_types is not None:
            return self.layer_types
        every = self.sliding_window_pattern
        layers = range(1, self.num_hidden_layers + 1)
        return ["sliding_attention" if layer % every else "full_attention" for layer in layers]

    def _ropes(self, values: Values) -> tuple[RopeSpec, RopeSpec]:
        """Rotations of local and of global layers; older files have the scaling of the global ones beside two bases."""
        path, rope = rope_object(values)
        length = self.max_position_embeddings
        by_type = {key: _object(f"{path}{key}", rope[key]) for key in LAYER_TYPES if key in rope}
        if not by_type:
            return RopeSpec(self.rope_local_base_freq), rope_of(values, rope, path, length, GLOBAL_THETA)
        whole, local = (by_type.get(key, {}) for key in LAYER_TYPES)
        bare = {key: value for key, value in values.items() if key != "rope_theta"}
        return (
            rope_of(bare, local, f"{path}sliding_attention.", length, self.rope_local_base_freq),
            rope_of(values, whole, f"{path}full_attention.", length, GLOBAL_THETA),
        )


def _object(key: str, value: object) -> Values:
    """The rotary parameters of one type of layers; none where they are null."""
    if value is not None and not isinstance(value, dict):
        raise refuse(key, value, "must be an object")
    return value or {}
