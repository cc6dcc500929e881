"""Instructions for inputs of layers by token, for several streams, and for activations apart from products."""

from __future__ import annotations

from collections.abc import Sequence

from ..device.layout import FLOAT32_BYTES
from ..kernels.activate import SparseGateOperands, XIELUOperands, sparse_gate_panels, sparse_gate_rows, xielu_rows
from ..kernels.dispatch import LinearKernels, linear_kernels
from ..kernels.isa.jit import Kernel
from ..kernels.layer_inputs import (
    LayerInputOperands,
    LayerInputsOperands,
    layer_inputs_bf16,
    layer_inputs_f32,
    multiply_input,
)
from ..kernels.matmul.epilogue import ACTIVATIONS
from ..kernels.program import Program
from ..kernels.streams import (
    StreamsOperands,
    add_to_streams,
    correct_streams,
    merge_streams,
    predict_streams,
    spread_streams,
)
from ..models.graph import last_op
from ..models.linear import Linear
from ..models.ops import Activate, Gated, Op
from ..models.stream_ops import (
    AddToStreams,
    CorrectStreams,
    LayerInput,
    LayerInputs,
    MergeStreams,
    NormedStream,
    PredictStreams,
    SpreadStreams,
    StreamsOp,
)
from .operands import Leaves, Operands, PanelAddresses, Placement, addresses_of, float_bits
from .residual_stream import ResidualStream


class StreamLowering:
    """Adds these instructions to one program."""

    def __init__(self, placement: Placement, program: Program, stream: ResidualStream, operands: Operands) -> None:
        self._at, self._program, self._stream, self._operands = placement, program, stream, operands
        self._buffers = placement.buffers
        self._plain_norm = linear_kernels(placement.dtype, placement.isa).reduce_norm

    def add(self, label: str, i: int, waiting: list[Op], op: StreamsOp) -> None:
        """Add an op of layer `i`, or of the embeddings, after the linear layers that wait."""
        match op:
            case NormedStream():
                self._stream.leave_normed(label, self._plain_norm)
            case SpreadStreams() | MergeStreams():
                self._products(label, waiting, op)
            case PredictStreams():
                norm, router, mixes = map(self._operands.vector, op.vectors)
                self._change(label, predict_streams, norm=norm, router=router, mixes=mixes)
            case CorrectStreams():
                norm, router, mixes = map(self._operands.vector, (op.norm, op.router, op.shares))
                scale = 0 if op.scale is None else self._operands.vector(op.scale)
                self._change(label, correct_streams, norm=norm, router=router, mixes=mixes, scale=scale)
            case AddToStreams():
                operands = self._streams()._replace(branch=self._stream.take_partial())
                self._program.add(f"{label} add_to_streams", add_to_streams, [operands])
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

    def _streams(self) -> StreamsOperands:
        buffers, spec = self._buffers, self._at.spec
        return StreamsOperands(
            hidden=buffers.hidden.address,
            streams=buffers.streams.address,
            stride=buffers.sizes.hidden,
            num_streams=spec.num_streams,
            width=buffers.widths.hidden,
            size=spec.hidden_size,
            scratch=buffers.worker_scratch.address,
            scratch_stride=buffers.sizes.worker_scratch,
            eps=float_bits(spec.stack.norm.eps),
        )

    def _change(self, label: str, kernel: Kernel, **vectors: int) -> None:
        """Add a kernel that reads all streams and replaces the one that goes through the layers."""
        self._stream.finish(self._plain_norm)
        self._program.add(f"{label} {kernel.name}", kernel, [self._streams()._replace(**vectors)])
        self._stream.replaced()

    def _products(self, label: str, waiting: list[Op], op: SpreadStreams | MergeStreams) -> None:
        """Add a product for each stream but the first: of the stream, or to merge them each of its own."""
        streams, width = self._streams(), self._buffers.widths.hidden
        linears = [each for each in waiting if isinstance(each, Linear) and each.name.startswith("stream_")]
        for i, linear in enumerate(linears):
            address, matrix = streams.streams + (i + 1) * streams.stride, self._at.weights.matrix(linear)
            panels = None
            if isinstance(op, MergeStreams):
                panels = self._operands.normed()
                pack = linear_kernels(matrix.weights, self._at.isa).pack_rows
                operands = self._operands.pack(address, panels[0], matrix.k)
                self._program.add(f"{label} {linear.name} pack", pack, [operands])
            self._product(label, linear, panels, address, width)
        waiting.clear()
        self._change(label, merge_streams if isinstance(op, MergeStreams) else spread_streams)

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

    def activated(self, label: str, linear: Linear | None, op: Gated | Activate, kernels: LinearKernels) -> Leaves:
        """Add the activation of a product that has none in its epilogue; return what it leaves on each core."""
        assert linear is not None
        buffers, matrix = self._buffers, self._at.weights.matrix(linear)
        activated = addresses_of(buffers.activated)
        if isinstance(op, Activate):
            vectors = [self._operands.vector(each) for each in op.vectors]
            learned = [XIELUOperands(rows, matrix.n, *vectors) for rows in activated]
            self._program.add(f"{label} xielu", xielu_rows, learned)
            return Leaves(buffers.activated, buffers.activated_panels)
        operands = [
            SparseGateOperands(
                source=source,
                columns=matrix.n,
                output=output,
                width=matrix.n // 2,
                activation=ACTIVATIONS.index(op.activation),
                cutoff=float_bits(op.cutoff or 0.0),
                size=op.size,
            )
            for source, output in zip(addresses_of(buffers.gates), activated, strict=True)
        ]
        is_packed = kernels.gated_leaves_panels
        self._program.add(f"{label} gates", sparse_gate_panels if is_packed else sparse_gate_rows, operands)
        return Leaves(buffers.activated, buffers.activated_panels, is_packed)
