"""The embedding as an instruction: rows of a table, or of the output layer's tiles if it is tied."""

from __future__ import annotations

import ml_dtypes

from ..device.layout import group_shift
from ..kernels.dispatch import SharedKernels, linear_kernels
from ..kernels.program import Program
from ..kernels.records import EmbedOperands
from ..models.decoder import decoder_graph
from .operands import Placement, address_of, float_bits


def embed(at: Placement, program: Program, shared: SharedKernels) -> None:
    """Add the embedding of a placed model. Its scale is rounded as the activations are, as in training."""
    graph, buffers = decoder_graph(at.spec), at.buffers
    scale = float_bits(graph.embed.scale if at.dtype == "float32" else float(ml_dtypes.bfloat16(graph.embed.scale)))
    if at.weights.embedding is not None:
        kernel, shift = shared.embed_rows, 0
        tables = [(part.address, 0, 0) for part in at.weights.embedding]
    else:
        head = at.weights.matrix(graph.head)
        kernel, shift = linear_kernels(head.weights, at.isa).embed_tiles, group_shift(head.weights, head.groups)
        tables = [(part.tiles.address, address_of(part.scales), address_of(part.sums)) for part in head.shards]
    hidden, width = buffers.hidden.address, buffers.widths.hidden
    operands = [
        EmbedOperands(table, scales, hidden, at.shard.vocab_per_core, width, scale, shifts, shift)
        for table, scales, shifts in tables
    ]
    program.add("embed", kernel, operands)
