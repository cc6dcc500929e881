"""Records of a model: all that is needed to size, price and build it.

A model has stacks; a stack has an input, a stream of vectors, and layers (`layer.py`). `families/` fill these records
from a config.json, and `decoder.py` makes the graph of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from .layer import AttentionSpec, ExpertsSpec, LayerInputSpec, LayerSpec, NetworkSpec, QKNorm, RopeSpec, TemperatureSpec
from .linear import HeadCounts
from .names import LLAMA, Names
from .state_layer import StateMixer
from .vision import MAX_PATCHES, VisionSpec

StackKind = Literal["decoder", "encoder"]
NormKind = Literal["rms", "layer", "layer_no_bias", "layer_no_weight"]


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """An input of token ids: rows of tables, which are added up and normed."""

    vocab_size: int  # 0 = there is no table: the stream is given as vectors
    size: int  # elements of a row, which is projected to the stream's size where that is another
    scale: float = 1.0
    num_positions: int = 0  # rows of learned positions; 0 = none
    first_position: int = 0  # row of a text's first token
    num_token_types: int = 0  # rows of learned token types; 0 = none
    has_norm: bool = False
    is_shared: bool = False  # of an encoder: the table is the decoder's
    num_channels: int = 0  # of frames of sound instead of tokens: convolutions make a row of two frames
    is_projected: bool = False  # the sum, normed, is projected to the stream's size: last states have that size
    num_tasks: int = 0  # rows of a table whose first row is added; 0 = none
    joins_states: bool = False  # states of another model, given with the tokens, are projected and added
    joins_normed: bool = False  # the model's own states, given with further tokens, are normed last states too


Input = EmbeddingSpec


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Norms of a stack."""

    kind: NormKind = "rms"
    eps: float = 1e-6
    offset: float = 0.0  # added to the weights of norms: some checkpoints store w of (1 + w)


@dataclass(frozen=True, slots=True)
class StackSpec:
    """Layers one after the other over one stream of vectors."""

    kind: StackKind  # tokens of an encoder attend to both sides
    hidden_size: int
    input: Input
    layers: tuple[LayerSpec, ...]
    norm: NormSpec = NormSpec()
    max_length: int = 0  # of an encoder's text, in tokens; 0: the model's max_position
    names: Names | None = None  # of the stack's tensors; None: the model's
    ends_normed: bool = True  # a norm follows the last layer


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """The output layer over the vocabulary."""

    is_tied: bool = False  # it has the embedding's tensor
    has_bias: bool = False
    scale: float = 1.0  # factor of logits
    cap: float = 0.0  # logits are held below it by a hyperbolic tangent; 0 = none


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model. The last of its stacks makes the states that the output layer and pooling read."""

    architecture: str
    stacks: tuple[StackSpec, ...]
    max_position: int
    head: HeadSpec | None = None  # None: an encoder, or a decoder that only embeds texts
    has_pooler: bool = False  # a dense layer over the first token
    names: Names = LLAMA  # of the checkpoint's tensors
    vision: VisionSpec | None = None  # makes vectors of pictures; None = the model reads texts alone
    num_nextn_layers: int = 0  # layers after the last that predict further tokens; only a predictor is computed
    served_positions: int = 0  # longest context that is computed; 0 = max_position
    why_served: str = ""  # why longer contexts are not

    def __hash__(self) -> int:
        """Hash a few sizes: graphs are looked up by model, and hashing every layer would take longer."""
        return hash((self.architecture, self.num_layers, self.hidden_size, self.vocab_size, self.max_position))

    @property
    def longest(self) -> int:
        """Tokens of the longest context that is computed."""
        return self.served_positions or self.max_position

    @property
    def stack(self) -> StackSpec:
        """The stack whose states are the model's output."""
        return self.stacks[-1]

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        return self.stack.layers

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def hidden_size(self) -> int:
        return self.stack.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.stack.input.vocab_size

    @property
    def state_size(self) -> int:
        """Elements of a token's last state, which the output layer reads."""
        return self.hidden_size if self.stack.input.is_projected else self.stack.input.size

    @property
    def source(self) -> ModelSpec | None:
        """The encoder whose states the decoder's cross attention reads, as a model of its own; None: there is none."""
        if self.layers[0].cross is None:
            return None
        stack = self.stacks[0]
        return replace(
            self,
            stacks=(stack,),
            max_position=stack.max_length or self.max_position,
            head=None,
            names=stack.names or self.names,
        )

    @property
    def is_encoder(self) -> bool:
        """True when a request is one forward pass: no cache and no tokens that follow."""
        return self.stack.kind == "encoder"

    @property
    def has_whole_pictures(self) -> bool:
        """Whether a step computes all tokens of a picture or none, because they see each other."""
        return self.vision is not None and self.vision.span_layers != "none"

    @property
    def vision_encoder(self) -> ModelSpec:
        """The layers that see pictures, as a model of its own."""
        assert self.vision is not None
        vision, of_vectors = self.vision, EmbeddingSpec(0, self.vision.hidden_size)
        norm = NormSpec("rms" if vision.is_rms else "layer", vision.eps)
        stack = StackSpec(
            "encoder", vision.hidden_size, of_vectors, vision.layers, norm, ends_normed=vision.ends_normed
        )
        return ModelSpec(f"vision encoder of {self.architecture}", (stack,), MAX_PATCHES, names=vision.names)

    @property
    def is_tied(self) -> bool:
        """True when the output layer has the embedding's tensor."""
        return self.head is not None and self.head.is_tied

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """Distinct mixers with keys and values, in the order of the layers. They may differ in heads and in sizes."""
        return tuple(dict.fromkeys(self.attention_layers))

    @property
    def attention_layers(self) -> tuple[AttentionSpec, ...]:
        """Mixers with keys and values, one for each layer that has such a mixer."""
        return tuple(layer.mixer for layer in self.layers if isinstance(layer.mixer, AttentionSpec))

    @property
    def state_mixer(self) -> StateMixer | None:
        """The mixer of all layers that keep a state, None when no layer does."""
        return next((layer.state for layer in self.layers if layer.state is not None), None)

    @property
    def layer_input(self) -> LayerInputSpec | None:
        """The inputs by token that all layers have, None where there are none."""
        return self.layers[0].input

    @property
    def input_size(self) -> int:
        """Elements of a token's inputs of all layers."""
        return 0 if self.layer_input is None else self.num_layers * self.layer_input.network.size

    @property
    def num_streams(self) -> int:
        """Streams beside the one that goes through the layers, such as states that are given; 0 = none."""
        streams = self.layers[0].streams
        return int(self.stack.input.joins_states) if streams is None else streams.count

    @property
    def has_sparse_gates(self) -> bool:
        """True when gates of some network count as 0 below a quantile."""
        return any(network.sparsity for network in self.networks())

    @property
    def attention(self) -> AttentionSpec:
        """Attention of the first layer that has keys and values."""
        return self.attentions[0]

    @property
    def num_heads(self) -> int:
        return self.attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.attention.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.attention.head_dim

    @property
    def distinct_ropes(self) -> tuple[RopeSpec | None, ...]:
        """Distinct rotations in the order of the layers; None = a layer without one."""
        return tuple(dict.fromkeys(each.rope for each in self.attentions))

    @property
    def rotations(self) -> tuple[tuple[RopeSpec | None, int], ...]:
        """Distinct rotations with the size of the heads that they turn."""
        return tuple(dict.fromkeys((each.rope, each.rotated_size) for each in self.attentions))

    @property
    def qk_norms(self) -> frozenset[QKNorm]:
        """Kinds of norms of query and key heads."""
        return frozenset(each.qk_norm for each in self.attentions)

    @property
    def unit_sizes(self) -> tuple[int, ...]:
        """Sizes of heads and states that are normed without weights."""
        heads = [each.head_dim for each in self.attentions if each.qk_norm == "unweighted" or each.has_value_norm]
        states = [self.hidden_size] * (self.stack.norm.kind == "layer_no_weight")
        return tuple(dict.fromkeys([*heads, *states]))

    @property
    def slopes(self) -> tuple[tuple[tuple[float, ...], HeadCounts], ...]:
        """Distinct slopes of query heads, and the heads, in the order of the layers."""
        return tuple(dict.fromkeys((each.slopes, each.heads) for each in self.attentions if each.slopes))

    @property
    def temperatures(self) -> tuple[TemperatureSpec, ...]:
        """Distinct temperatures in the order of the layers."""
        found = (each.temperature for each in self.attentions)
        return tuple(dict.fromkeys(temperature for temperature in found if temperature is not None))

    @property
    def experts(self) -> ExpertsSpec | None:
        """Experts of all layers that have some, None for a model without experts."""
        found = (layer.feed_forward for layer in self.layers)
        return next((each for each in found if isinstance(each, ExpertsSpec)), None)

    def networks(self) -> Iterator[NetworkSpec]:
        """Yield the feed-forward networks of all layers, an expert once for all of its layer."""
        for layer in self.layers:
            yield from layer.networks

    @property
    def widest_intermediate(self) -> int:
        """Size of the largest feed-forward network."""
        return max(network.size for network in self.networks())

    def with_layers(self, layers: tuple[LayerSpec, ...]) -> ModelSpec:
        """Return this model with other layers in its last stack."""
        return self._with_stack(replace(self.stack, layers=layers))

    def with_vocabulary(self, vocab_size: int) -> ModelSpec:
        """Return this model with another size of the vocabulary."""
        return self._with_stack(replace(self.stack, input=replace(self.stack.input, vocab_size=vocab_size)))

    def _with_stack(self, stack: StackSpec) -> ModelSpec:
        return replace(self, stacks=(*self.stacks[:-1], stack))


def without_output_layer(spec: ModelSpec) -> ModelSpec:
    """Return the part of a model that makes the last states of its tokens."""
    return replace(spec, head=None, has_pooler=False)
