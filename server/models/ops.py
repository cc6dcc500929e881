"""Ops of a model's graph. Linear layers are in `linear.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .layer import PLAIN_CHOICE, Activation, ChoiceSpec, LatentAttentionSpec, RopeSpec, Routing, TemperatureSpec
from .linear import Axis, Linear, RowChoice, Vector, WeightRows
from .state_ops import Convolution, GatedNorm, Recurrence
from .stream_ops import StreamFactor, StreamsOp


@dataclass(frozen=True, slots=True)
class Embed:
    """Rows of the embedding, [vocab, hidden], times `scale`."""

    table: WeightRows
    hidden: Axis
    scale: float
    is_shared: bool = False  # the table is another graph's


@dataclass(frozen=True, slots=True)
class AddRows:
    """Add rows of a table, [rows, hidden], to the stream. Positions or token types choose them, from `first` on."""

    table: WeightRows
    hidden: Axis
    by: RowChoice
    first: int = 0


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * (weight + offset), or its division by the root of the size."""

    name: str  # attention norm, ffn norm, final norm
    weight: Vector
    eps: float
    offset: float
    is_length: bool = False  # divided by the root of the size


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """(x - mean(x)) / sqrt(var(x) + eps) * (weight + offset) + bias, without the vectors that are None."""

    name: str
    weight: Vector | None
    bias: Vector | None
    eps: float
    offset: float = 0.0

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Tensors of the op."""
        return tuple(each for each in (self.weight, self.bias) if each is not None)


@dataclass(frozen=True, slots=True)
class StreamNorm:
    """Replace the stream with the normed stream."""

    norm: Norm | LayerNorm


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the stream with the output of the linear layer before."""


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm of each query head and each key head. All heads have the same weights, unless the vectors have axes."""

    query: Vector
    key: Vector
    eps: float
    offset: float
    is_wide: bool = False  # one norm over all heads together
    is_centered: bool = False  # LayerNorm instead
    follows_rope: bool = False
    biases: tuple[Vector, ...] = ()  # of queries and keys

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Tensors of the op."""
        return tuple(dict.fromkeys((self.query, self.key, *self.biases)))


@dataclass(frozen=True, slots=True)
class PlainHeadNorm:
    """RMSNorm of each query head and each key head without weights."""

    eps: float


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotation of query and key heads by position."""

    spec: RopeSpec


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal attention over the cache, to which this token's keys and values are added.

    Attention that is not causal reads all tokens of the same text, on both sides, and has no cache.
    """

    window: int  # tokens, 0 = all before
    scale: float  # of scores
    is_causal: bool = True
    is_chunked: bool = False  # the window begins at a multiple of its size, instead of moving with the token
    cap: float = 0.0  # limit of scores, by a hyperbolic tangent; 0 = none
    sinks: Vector | None = None  # for each query head, the score of a key without a value
    temperature: TemperatureSpec | None = None  # factor of queries by position


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention of queries, the output of the layer before, to all states of the encoder.

    `keys_values` projects these states to keys and values, once for each sequence.
    """

    scale: float  # of scores
    keys_values: Linear


@dataclass(frozen=True, slots=True)
class DistanceBuckets:
    """Biases of scores by the distance of key and query, for the attention of all layers: a tensor [buckets, heads].

    With `is_causal` all buckets are for keys behind the query. With a norm, weight and bias, the tensor has the rows
    [buckets, hidden] of DeBERTa (arXiv 2006.03654, section 3.1).
    """

    weight: Vector
    max_distance: int
    is_causal: bool
    norm: tuple[Vector, ...] = ()

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Tensors of the op."""
        return (self.weight, *self.norm)


@dataclass(frozen=True, slots=True)
class AttentionGate:
    """Output of attention times the sigmoid of a projection of its input, which follows queries, keys and values."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Causal attention of all heads over one row of each token, to which this token's row is added.

    It reads the normed stream. `heads` has of each head the rows that make keys of latents, then those of values.
    """

    spec: LatentAttentionSpec
    down: Linear | None  # projection whose norm `query` reads; None: it reads the stream
    query_norm: Vector | None
    query: Linear
    latent: Linear
    latent_norm: Vector
    heads: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The linear layers in order."""
        return tuple(each for each in (self.down, self.query, self.latent, self.heads) if each is not None)

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Weights of the norms."""
        return (self.latent_norm,) if self.query_norm is None else (self.query_norm, self.latent_norm)


@dataclass(frozen=True, slots=True)
class Gated:
    """activation(gate) * up, where gates may lose the mean and `cutoff` deviations of the row, and count from 0 on."""

    activation: Activation
    cutoff: float | None = None
    size: int = 0  # gates of a row, with a cutoff


@dataclass(frozen=True, slots=True)
class Activate:
    """activation(up)."""

    activation: Activation
    vectors: tuple[Vector, ...] = ()  # learned numbers of the formula: of xIELU alpha_p, alpha_n, beta and eps


Network = tuple[Linear | Gated | Activate, ...]


@dataclass(frozen=True, slots=True)
class Experts:
    """`per_token` of `count` feed-forward networks for each token, weighted by `router`, and one that all tokens take.

    The largest logits win, or scores as `choice` says, the first among equals. Weights are `scaling` times the softmax
    or sigmoids, of all logits or divided by the sum of the chosen ones.
    """

    router: Linear  # a logit for each expert, and one for the gate of `shared` where it has one
    first: Network  # the first expert; the others differ only in names
    count: int
    per_token: int
    shared: Network = ()
    routing: Routing = "softmax_of_chosen"
    weighs_inputs: bool = False
    has_shared_gate: bool = False
    choice: ChoiceSpec = PLAIN_CHOICE
    choice_bias: Vector | None = None  # float32, of each expert's score
    scaling: float = 1.0
    margin: float = 0.0
    router_norm: Norm | None = None  # of what the router reads; None: that of what experts read
    scales: Vector | None = None  # float32, factor of each expert's weight

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Vectors with an element for each expert."""
        return tuple(each for each in (self.choice_bias, self.scales) if each is not None)

    def network(self, i: int) -> Network:
        """Return expert `i`: the first one under other names."""
        if i == 0:
            return self.first
        return tuple(_of_expert(op, i) if isinstance(op, Linear) else op for op in self.first)


def _of_expert(linear: Linear, i: int) -> Linear:
    old, new = ".experts.0.", f".experts.{i}."
    return replace(linear, parts=tuple(replace(part, module=part.module.replace(old, new)) for part in linear.parts))


@dataclass(frozen=True, slots=True)
class Parallel:
    """Branches that read the same value; their outputs are added up."""

    branches: tuple[tuple[Op, ...], ...]


@dataclass(frozen=True, slots=True)
class Add:
    """Add a branch times `scale` to the residual stream, normed first where `norm` is given."""

    norm: Norm | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class NormOutput:
    """Norm the output of a branch, before it is added up with that of others."""

    norm: Norm


@dataclass(frozen=True, slots=True)
class FinishLogits:
    """Logits times `scale`, held below `cap` by a hyperbolic tangent: cap * tanh(x / cap); a cap of 0 is none."""

    scale: float
    cap: float


Op = (
    Embed
    | AddRows
    | StreamsOp
    | Norm
    | LayerNorm
    | StreamNorm
    | Replace
    | Linear
    | HeadNorm
    | PlainHeadNorm
    | Rope
    | Attention
    | CrossAttention
    | DistanceBuckets
    | AttentionGate
    | LatentAttention
    | Convolution
    | Recurrence
    | GatedNorm
    | Gated
    | Activate
    | Experts
    | Parallel
    | Add
    | StreamFactor
    | NormOutput
    | FinishLogits
)
