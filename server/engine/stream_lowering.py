"""Instructions for inputs of layers by token."""

from __future__ import annotations

from collections.abc import Sequence

from ..device.layout import FLOAT32_BYTES
from ..kernels.dispatch import linear_kernels
from ..kernels.layer_inputs import (
    LayerInputOperands,
    LayerInputsOperands,
    layer_inputs_bf16,
    layer_inputs_f32,
    multiply_input,
)
from ..kernels.program import Program
from ..models.graph import last_op
from ..models.linear import Linear
from ..models.ops import LayerInput, LayerInputs, Op
from .operands import Operands, PanelAddresses, Placement, addresses_of, float_bits
from .residual_stream import ResidualStream

InputOp = LayerInputs | LayerInput


class StreamLowering:
    """Adds these instructions to one program."""

    def __init__(self, placement: Placement, program: Program, stream: ResidualStream, operands: Operands) -> None:
        self._at, self._program, self._stream, self._operands = placement, program, stream, operands
        self._buffers = placement.buffers

    def add(self, label: str, i: int, waiting: Sequence[Op], op: InputOp) -> None:
        """Add an op of layer `i`, or of the embeddings, after the linear layers that wait."""
        match op:
            case LayerInputs():
                self._inputs(label, waiting, op)
            case LayerInput():
                self._input(label, i, op)

    def _product(self, label: str, linear: Linear, inputs: PanelAddresses | None, into: int, ldc: int) -> None:
        """Add a product, of the stream unless there are `inputs`, by one core for all."""
        matrix = self._at.weights.matrix(linear)
        kernels = linear_kernels(matrix.weights, self._at.isa)
        inputs = inputs or self._stream.read(label, linear.name, kernels.reduce_norm)
        [first, *_] = self._operands.matmul(matrix, inputs, [into] * len(inputs), ldc)
        self._program.add(f"{label} {linear.name}", kernels.matmul, [first])

    def _inputs(self, label: str, waiting: Sequence[Op], op: LayerInputs) -> None:
        linear, values, width = last_op(waiting, Linear), self._buffers.layer_inputs, self._buffers.sizes.input_width
        assert linear is not None
        self._product(label, linear, None, values.address, width)
        operands = [
            LayerInputsOperands(
                table=rows.address,
                vocab_per_core=self._at.shard.vocab_per_core,
                vocab=op.vocab_size,
                values=values.address,
                width=width,
                norm=self._operands.vector(op.norm),
                eps=float_bits(op.eps),
                layers=op.layers,
                size=op.norm.size,
            )
            for rows in self._at.weights.rows[op.table.modules[0]]
        ]
        kernel = layer_inputs_f32 if self._at.dtype == "float32" else layer_inputs_bf16
        self._program.add(f"{label} inputs of layers", kernel, operands)

    def _input(self, label: str, i: int, op: LayerInput) -> None:
        """Multiply what the activation has left on each core."""
        buffers, axis = self._buffers, op.network
        width, stride = buffers.widths.ffn(axis), buffers.sizes.input_width * FLOAT32_BYTES
        firsts = [next((run.first for run in self._at.shard.runs(axis, core.index)), 0) for core in self._at.cores]
        operands = [
            LayerInputOperands(
                activated=activated,
                width=width,
                inputs=buffers.layer_inputs.address + (i * axis.units + first) * FLOAT32_BYTES,
                stride=stride,
            )
            for activated, first in zip(addresses_of(buffers.activated), firsts, strict=True)
        ]
        self._program.add(f"{label} input", multiply_input, operands)
