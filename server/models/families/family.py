"""Base of all families of models: sizes of a config.json, and one method for each record of a model.

A family is a subclass with the defaults of its Hugging Face configuration class; it overrides a method where it differs
from Llama. An option that would change the result and is not implemented is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeVar

import msgspec

from ..config_values import MIN_HEAD_DIM, Epsilon, Heads, Layers, Positions, Values, Vocab, Width, defaults_of, refuse
from ..layer import (
    Activation,
    AttentionSpec,
    ExpertsSpec,
    FeedForward,
    LayerSpec,
    NetworkSpec,
    NormPlacement,
    QKNorm,
    RopeSpec,
)
from ..names import LLAMA, Names
from ..rope import check_ropes, rope_object
from ..spec import EmbeddingSpec, HeadSpec, ModelSpec, NormKind, NormSpec, StackKind, StackSpec
from .experts import expert_layers

T = TypeVar("T")
LayerType = Literal["full_attention", "sliding_attention"]
ActivationName = Literal["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "relu2", "silu", "swish"]
ACTIVATIONS: dict[ActivationName, Activation] = {  # names of the formulas, by which files choose one
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}


class FamilyConfig(msgspec.Struct, kw_only=True):
    """Keys of every family, by Llama's names of them."""

    vocab_size: Vocab
    hidden_size: Width
    intermediate_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Heads
    max_position_embeddings: Positions
    rms_norm_eps: Epsilon

    kind: ClassVar[StackKind] = "decoder"
    own_names: ClassVar[Names] = LLAMA  # of the checkpoint's tensors
    norm_placement: ClassVar[NormPlacement] = "before"
    norm_kind: ClassVar[NormKind] = "rms"
    norm_offset: ClassVar[float] = 0.0  # added to the weights of norms
    qk_norm: ClassVar[QKNorm] = "none"
    comes_with_code: ClassVar[bool] = False  # files name code by `auto_map`; transformers' own class is the model

    @classmethod
    def with_ropes(cls, values: Values) -> Values:
        """Return `values` and the family's rotation, where the file does not say."""
        stated = {key: value for key, value in defaults_of(cls).items() if key in ("rope_theta", "rope_parameters")}
        if rope_object(values)[1]:
            stated.pop("rope_parameters", None)
        return {**values, **{key: value for key, value in stated.items() if not values.get(key)}}

    def spec(self, architecture: str, values: Values) -> ModelSpec:
        """Return the model that `values`, all of the file, describe. Raises ConfigError for contradictory values."""
        layers = self.layers(values)
        stack = StackSpec(self.kind, self.hidden_size, self.embedding(), layers, self.norm())
        model = ModelSpec(
            architecture, (stack,), self.max_position(), self.head(), self.has_pooler(architecture), self.names()
        )
        check_ropes(model.rotations)
        return model

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        """Return the layers in order."""
        by_layer = zip(self.ropes(values), self.windows(), self.feed_forwards(), strict=True)
        norms = self.placement()
        return tuple(LayerSpec(self.attention(rope, window), network, norms) for rope, window, network in by_layer)

    def embedding(self) -> EmbeddingSpec:
        """Return the input."""
        return EmbeddingSpec(self.vocab_size, self.hidden_size)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        """Return the attention of a layer with this rotation and window."""
        heads = self.num_attention_heads, self.kv_heads(), self.head_size()
        return AttentionSpec(*heads, rope, window, qk_norm=self.qk_norm)

    def ropes(self, _: Values) -> Sequence[RopeSpec | None]:
        """Return the rotation of each layer, None where it has none."""
        return self.on_all(None)

    def windows(self) -> Sequence[int]:
        """Return the window of each layer, 0 where it attends to everything."""
        return self.on_all(0)

    def feed_forwards(self) -> Sequence[FeedForward]:
        """Return the feed-forward network of each layer."""
        dense, experts = self.dense(), self.experts()
        return self.on_all(dense) if experts is None else expert_layers(experts, self.chooses(), dense)

    def experts(self) -> ExpertsSpec | None:
        """Return the experts of layers that choose, None where no layer does."""
        return None

    def chooses(self) -> Sequence[bool]:
        """Return whether each layer has experts, in a model that has some."""
        return self.on_all(True)

    def dense(self) -> NetworkSpec:
        """Return the network of layers without experts."""
        return self.network(self.intermediate_size)

    def network(self, size: int) -> NetworkSpec:
        """Return a network of `size`."""
        return NetworkSpec(size)

    def placement(self) -> NormPlacement:
        """Return where the norms of a layer are."""
        return self.norm_placement

    def norm(self) -> NormSpec:
        """Return the kind of norms."""
        return NormSpec(self.norm_kind, self.rms_norm_eps, self.norm_offset)

    def head(self) -> HeadSpec | None:
        """Return the output layer."""
        return None

    def has_pooler(self, _: str) -> bool:
        """Return whether the class of that name has a dense layer over the first token."""
        return False

    def names(self) -> Names:
        """Return the checkpoint's names of tensors."""
        return self.own_names

    def max_position(self) -> int:
        """Return how many tokens a text may have."""
        return self.max_position_embeddings

    def kv_heads(self) -> int:
        """Return the number of key and value heads."""
        return self.num_attention_heads

    def head_size(self) -> int:
        """Return the elements of a head. Raises ConfigError where the heads do not divide the hidden size."""
        heads = self.num_attention_heads
        if self.hidden_size % heads:
            raise refuse("hidden_size", self.hidden_size, f"not a multiple of num_attention_heads, {heads}")
        if self.hidden_size // heads < MIN_HEAD_DIM:
            raise refuse("hidden_size", self.hidden_size, f"less than {MIN_HEAD_DIM} for each of {heads} heads")
        return self.hidden_size // heads

    def on_all(self, value: T) -> tuple[T, ...]:
        """Return `value` for each layer."""
        return (value,) * self.num_hidden_layers

    def require_length(self, types: Sequence[str]) -> None:
        """Raise ConfigError unless `types` names a type for each layer."""
        if len(types) != self.num_hidden_layers:
            raise refuse("layer_types", types, f"must name the type of each of the {self.num_hidden_layers} layers")

    def sliding_windows(self, window: int | None, types: Sequence[LayerType]) -> Sequence[int]:
        """Return the window of each layer by its type. Raises ConfigError unless every layer has one."""
        self.require_length(types)
        slides = [name == "sliding_attention" for name in types]
        if any(slides) and not window:
            raise refuse("sliding_window", window, "layer_types names sliding_attention")
        return [(window or 0) * each for each in slides]
