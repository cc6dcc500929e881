"""A model as a graph of typed ops: what is computed, in order, and which tensors of a checkpoint it takes.

One value flows. `Embed` begins the residual stream; `Norm` reads the stream; every other op of a layer reads what the
op before it leaves, until `Add` puts that on the stream. Linear layers name the *axes* they go from and to, and an axis
is what tensor parallelism divides, so names, shards, bytes, programs and costs all follow from the graph
(server/placement, server/cost, server/engine). Numbers and names only: no bytes, no cores, no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from server.models.spec import Activation, RopeSpec

AxisName = Literal["hidden", "query", "kv", "ffn", "vocab", "experts"]


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
class Norm:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * (weight + offset)."""

    name: str  # attention norm, ffn norm, final norm
    weight: Vector
    eps: float
    offset: float


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMSNorm of each query head and each key head."""

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
    """Causal attention of the heads over the cache, which takes this token's keys and values."""

    window: int  # tokens, 0 = all before
    scale: float  # of scores


@dataclass(frozen=True, slots=True)
class Gated:
    """activation(gate) * up."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class Activate:
    """activation(up)."""

    activation: Activation


@dataclass(frozen=True, slots=True)
class Experts:
    """`per_token` of `count` feed-forward networks for each token, weighted by `router`."""

    router: Linear
    networks: tuple[tuple[Linear | Gated | Activate, ...], ...]  # of each expert
    per_token: int


@dataclass(frozen=True, slots=True)
class Add:
    """Puts a branch on the residual stream, normed before where `norm` is given."""

    norm: Norm | None = None


Op = Embed | Norm | Linear | HeadNorm | Rope | Attention | Gated | Activate | Experts | Add


@dataclass(frozen=True, slots=True)
class Graph:
    """A decoder: embed, the layers, the final norm, and the output layer."""

    embed: Embed
    layers: tuple[tuple[Op, ...], ...]
    final_norm: Norm
    head: Linear
    is_tied: bool  # the output layer has the embedding's tensor

    def ops(self) -> Iterator[Op]:
        """All ops in order, those of experts after the op that holds them."""
        yield self.embed
        for layer in self.layers:
            yield from layer_ops(layer)
        yield from (self.final_norm, self.head)


def layer_ops(layer: tuple[Op, ...]) -> Iterator[Op]:
    """The ops of a layer, those of experts after the op that holds them."""
    for op in layer:
        yield op
        if isinstance(op, Experts):
            yield op.router
            for network in op.networks:
                yield from network


def linears(graph: Graph) -> Iterator[Linear]:
    """All linear layers in order, the output layer last."""
    return (op for op in graph.ops() if isinstance(op, Linear))
