"""Instructions of the output layer: logits of the sampled rows, in which each core has a part of the vocabulary."""

from __future__ import annotations

from ..device.layout import FLOAT32_BYTES
from ..kernels.dispatch import linear_kernels
from ..kernels.logits import finish_logits
from ..kernels.program import Program
from ..kernels.records import STEP
from ..models.linear import Linear
from ..models.ops import FinishLogits
from .operands import Operands
from .residual_stream import ResidualStream


def add_logits(
    operands: Operands, program: Program, stream: ResidualStream, linear: Linear, finish: FinishLogits | None
) -> None:
    """Add the output layer `linear`, and the scale and cap of its logits if any."""
    at = operands.placement
    buffers, head = at.buffers, at.weights.matrix(linear)
    kernels = linear_kernels(head.weights, at.isa)
    stream.settle(kernels.reduce_norm)
    program.head = len(program)
    inputs = stream.read_sampled(linear.name, kernels.reduce_norm)
    outputs = [buffers.logits.address + core * head.n * FLOAT32_BYTES for core in range(len(at.cores))]
    products = operands.matmul(head, inputs, outputs, buffers.logits_width)
    program.add("logits", kernels.matmul, [each._replace(rows_field=STEP.num_samples) for each in products])
    if finish is not None:
        program.add("finish logits", finish_logits, [operands.finish_logits(finish)])
