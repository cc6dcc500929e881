"""Keys that the config.json of every decoder family has. A family is a subclass with its defaults and its features.

A field's default is what a missing key means in the Hugging Face config class of that architecture. An option that
would change the result and is not implemented is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from neuronserve.server.models.config_values import (
    MIN_HEAD_DIM,
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
from neuronserve.server.models.rope import check_ropes, read_rope
from neuronserve.server.models.spec import ModelSpec

LayerType = Literal["full_attention", "sliding_attention"]


class DecoderConfig(msgspec.Struct, kw_only=True):
    """Llama's keys and defaults, which most families have taken over; Llama 2 and 3 need no more."""

    vocab_size: Vocab = 32_000
    hidden_size: Width = 4096
    intermediate_size: Width = 11_008
    num_hidden_layers: Layers = 32
    num_attention_heads: Heads = 32
    num_key_value_heads: Heads | None = None  # null: as many as query heads
    head_dim: HeadDim | None = None  # None: hidden_size / num_attention_heads
    max_position_embeddings: Positions = 2048
    rms_norm_eps: Epsilon = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: Literal["silu"] = "silu"

    def spec(self, architecture: str, values: Values) -> ModelSpec:
        """The model; `values` are all of the file. Raises ConfigError for values that contradict each other."""
        num_kv_heads, head_dim = self._kv_heads(), self._head_dim()
        spec = ModelSpec(
            architecture=architecture,
            num_layers=self.num_hidden_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_attention_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            vocab_size=self.vocab_size,
            max_position=self.max_position_embeddings,
            rms_norm_eps=self.rms_norm_eps,
            is_tied=self.tie_word_embeddings,
            **{
                "intermediate_size": self.intermediate_size,
                "has_qkv_bias": self.attention_bias,
                "has_o_bias": self.attention_bias,
                "has_ffn_bias": self.mlp_bias,
                **self.features(values),
            },
        )
        check_ropes(spec.distinct_ropes, head_dim)
        return spec

    def require_no_bias(self, *keys: str) -> None:
        """Raises ConfigError for a bias, by its key, where the family's code has none to load."""
        for key in keys:
            if getattr(self, key):
                raise refuse(key, True, "not supported for this architecture")

    def features(self, values: Values) -> dict[str, Any]:
        """The fields of the model's spec that the family sets."""
        return self.ropes(values)

    def ropes(self, values: Values) -> dict[str, Any]:
        """The fields with the rotary embeddings: one kind for all layers, unless a family says otherwise."""
        return {"rope": read_rope(values, self.max_position_embeddings)}

    def types_by_period(self, every: int) -> list[LayerType]:
        """Sliding layers, of which every so manieth attends to everything instead, where a file has no layer_types."""
        layers = range(1, self.num_hidden_layers + 1)
        return ["sliding_attention" if layer % every else "full_attention" for layer in layers]

    def rotated_layers(self, flags: Sequence[int] | None, every: int) -> Sequence[int]:
        """Whether each layer is rotated: by `no_rope_layers`, where 1 is yes, or all but every so manieth."""
        layers = self.num_hidden_layers
        if flags is None:
            return [int((i + 1) % every != 0) for i in range(layers)]
        if len(flags) < layers:
            raise refuse("no_rope_layers", flags, f"must have a number for each of the {layers} layers")
        return flags[:layers]

    def sliding_windows(self, window: int | None, types: Sequence[LayerType]) -> tuple[int, ...]:
        """The window of each layer by its type, () when none slides. Raises ConfigError unless every layer has one."""
        if len(types) != self.num_hidden_layers:
            raise refuse("layer_types", types, f"must name the type of each of the {self.num_hidden_layers} layers")
        slides = [name == "sliding_attention" for name in types]
        if not any(slides):
            return ()
        if not window:
            raise refuse("sliding_window", window, "layer_types names sliding_attention")
        return tuple(window * each for each in slides)

    def _kv_heads(self) -> int:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if kv_heads is None:
            return heads
        if heads % kv_heads:
            raise refuse("num_attention_heads", heads, f"not a multiple of num_key_value_heads, which is {kv_heads}")
        return kv_heads

    def _head_dim(self) -> int:
        heads, head_dim = self.num_attention_heads, self.head_dim
        if head_dim is None:
            if self.hidden_size % heads:
                raise refuse("hidden_size", self.hidden_size, f"not a multiple of num_attention_heads, {heads}")
            head_dim = self.hidden_size // heads
            if head_dim < MIN_HEAD_DIM:
                raise refuse("hidden_size", self.hidden_size, f"less than {MIN_HEAD_DIM} for each of {heads} heads")
        return head_dim
