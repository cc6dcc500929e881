"""The instruction that begins the residual stream."""

from __future__ import annotations

import ml_dtypes

from ..device.layout import group_shift
from ..kernels.dispatch import linear_kernels
from ..kernels.isa.jit import Kernel
from ..kernels.program import Program
from ..kernels.records import EmbedOperands
from ..models.graph import Graph
from .operands import Placement, address_of, float_bits


def add_embedding(at: Placement, program: Program, graph: Graph, embed_rows: Kernel) -> None:
    """Add the embedding. Its scale is rounded as the activations are, as in training."""
    op, weights, hidden, width = graph.embed, at.weights, at.buffers.hidden.address, at.buffers.widths.hidden
    scale = float_bits(op.scale if at.dtype == "float32" else float(ml_dtypes.bfloat16(op.scale)))
    if weights.embedding is not None:
        kernel, shift = embed_rows, 0
        tables = [(part.address, 0, 0) for part in weights.embedding]
    else:
        head = weights.matrix(graph.head)
        kernel, shift = linear_kernels(head.weights, at.isa).embed_tiles, group_shift(head.weights, head.groups)
        tables = [(part.tiles.address, address_of(part.scales), address_of(part.sums)) for part in head.shards]
    operands = [
        EmbedOperands(table, scales, hidden, at.shard.vocab_per_core, width, scale, shifts, shift)
        for table, scales, shifts in tables
    ]
    program.add("embed", kernel, operands)
