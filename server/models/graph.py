"""A model as a graph of typed ops: what is computed, in order, and which tensors of a checkpoint it takes.

One value flows. `Embed` begins the residual stream; a norm reads the stream; every other op of a layer reads what the
op before it leaves (the stream, where that is `Add` or `StreamNorm`), until `Add` puts that on the stream. Linear
layers name the *axes* they go from and to, and an axis is what tensor parallelism divides, so names, shards, bytes,
programs and costs all follow from the graph (server/placement, server/cost, server/engine). Numbers and names only: no
bytes, no cores, no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from server.errors import DeviceError
from server.models.spec import Activation, RopeSpec

AxisName = Literal["hidden", "query", "kv", "ffn", "vocab", "experts", "rows"]


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension: so many units that stay together, of so many elements each."""

    name: AxisName
    units: int  # heads for query and kv, elements otherwise
    unit_size: int = 1

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
    """A tensor of one dimension."""

    tensor: str
    size: int


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [first_row, first_row + outputs.size) of a module's weight, [outputs, inputs], and of its bias."""

    module: str
    outputs: Axis
    first_row: int = 0
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
    """Adds to the stream the rows of a table, [rows, hidden], that positions or token types choose."""

    part: Part
    hidden: Axis


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
class HeadNorm:
    """RMSNorm of each query head and each key head; of all heads together where the weights are as long as all."""

    query: Vector
    key: Vector
    eps: float
    offset: float


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
    """`per_token` of `count` feed-forward networks for each token, weighted by `router`, and one that all take."""

    router: Linear
    first: Network  # the first expert; the others differ in names alone
    count: int
    per_token: int
    shared: Network = ()

    def network(self, i: int) -> Network:
        """Expert `i`: the first one, with the names of this."""
        if i == 0:
            return self.first
        return tuple(
            _renamed(op, ".experts.0.", f".experts.{i}.") if isinstance(op, Linear) else op for op in self.first
        )


def _renamed(linear: Linear, old: str, new: str) -> Linear:
    return replace(linear, parts=tuple(replace(part, module=part.module.replace(old, new)) for part in linear.parts))


@dataclass(frozen=True, slots=True)
class Parallel:
    """Branches that read the same value; what they leave is added up."""

    branches: tuple[tuple[Op, ...], ...]


@dataclass(frozen=True, slots=True)
class Add:
    """Puts a branch on the residual stream, normed before where `norm` is given."""

    norm: Norm | None = None


Op = (
    Embed
    | AddRows
    | Norm
    | LayerNorm
    | StreamNorm
    | Linear
    | HeadNorm
    | Rope
    | Attention
    | AttentionGate
    | Gated
    | Activate
    | Experts
    | Parallel
    | Add
)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that are alike but for the names of their tensors."""

    indices: tuple[int, ...]
    ops: tuple[Op, ...]  # of the first of them

    @property
    def count(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, slots=True)
class Graph:
    """A model: embed, what is done to embeddings, the layers, and what is done to the stream in the end."""

    embed: Embed
    layers: tuple[tuple[Op, ...], ...]
    tail: tuple[Op, ...]  # of a decoder: the final norm and the output layer
    is_tied: bool  # the output layer has the embedding's tensor
    prelude: tuple[Op, ...] = ()
    groups: tuple[LayerGroup, ...] = ()

    @property
    def has_head(self) -> bool:
        """True when there is an output layer over the vocabulary."""
        return any(isinstance(op, Linear) and op.parts[0].outputs.name == "vocab" for op in self.tail)

    @property
    def head(self) -> Linear:
        """The output layer. Raises DeviceError for a model without one."""
        for op in self.tail:
            if isinstance(op, Linear) and op.parts[0].outputs.name == "vocab":
                return op
        raise DeviceError("the model has no output layer: it encodes texts and generates none")

    @property
    def final_norm(self) -> Norm:
        """The norm before the output layer. Raises DeviceError where it is none that a kernel computes."""
        for op in self.tail:
            if isinstance(op, Norm):
                return op
        raise DeviceError("no kernel computes the model's final norm, only RMSNorm")

    def ops(self) -> Iterator[Op]:
        """All ops in order, those of experts and branches after the op that holds them."""
        yield from (self.embed, *self.prelude)
        for layer in self.layers:
            yield from layer_ops(layer)
        yield from self.tail

    def counted(self, by_name: bool = False) -> Iterator[tuple[Op, int]]:
        """Each op once for all those that differ from it in names alone, with their number: what sums need.

        With `by_name`, where names make a difference, all of them one by one.
        """
        if by_name:
            yield from ((op, 1) for op in self.ops())
            return
        yield from ((op, 1) for op in (self.embed, *self.prelude))
        for group in self.groups:
            yield from ((op, count * group.count) for op, count in counted_ops(group.ops))
        yield from ((op, 1) for op in self.tail)


def layer_ops(layer: tuple[Op, ...]) -> Iterator[Op]:
    """The ops of a layer, those of experts and branches after the op that holds them."""
    for op in layer:
        yield op
        match op:
            case Parallel(branches=branches):
                for branch in branches:
                    yield from layer_ops(branch)
            case AttentionGate(projection=projection):
                yield projection
            case Experts():
                yield op.router
                for i in range(op.count):
                    yield from op.network(i)
                yield from op.shared


def counted_ops(layer: tuple[Op, ...]) -> Iterator[tuple[Op, int]]:
    """As `layer_ops`, but one expert for all, with the number of each op."""
    for op in layer:
        match op:
            case Experts():
                yield from ((op, 1), (op.router, 1))
                yield from ((each, op.count) for each in op.first)
                yield from ((each, 1) for each in op.shared)
            case Parallel(branches=branches):
                yield op, 1
                for branch in branches:
                    yield from counted_ops(branch)
            case _:
                yield from ((each, 1) for each in layer_ops((op,)))


def linears(graph: Graph) -> Iterator[Linear]:
    """All linear layers in order, the output layer last."""
    return (op for op in graph.ops() if isinstance(op, Linear))
