"""The tensors of a checkpoint that a model takes: names and shapes. Linear layers are stored [outputs, inputs]."""

from __future__ import annotations

import math
from collections.abc import Iterator

from server.models.decoder import EMBEDDING, LM_HEAD, decoder_graph
from server.models.graph import Graph, linears
from server.models.ops import Add, AddRows, Embed, HeadNorm, LayerNorm, Linear, Norm, Op, StreamNorm
from server.models.spec import ModelSpec

Shape = tuple[int, ...]

EMBEDDING_WEIGHT, LM_HEAD_WEIGHT = f"{EMBEDDING}.weight", f"{LM_HEAD}.weight"


def tensor_shapes(model: ModelSpec) -> dict[str, Shape]:
    """Tensors that the model needs, in the order it is used. A tied output layer is not among them."""
    graph = decoder_graph(model)
    shapes: dict[str, Shape] = {}
    for op in graph.ops():
        if not _is_tied_head(op, graph):
            for name, shape in op_tensors(op):
                rows, *rest = shape  # a tensor may be the parts of several ops, one after the other
                shapes[name] = (rows + shapes[name][0] if name in shapes else rows, *rest)
    return shapes


def op_tensors(op: Op) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of what one op takes."""
    match op:
        case Embed(part=part, hidden=hidden) | AddRows(part=part, hidden=hidden):
            yield part.weight, (part.outputs.size, hidden.size)
        case Linear():
            for part in op.parts:
                yield part.weight, (part.outputs.size, op.inputs.size)
            if op.has_bias:
                yield from ((part.bias, (part.outputs.size,)) for part in op.parts)
        case Norm(weight=weight):
            yield weight.tensor, (weight.size,)
        case LayerNorm(weight=weight, bias=bias):
            yield from ((vector.tensor, (vector.size,)) for vector in (weight, bias) if vector is not None)
        case HeadNorm(query=query, key=key):
            yield from ((vector.tensor, (vector.size,)) for vector in (query, key))
        case Add(norm=Norm() as norm) | StreamNorm(norm=norm):
            yield from op_tensors(norm)


def _is_tied_head(op: Op, graph: Graph) -> bool:
    return graph.is_tied and graph.has_head and op is graph.head


def is_known_extra(name: str, model: ModelSpec) -> bool:
    """Tensors that old checkpoints carry and that follow from the rest: rope frequencies, a tied output layer."""
    return name.endswith(".rotary_emb.inv_freq") or (model.is_tied and name == LM_HEAD_WEIGHT)


def linear_modules(model: ModelSpec) -> list[str]:
    """Names of the modules that are matrices with a tensor of their own; a tied output layer is not among them."""
    graph = decoder_graph(model)
    own = (linear for linear in linears(graph) if not _is_tied_head(linear, graph))
    return list(dict.fromkeys(module for linear in own for module in linear.modules))


def scale_name(weight: str) -> str:
    """The tensor with the scales of a quantized `weight`, as compressed-tensors calls it."""
    return f"{weight}_scale"


def num_params(model: ModelSpec) -> int:
    """Weights of the model, norms and biases included; a tied output layer is counted once."""
    graph = decoder_graph(model)
    return sum(
        math.prod(shape) * count
        for op, count in graph.counted()
        if not _is_tied_head(op, graph)
        for _, shape in op_tensors(op)
    )
