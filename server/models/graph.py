"""A model as a graph of typed ops: what is computed, in order, and which tensors of a checkpoint it takes.

One value flows. `Embed` begins the residual stream; a norm reads the stream; every other op of a layer reads the output
of the op before (the stream, where that is `Add`, `StreamNorm` or `Replace`), until `Add` adds it to the stream.
Linear layers name the *axes* they go from and to, and tensor parallelism divides axes, so names, shards, bytes,
programs and costs all follow from the graph (server/placement, server/cost, server/engine). Numbers and names only: no
bytes, no cores, no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..errors import DeviceError
from .linear import Linear
from .ops import CrossAttention, Embed, Experts, LatentAttention, Op, Parallel

_Op = TypeVar("_Op")


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that differ only in the names of their tensors."""

    indices: tuple[int, ...]
    ops: tuple[Op, ...]  # of the first layer
    is_shared: bool = False  # all have the tensors of the first

    @property
    def count(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, slots=True)
class Graph:
    """A model: `embed`, `prelude`, the layers, and `tail`, which reads the last stream."""

    embed: Embed
    layers: tuple[tuple[Op, ...], ...]
    tail: tuple[Op, ...]  # the final norm, and the output layer or the pooler
    is_tied: bool  # the output layer has the embedding's tensor, or there is no embedding
    prelude: tuple[Op, ...] = ()  # changes the embeddings
    groups: tuple[LayerGroup, ...] = ()

    @property
    def has_head(self) -> bool:
        """True when there is an output layer over the vocabulary."""
        return any(isinstance(op, Linear) and is_output(op) for op in self.tail)

    @property
    def head(self) -> Linear:
        """The output layer. Raises DeviceError for a model without one."""
        for op in self.tail:
            if isinstance(op, Linear) and is_output(op):
                return op
        raise DeviceError("the model has no output layer: it encodes texts and generates none")

    def ops(self) -> Iterator[Op]:
        """Yield all ops in order, the ops of experts and branches after the op that holds them.

        Layers that share their tensors are one.
        """
        yield from (self.embed, *self.prelude)
        for i in self.stored_layers():
            yield from layer_ops(self.layers[i])
        yield from self.tail

    def stored_layers(self) -> list[int]:
        """Return the layers in order, those that share their tensors once."""
        return sorted(i for group in self.groups for i in group.indices[: 1 if group.is_shared else None])

    def counted(self, by_name: bool = False, is_computed: bool = False) -> Iterator[tuple[Op, int]]:
        """Yield each op once for all that differ from it only in names, with their number: enough for sums.

        With `by_name`, yield all ops one by one. Layers that share their tensors are one, unless `is_computed`.
        """
        if by_name:
            yield from ((op, 1) for op in self.ops())
            return
        yield from ((op, 1) for op in (self.embed, *self.prelude))
        for group in self.groups:
            times = 1 if group.is_shared and not is_computed else group.count
            yield from ((op, count * times) for op, count in counted_ops(group.ops))
        yield from ((op, 1) for op in self.tail)


def is_output(linear: Linear) -> bool:
    """True when the outputs of `linear` are the logits of the vocabulary."""
    return linear.parts[0].outputs.name == "vocab"


def flat_ops(layer: tuple[Op, ...]) -> Iterator[Op]:
    """Yield the ops of a layer, the ops inside an op after it. Experts stay closed."""
    for op in layer:
        yield op
        if isinstance(op, Parallel):
            for branch in op.branches:
                yield from flat_ops(branch)
        elif isinstance(op, CrossAttention):
            yield op.keys_values
        elif isinstance(op, LatentAttention):
            yield from op.linears


def layer_ops(layer: tuple[Op, ...]) -> Iterator[Op]:
    """Yield `flat_ops`, and the ops of each expert after the op that holds them."""
    for op in flat_ops(layer):
        yield op
        if isinstance(op, Experts):
            yield from (each for each in (op.router, op.router_norm) if each is not None)
            for i in range(op.count):
                yield from op.network(i)
            yield from op.shared


def counted_ops(layer: tuple[Op, ...]) -> Iterator[tuple[Op, int]]:
    """Yield `layer_ops` with the number of each, one expert for all."""
    for op in flat_ops(layer):
        yield op, 1
        if isinstance(op, Experts):
            yield from ((each, 1) for each in (op.router, op.router_norm) if each is not None)
            yield from ((each, op.count) for each in op.first)
            yield from ((each, 1) for each in op.shared)


def linears(graph: Graph) -> Iterator[Linear]:
    """Return all linear layers in order, the output layer last."""
    return (op for op in graph.ops() if isinstance(op, Linear))


def last_op(ops: Sequence[Op], kind: type[_Op]) -> _Op | None:
    """Return the last op of a kind."""
    return next((op for op in reversed(ops) if isinstance(op, kind)), None)
