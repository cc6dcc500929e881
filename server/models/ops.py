"""The ops that a model is a graph of, with the axes that they go from and to. Numbers and names only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from neuronserve.server.models.layer import Activation, RopeSpec, Routing, TemperatureSpec

AxisName = Literal["hidden", "query", "kv", "ffn", "vocab", "experts", "rows"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension: so many units that stay together, of so many elements each."""

    name: AxisName
    units: int  # heads for query and kv, elements otherwise
    unit_size: int = 1
    is_of_expert: bool = False  # ffn: of one network of several, which expert parallelism leaves whole

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.units * self.unit_size

    @property
    def is_split(self) -> bool:
        """True when the cores of a tensor-parallel group have a part each."""
        return self.name in ("query", "kv", "ffn", "vocab")


@dataclass(frozen=True, slots=True)
class Vector:
    """A tensor of one dimension. A core has its units of `axis`, or the whole where there is none."""

    tensor: str
    size: int
    axis: Axis | None = None
    is_folded: bool = False  # stored with two: [units, unit_size] of its axis

    @property
    def shape(self) -> tuple[int, ...]:
        """As it is stored."""
        return (self.axis.units, self.axis.unit_size) if self.axis is not None and self.is_folded else (self.size,)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a module's weight, [outputs, inputs], and of its bias, from `first_row` on.

    They follow one another, unless units of several parts take turns: then the next unit begins `unit_stride` rows on.
    """

    module: str
    outputs: Axis
    first_row: int = 0
    unit_stride: int = 0  # 0 = the size of a unit
    is_transposed: bool = False  # the weight is stored [inputs, outputs]
    tensor: str | None = None  # of the weight, where the module has none of its own

    @property
    def weight(self) -> str:
        """Name of the weight's tensor."""
        return self.tensor or f"{self.module}.weight"

    @property
    def bias(self) -> str:
        """Name of the bias's tensor."""
        return f"{self.module}.bias"


@dataclass(frozen=True, slots=True)
class Linear:
    """A product with the weights of its parts, whose outputs stand one after the other."""

    name: str  # what it computes: qkv, o, gate_up, down, lm_head
    parts: tuple[Part, ...]
    inputs: Axis
    has_bias: bool = False

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules in the checkpoint."""
        return tuple(part.module for part in self.parts)

    @property
    def is_interleaved(self) -> bool:
        """True when gate and up are computed together, to be multiplied with each other."""
        return len(self.parts) == 2 and all(part.outputs.name == "ffn" for part in self.parts)

    @property
    def is_of_expert(self) -> bool:
        """True for a layer of one network of several."""
        return self.inputs.is_of_expert or self.parts[0].outputs.is_of_expert

    @property
    def is_router(self) -> bool:
        """True when the outputs are logits of experts."""
        return self.parts[0].outputs.name == "experts"

    @property
    def is_row_parallel(self) -> bool:
        """True when the inputs are what is split, so that each core has a partial sum of all outputs."""
        return self.inputs.is_split

    @property
    def num_weights(self) -> int:
        """Weights without the bias."""
        return sum(part.outputs.size for part in self.parts) * self.inputs.size


@dataclass(frozen=True, slots=True)
class Embed:
    """Rows of the embedding, [vocab, hidden], times `scale`."""

    part: Part
    hidden: Axis
    scale: float


@dataclass(frozen=True, slots=True)
class AddRows:
    """Adds to the stream the rows of a table, [rows, hidden], that positions or token types choose, from `first` on."""

    part: Part
    hidden: Axis
    by: Literal["positions", "token_types"]
    first: int = 0


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * (weight + offset)."""

    name: str  # attention norm, ffn norm, final norm
    weight: Vector
    eps: float
    offset: float


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias, without a bias where it is None."""

    name: str
    weight: Vector
    bias: Vector | None
    eps: float


@dataclass(frozen=True, slots=True)
class StreamNorm:
    """Puts the normed stream in the stream's place."""

    norm: Norm | LayerNorm


@dataclass(frozen=True, slots=True)
class Replace:
    """Puts what the linear layer before leaves in the stream's place."""


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm of each query head and each key head, whose weights are the same for all unless they have their axes."""

    query: Vector
    key: Vector
    eps: float
    offset: float
    is_wide: bool = False  # of all heads together
    is_centered: bool = False  # LayerNorm without a bias instead


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
    """Causal attention of the heads over the cache, which takes this token's keys and values.

    Not causal: over all tokens of the same text, on both sides, without a cache.
    """

    window: int  # tokens, 0 = all before
    scale: float  # of scores
    is_causal: bool = True
    is_chunked: bool = False  # the window begins at a multiple of its size, instead of moving with the token
    cap: float = 0.0  # of scores, by a hyperbolic tangent; 0 = none
    sinks: Vector | None = None  # of each query head the score of a key without a value
    temperature: TemperatureSpec | None = None  # of queries, by position


@dataclass(frozen=True, slots=True)
class AttentionGate:
    """Attended values times the sigmoid of a projection of what attention read."""

    projection: Linear


@dataclass(frozen=True, slots=True)
class Gated:
    """activation(gate) * up."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class Activate:
    """activation(up)."""

    activation: Activation


Network = tuple[Linear | Gated | Activate, ...]


@dataclass(frozen=True, slots=True)
class Experts:
    """`per_token` of `count` feed-forward networks for each token, weighted by `router`, and one that all take.

    The largest logits win, of equal ones the first. Weights are the softmax of all, of those chosen, or sigmoids.
    """

    router: Linear  # a logit for each expert, and one for the gate of `shared` where it has one
    first: Network  # the first expert; the others differ in names alone
    count: int
    per_token: int
    shared: Network = ()
    routing: Routing = "softmax_of_chosen"
    weighs_inputs: bool = False
    has_shared_gate: bool = False

    def network(self, i: int) -> Network:
        """Expert `i`: the first one, with the names of this."""
        if i == 0:
            return self.first
        return tuple(_of_expert(op, i) if isinstance(op, Linear) else op for op in self.first)


def _of_expert(linear: Linear, i: int) -> Linear:
    old, new = ".experts.0.", f".experts.{i}."
    return replace(linear, parts=tuple(replace(part, module=part.module.replace(old, new)) for part in linear.parts))


@dataclass(frozen=True, slots=True)
class Parallel:
    """Branches that read the same value; what they leave is added up."""

    branches: tuple[tuple[Op, ...], ...]


@dataclass(frozen=True, slots=True)
class Add:
    """Puts a branch times `scale` on the residual stream, normed before where `norm` is given."""

    norm: Norm | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class FinishLogits:
    """Logits times `scale`, held below `cap` by a hyperbolic tangent: cap * tanh(x / cap); a cap of 0 is none."""

    scale: float
    cap: float


Op = (
    Embed
    | AddRows
    | Norm
    | LayerNorm
    | StreamNorm
    | Replace
    | Linear
    | HeadNorm
    | PlainHeadNorm
    | Rope
    | Attention
    | AttentionGate
    | Gated
    | Activate
    | Experts
    | Parallel
    | Add
    | FinishLogits
)
