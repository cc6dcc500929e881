"""Gemma 4 (text): global layers have heads of their own, values are normed, and a learned number ends each layer.

The last layers may read keys and values of earlier ones, and each layer may have an input by token (E2B, E4B). Experts,
where there are some, stand beside a network that all tokens take, each with norms of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from ..config_values import MAX_LAYERS, HeadDim, Heads, Values, Vocab, Width, refuse
from ..layer import AttentionSpec, ExpertsSpec, FeedForward, LayerInputSpec, LayerSpec, NetworkSpec
from ..names import Names
from .experts import ExpertCount, expert_layers
from .family import LayerType
from .gemma import Gemma3Config

NAMES = Names.of({"mlp.experts": "experts", "mlp.gate": "router.proj", "mlp.router": "router"}, "model.")
SharedLayers = Annotated[int, Meta(ge=0, le=MAX_LAYERS)]


def sharing(mixers: Sequence[AttentionSpec], types: Sequence[LayerType], num_shared: int) -> list[AttentionSpec]:
    """Return mixers of which the last `num_shared` read the keys and values of the last layer before of their type."""
    own = max(0, len(mixers) - num_shared)
    last = {kind: i for i, kind in enumerate(types[:own])}
    if missing := [kind for kind in types[own:] if kind not in last]:
        raise refuse("num_kv_shared_layers", num_shared, f"no layer before has {missing[0]}")
    return [mixer if i < own else replace(mixer, kv_source=last[types[i]]) for i, mixer in enumerate(mixers)]


class Gemma4Config(Gemma3Config, kw_only=True):
    """Keys and defaults of Gemma4TextConfig."""

    global_head_dim: HeadDim = 512
    num_global_key_value_heads: Heads | None = None  # null: as many as local layers
    per_layer_config: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - msgspec copies an empty one
    attention_k_eq_v: bool = False
    num_kv_shared_layers: SharedLayers = 0
    hidden_size_per_layer_input: Annotated[int, Meta(ge=0, le=1 << 16, multiple_of=16)] = 256  # 0: no inputs
    vocab_size_per_layer_input: Vocab = 262_144
    use_double_wide_mlp: bool = False
    enable_moe_block: bool = False
    num_experts: ExpertCount | None = None
    top_k_experts: ExpertCount | None = None
    moe_intermediate_size: Width | None = None

    norm_offset = 0.0
    own_names = NAMES

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        types, layers = self.types(), super().layers(values)
        found = [layer.mixer for layer in layers if isinstance(layer.mixer, AttentionSpec)]
        mixers = [self._mixer(i, mixer) for i, mixer in enumerate(found)]
        mixers = sharing(mixers, types, self.num_kv_shared_layers)
        given = None
        if size := self.hidden_size_per_layer_input:
            given = LayerInputSpec(NetworkSpec(size, "gelu_tanh", is_gated=False), self.vocab_size_per_layer_input)
        each = zip(layers, mixers, strict=True)
        return tuple(replace(layer, mixer=mixer, has_scalar=True, input=given) for layer, mixer in each)

    def _mixer(self, i: int, mixer: AttentionSpec) -> AttentionSpec:
        """Return the attention of layer `i`. transformers 5 writes what its heads differ in by the layer's index."""
        is_whole = self.types()[i] == "full_attention"
        heads, size = mixer.num_kv_heads, mixer.head_dim
        if is_whole:
            size = self.global_head_dim
            heads = (self.attention_k_eq_v and self.num_global_key_value_heads) or heads
        stated = {int(at): keys for at, keys in self.per_layer_config.items() if at.isdecimal()}
        if self.per_layer_config:
            found = {"head_dim": mixer.head_dim, "num_key_value_heads": mixer.num_kv_heads} | stated.get(i, {})
            size, heads = found["head_dim"], found["num_key_value_heads"]
        if not (isinstance(size, int) and isinstance(heads, int) and size > 0 and heads > 0):
            raise refuse("per_layer_config", self.per_layer_config, "heads must be counted by positive numbers")
        if mixer.num_heads % heads:
            raise refuse("num_key_value_heads", heads, f"does not divide num_attention_heads, {mixer.num_heads}")
        return replace(
            mixer,
            num_kv_heads=heads,
            head_dim=size,
            scale=1.0,
            has_value_norm=True,
            is_value_key=self.attention_k_eq_v and is_whole,
        )

    def feed_forwards(self) -> Sequence[FeedForward]:
        layers, by = self.num_hidden_layers, 2 if self.use_double_wide_mlp else 1
        wide = range(layers - self.num_kv_shared_layers, layers)
        dense = [self.network(self.intermediate_size * (by if i in wide else 1)) for i in range(layers)]
        if not self.enable_moe_block:
            return dense
        if by > 1 and wide:
            raise refuse("use_double_wide_mlp", True, "not supported beside experts")
        experts = ExpertsSpec(
            self.num_experts or 0,
            self.top_k_experts or 0,
            self.network(self.moe_intermediate_size or self.intermediate_size),
            shared=dense[0],
            has_own_norms=True,
        )
        return expert_layers(experts, self.on_all(True), dense[0])
