"""Instructions for inputs of layers by token, for several streams, and for activations apart from products."""

from __future__ import annotations

from collections.abc import Sequence

from ..device.layout import FLOAT32_BYTES
from ..kernels import activate, layer_inputs, streams
from ..kernels.dispatch import LinearKernels, linear_kernels
from ..kernels.isa.jit import Kernel
from ..kernels.matmul.epilogue import ACTIVATIONS
from ..kernels.program import Program
from ..models import stream_ops as ops
from ..models.graph import last_op
from ..models.linear import Linear
from ..models.ops import Activate, Gated, Op
from .operands import Branch, Leaves, Operands, PanelAddresses, Placement, addresses_of, float_bits
from .residual_stream import ResidualStream


class StreamLowering:
    """Adds these instructions to one program."""

    def __init__(self, placement: Placement, program: Program, stream: ResidualStream, operands: Operands) -> None:
        self._at, self._program, self._stream, self._operands = placement, program, stream, operands
        self._buffers, self._vector = placement.buffers, operands.vector
        self._plain_norm = linear_kernels(placement.dtype, placement.isa).reduce_norm

    def add(self, label: str, i: int, waiting: list[Op], op: ops.StreamsOp) -> None:
        """Add an op of layer `i`, or of the embeddings, after the linear layers that wait."""
        match op:
            case ops.GivenStates():
                self._given(label, last_op(waiting, Linear))
            case ops.NormedStream():
                self._stream.leave_normed(label, self._plain_norm)
            case ops.SpreadStreams() | ops.MergeStreams():
                self._products(label, waiting, op)
            case ops.ChangeStreams():
                norm, router, mixes = map(self._vector, (*op.modes, op.mixes))
                scale = 0 if op.scale is None else self._vector(op.scale)
                kernel = streams.correct_streams if op.corrects else streams.predict_streams
                self._change(label, kernel, norm=norm, router=router, mixes=mixes, scale=scale)
            case ops.AddToStreams():
                self._change(label, streams.add_to_streams, branch=self._stream.take_partial())
            case ops.LayerInputs():
                self._inputs(label, waiting, op)
            case ops.LayerInput():
                self._input(label, i, op)

    def product(self, label: str, linear: Linear, inputs: PanelAddresses | None, into: int, ldc: int) -> None:
        """Add a product, of the stream unless there are `inputs`, by one core for all."""
        matrix = self._at.weights.matrix(linear)
        kernels = linear_kernels(matrix.weights, self._at.isa)
        inputs = inputs or self._stream.read(label, linear.name, kernels.reduce_norm)
        [first, *_] = self._operands.matmul(matrix, inputs, [into] * len(inputs), ldc)
        self._program.add(f"{label} {linear.name}", kernels.matmul, [first])

    def _given(self, label: str, linear: Linear | None) -> None:
        """Norm the states that lie in the buffer of streams, and leave their product, of one core, as a branch."""
        assert linear is not None
        buffers, kernels = self._buffers, linear_kernels(self._at.weights.matrix(linear).weights, self._at.isa)
        operands = self._operands.norm(self._stream.norm, Branch())._replace(hidden=buffers.streams.address)
        self._program.add(f"{label} states", kernels.reduce_norm, [operands])
        self.product(label, linear, self._operands.normed(), self._stream.partials[0], buffers.widths.hidden)
        self._stream.leave_partials(1)

    def _change(self, label: str, kernel: Kernel, **vectors: int) -> None:
        """Add a kernel that reads all streams and replaces the one that goes through the layers."""
        buffers, spec = self._buffers, self._at.spec
        self._stream.finish(self._plain_norm)
        operands = streams.StreamsOperands(
            hidden=buffers.hidden.address,
            streams=buffers.streams.address,
            stride=buffers.sizes.hidden,
            num_streams=spec.num_streams,
            width=buffers.widths.hidden,
            size=spec.hidden_size,
            scratch=buffers.worker_scratch.address,
            scratch_stride=buffers.sizes.worker_scratch,
            eps=float_bits(spec.stack.norm.eps),
            **vectors,
        )
        self._program.add(f"{label} {kernel.name}", kernel, [operands])
        self._stream.replaced()

    def _products(self, label: str, waiting: list[Op], op: ops.SpreadStreams | ops.MergeStreams) -> None:
        """Add a product for each stream but the first: of the stream, or to merge them each of its own."""
        buffers, merges = self._buffers, isinstance(op, ops.MergeStreams)
        linears = [each for each in waiting if isinstance(each, Linear) and each.name.startswith("stream_")]
        for i, linear in enumerate(linears):
            address, panels = buffers.streams.address + (i + 1) * buffers.sizes.hidden, self._operands.normed()
            if merges:
                pack = linear_kernels(self._at.weights.matrix(linear).weights, self._at.isa).pack_rows
                operands = self._operands.pack(address, panels[0], buffers.widths.hidden)
                self._program.add(f"{label} {linear.name} pack", pack, [operands])
            self.product(label, linear, panels if merges else None, address, buffers.widths.hidden)
        waiting.clear()
        self._change(label, streams.merge_streams if merges else streams.spread_streams)

    def _inputs(self, label: str, waiting: Sequence[Op], op: ops.LayerInputs) -> None:
        linear, values, width = last_op(waiting, Linear), self._buffers.layer_inputs, self._buffers.sizes.input_width
        assert linear is not None
        self.product(label, linear, None, values.address, width)
        shared = self._at.shard.vocab_per_core, op.vocab_size, values.address, width, self._vector(op.norm)
        sizes = float_bits(op.eps), op.layers, op.norm.size
        rows = self._at.weights.rows[op.table.modules[0]]
        operands = [layer_inputs.LayerInputsOperands(each.address, *shared, *sizes) for each in rows]
        is_wide = self._at.dtype == "float32"
        kernel = layer_inputs.layer_inputs_f32 if is_wide else layer_inputs.layer_inputs_bf16
        self._program.add(f"{label} inputs of layers", kernel, operands)

    def _input(self, label: str, i: int, op: ops.LayerInput) -> None:
        """Multiply what the activation has left on each core."""
        buffers, axis, shard = self._buffers, op.network, self._at.shard
        width, stride = buffers.widths.ffn(axis), buffers.sizes.input_width * FLOAT32_BYTES
        firsts = [next((run.first for run in shard.runs(axis, core.index)), 0) for core in self._at.cores]
        inputs = [buffers.layer_inputs.address + (i * axis.units + first) * FLOAT32_BYTES for first in firsts]
        each = zip(addresses_of(buffers.activated), inputs, strict=True)
        operands = [layer_inputs.LayerInputOperands(activated, width, begin, stride) for activated, begin in each]
        self._program.add(f"{label} input", layer_inputs.multiply_input, operands)

    def activated(self, label: str, linear: Linear | None, op: Gated | Activate, kernels: LinearKernels) -> Leaves:
        """Add the activation of a product that has none in its epilogue; return what it leaves on each core."""
        assert linear is not None
        buffers, columns = self._buffers, self._at.weights.matrix(linear).n
        targets = addresses_of(buffers.activated)
        if isinstance(op, Activate):
            numbers = [self._vector(each) for each in op.vectors]
            learned = [activate.XIELUOperands(rows, columns, *numbers) for rows in targets]
            self._program.add(f"{label} xielu", activate.xielu_rows, learned)
            return Leaves(buffers.activated, buffers.activated_panels)
        kernel = activate.sparse_gate_panels if kernels.gated_leaves_panels else activate.sparse_gate_rows
        last = columns // 2, ACTIVATIONS.index(op.activation), float_bits(op.cutoff or 0.0), op.size
        each = zip(addresses_of(buffers.gates), targets, strict=True)
        operands = [activate.ActivateOperands(source, columns, target, *last) for source, target in each]
        self._program.add(f"{label} gates", kernel, operands)
        return Leaves(buffers.activated, buffers.activated_panels, kernels.gated_leaves_panels)
