"""Tensors of a checkpoint that a model takes: names and shapes. Matrices are [outputs, inputs] in most families."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .decoder import decoder_graph, graphs
from .graph import Graph, linears
from .linear import Linear, Vector
from .ops import (
    Activate,
    Add,
    AddRows,
    Attention,
    DistanceBuckets,
    Embed,
    Experts,
    HeadNorm,
    LatentAttention,
    LayerNorm,
    Norm,
    NormOutput,
    Op,
    StreamNorm,
)
from .spec import ModelSpec
from .state_ops import Convolution, GatedNorm, Recurrence
from .stream_ops import ChangeStreams, LayerInputs, StreamFactor

Shape = tuple[int, ...]
TENSORS = (
    Activate,
    ChangeStreams,
    Experts,
    LayerNorm,
    HeadNorm,
    LatentAttention,
    Convolution,
    Recurrence,
    GatedNorm,
)


def tensor_shapes(model: ModelSpec) -> dict[str, Shape]:
    """Return the tensors that the model needs, in the order of use. A tied output layer is not among them."""
    shapes: dict[str, Shape] = {}
    transposed: set[str] = set()
    for graph, op in ((each, op) for each in graphs(model) for op in each.ops()):
        for name, shape in _own_tensors(op, graph):
            rows, *rest = shape  # a tensor may hold several parts
            if not rows:
                continue  # the embedding of a model whose stream is given
            shapes[name] = (rows + shapes[name][0] if name in shapes else rows, *rest)
        if isinstance(op, Linear):
            transposed.update(part.weight for part in op.parts if part.is_transposed)
    return {name: shape[::-1] if name in transposed else shape for name, shape in shapes.items()}


def op_tensors(op: Op) -> Iterator[tuple[str, Shape]]:
    """Yield names and shapes of the tensors of one op; a matrix as [outputs, inputs], however it is stored."""
    match op:
        case Embed(table=table, hidden=hidden, is_shared=False) | AddRows(table=table, hidden=hidden):
            yield table.weight, (table.outputs.size, hidden.size)
        case Linear():
            for part in (parts := dict.fromkeys(op.parts)):  # values may be keys
                if not op.first_column:  # the layer with the first columns names the whole tensor
                    yield part.weight, (part.outputs.size, op.row_length or op.inputs.size)
            if op.has_bias:
                yield from ((part.bias, (part.outputs.size,)) for part in parts if not part.lacks_bias)
        case Add(norm=Norm() as norm) | StreamNorm(norm=norm) | NormOutput(norm=norm):
            yield from op_tensors(norm)
        case _:
            yield from ((vector.tensor, vector.shape) for vector in op_vectors(op))


def op_vectors(op: Op) -> tuple[Vector, ...]:
    """Return the tensors of one op that are no matrices and no tables."""
    match op:
        case LayerInputs(norm=vector) | Norm(weight=vector) | StreamFactor(factor=Vector() as vector):
            return (vector,)
        case Attention(sinks=Vector() as vector):
            return (vector,)
        case _ if isinstance(op, TENSORS):
            return op.vectors
        case DistanceBuckets():
            return op.vectors
        case _:
            return ()


def _own_tensors(op: Op, graph: Graph) -> Iterator[tuple[str, Shape]]:
    """Yield the tensors of an op, of a tied output layer those that the embedding does not have."""
    tensors = op_tensors(op)
    return (each for each in tensors if each[0] != graph.embed.table.weight) if _is_tied_head(op, graph) else tensors


def _is_tied_head(op: Op, graph: Graph) -> bool:
    return graph.is_tied and graph.has_head and op is graph.head


def embedding_weight(model: ModelSpec) -> str:
    """Return the name of the embedding's tensor."""
    return decoder_graph(model).embed.table.weight


def tied_weight(model: ModelSpec) -> str | None:
    """Return the tensor that a tied output layer would have; None where the output layer is not tied."""
    graph = decoder_graph(model)
    return f"{graph.head.modules[0]}.weight" if graph.is_tied and graph.has_head else None


def linear_modules(model: ModelSpec) -> list[str]:
    """Return the names of modules whose matrix is a tensor of its own; a tied output layer is not among them."""
    own = (linear for graph in graphs(model) for linear in linears(graph) if not _is_tied_head(linear, graph))
    return list(dict.fromkeys(module for linear in own for module in linear.modules))


def scale_name(weight: str) -> str:
    """Return the tensor with the scales of a quantized `weight`, by the naming of compressed-tensors."""
    return f"{weight}_scale"


def num_params(model: ModelSpec) -> int:
    """Return the number of weights, norms and biases included; a tied output layer is counted once."""
    return sum(
        math.prod(shape) * count
        for graph in graphs(model)
        for op, count in graph.counted()
        for _, shape in _own_tensors(op, graph)
    )
