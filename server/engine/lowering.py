"""A model's graph as a device program: each op becomes instructions, some ops together one.

embed, vectors of pictures (picture_lowering.py), a projection, rows of positions and token types, then for each layer
  Norm            reduce_norm: all-reduce of the branches before, residual, norm; panels for the layer that reads them.
                  Without a norm before a layer it packs the stream itself; a StreamNorm replaces the stream
  Linear qkv      matmul, each core its heads, with their bias
  HeadNorm, Rope  rope_kv, with Attention: q/k norm, rotation, K and V to their slots; before it head_squares, a
                  collective, if norms are over the heads of all cores
  Attention       attention, each core its heads
  Linear o        pack, matmul: row-parallel, a partial sum on every core, which Add leaves for the next reduce_norm;
                  branches of a Parallel one after the other, each with partial sums of its own
  Linear, Gated   one matmul, whose epilogue multiplies, or with Activate alone activates; Linear down as o
  LatentAttention latent_lowering.py: its heads' values on each core
  Experts         expert_lowering.py: one partial sum on every core; Recurrence and its like: state_lowering.py
then reduce_norm of the sampled rows and the output layer: logits, vocabulary-parallel, then finish_logits if any.
A model without an output layer ends with the norm of every row, in the stream; a pipeline stage that is not the last
(graph_slice.py) with the stream itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..device.hbm import Buffer
from ..kernels.dispatch import LinearKernels, linear_kernels
from ..kernels.isa.jit import Kernel
from ..kernels.lora import Form
from ..kernels.matmul.epilogue import ACTIVATIONS
from ..kernels.program import Program
from ..models.decoder import decoder_graph
from ..models.graph import last_op
from ..models.linear import Linear
from ..models.ops import (
    Activate,
    Add,
    AddRows,
    Attention,
    AttentionGate,
    CrossAttention,
    DistanceBuckets,
    Embed,
    Experts,
    FinishLogits,
    Gated,
    LatentAttention,
    LayerNorm,
    Norm,
    NormOutput,
    Op,
    Parallel,
    Replace,
    StreamNorm,
)
from ..models.state_ops import Convolution, GatedNorm, Recurrence
from ..models.stream_ops import StreamFactor, StreamsOp
from .adapter_operands import AdapterInstructions, FloatRows, panel_form
from .cross.lowering import CrossLowering, shared_kernels_of
from .expert_lowering import ExpertLowering
from .graph_slice import GraphSlice
from .load.adapter_slots import AdapterSlots
from .load.weights import PackedMatrix
from .logits_lowering import add_logits
from .mixer_lowering import MixerLowering
from .operands import Leaves, Operands, PanelAddresses, Placement, addresses_of
from .picture_lowering import add_vectors
from .residual_stream import ResidualStream
from .stream_lowering import StreamLowering

StreamOp = AddRows | Norm | LayerNorm | StreamNorm | StreamFactor | Parallel | Add | NormOutput


def build_program(
    placement: Placement,
    adapters: AdapterSlots | None = None,
    part: GraphSlice | None = None,
    decoder: Placement | None = None,
) -> Program:
    """Build the program of a placed model, or of `part` of it, with `adapters` if these are given.

    It computes the rows of one step record. An encoder's leaves keys and values to its `decoder`. Raises DeviceError
    for an op that no kernel computes.
    """
    return _Lowering(placement, adapters, part).run(decoder)


class _Lowering:
    def __init__(self, placement: Placement, adapters: AdapterSlots | None, part: GraphSlice | None) -> None:
        self._at, self._buffers = placement, placement.buffers
        self._graph = decoder_graph(placement.spec)
        self._slice = part or GraphSlice.whole(self._graph)
        self._slice.require_kernels(self._graph)
        self._operands = Operands(placement)
        self._shared = shared_kernels_of(placement, placement.spec.attention.head_dim)
        self._num_cores, self._width = len(placement.cores), self._buffers.widths.hidden
        self._program = Program(placement.spec.stack.kind, (placement, adapters))
        self._lora = None if adapters is None else AdapterInstructions(self._program, adapters, placement.buffers)
        self._stream = ResidualStream(placement, self._program, self._operands)
        self._leaves = Leaves()
        self._streams = StreamLowering(placement, self._program, self._stream, self._operands)
        self._mixers = MixerLowering(self._operands, self._program, self._product, self._read)

    def run(self, decoder: Placement | None) -> Program:
        if self._slice.embeds:
            self._embed(self._graph.embed)
            add_vectors(self._at, self._program, self._stream, 0, self._plain_norm)
            self._ops("embeddings", 0, self._graph.prelude)
        for i in self._slice.layers:
            self._ops(f"layer {i}", i, self._graph.layers[i])
            add_vectors(self._at, self._program, self._stream, i + 1, self._plain_norm)
        if self._slice.end == "stream":
            self._stream.finish(self._plain_norm)
        else:
            self._tail(self._graph.tail)
        if decoder is not None:
            self._stream.norm = None  # it has been applied to the stream itself
            CrossLowering(decoder).write(self._program, self._stream, self._at)
        self._program.weight_bytes = sum(core.used["weights"] for core in self._at.cores)
        return self._program

    def _ops(self, label: str, i: int, ops: Sequence[Op]) -> None:
        """Add the ops of layer `i`. An op that shares an instruction with a later op waits for it."""
        waiting: list[Op] = []
        for op in ops:
            match op:
                case (
                    AddRows() | Norm() | LayerNorm() | StreamNorm() | StreamFactor() | Parallel() | Add() | NormOutput()
                ):
                    self._on_stream(label, i, op)
                case _ if isinstance(op, StreamsOp):
                    self._streams.add(label, i, waiting, op)
                case Linear() if op.is_row_parallel:
                    self._row_parallel(label, op)
                case (
                    Attention()
                    | AttentionGate()
                    | Convolution()
                    | CrossAttention()
                    | GatedNorm()
                    | LatentAttention()
                    | Recurrence()
                ):
                    self._leaves = self._mixers.add(i, waiting, op)
                case DistanceBuckets():
                    pass  # attention reads the tables that Placement.distances holds
                case Gated() | Activate():
                    self._activated(label, waiting, op)
                case Experts():
                    self._experts(label, i, op)
                case Replace():
                    self._replace(label, waiting)
                case _:
                    waiting.append(op)

    def _on_stream(self, label: str, i: int, op: StreamOp) -> None:
        """Add an op that changes the stream, or how it is read next."""
        match op:
            case AddRows():
                self._program.add(f"{label} {op.by}", self._shared.add_rows, [self._operands.add_rows(op)])
            case Norm() | LayerNorm():
                self._stream.norm = op
            case StreamNorm(norm=norm):
                self._stream.stay(f"{label} {norm.name}", norm)
            case Parallel(branches=branches):
                before = self._stream.norm
                for branch in branches:
                    self._stream.norm = before
                    self._ops(label, i, branch)
            case Add():
                self._stream.add(op)
            case StreamFactor():
                self._stream.multiply(op)
            case NormOutput(norm=output):
                self._stream.norm_output(label, output)

    def _kernels(self, matrix: PackedMatrix) -> LinearKernels:
        return linear_kernels(matrix.weights, self._at.isa)

    def _embed(self, op: Embed) -> None:
        tiles = self._at.weights.embedding_tiles(self._graph)
        kernel = self._shared.embed_rows if tiles is None else self._kernels(tiles).embed_tiles
        self._program.add("embed", kernel, self._operands.embed(op, tiles))

    def _read(self, label: str, reader: Linear) -> PanelAddresses:
        """Return the panels of the stream that `reader` takes, on every core."""
        kernel, changes = self._kernels(self._at.weights.matrix(reader)).reduce_norm, dict[str, int]()
        if reader.is_router and self._buffers.experts is not None:
            changes["rows"] = self._buffers.experts.read.address
        return self._stream.read(label, reader.name, kernel, **changes)

    def _activated(self, label: str, waiting: Sequence[Op], op: Gated | Activate) -> None:
        """Add the waiting layer as one matmul, whose epilogue activates, and multiplies gate and up."""
        buffers = self._buffers
        if op.vectors if isinstance(op, Activate) else op.cutoff is not None:  # a kernel of its own reads the product
            kernels = self._product(label, waiting, buffers.gates if isinstance(op, Gated) else buffers.activated)
            self._leaves = self._streams.activated(label, last_op(waiting, Linear), op, kernels)
            return
        kernels = self._product(label, waiting, buffers.activated, op)
        is_packed = isinstance(op, Gated) and kernels.gated_leaves_panels
        self._leaves = Leaves(buffers.activated, buffers.activated_panels, is_packed)

    def _product(
        self, label: str, waiting: Sequence[Op], into: Sequence[Buffer], op: Gated | Activate | None = None
    ) -> LinearKernels:
        """Add the product of the linear layer that waits, each core its outputs."""
        linear = last_op(waiting, Linear)
        assert linear is not None
        matrix, inputs = self._at.weights.matrix(linear), self._read(label, linear)
        place: FloatRows = addresses_of(into), matrix.n // 2 if isinstance(op, Gated) else matrix.n
        kernels, index = self._kernels(matrix), 0 if op is None else ACTIVATIONS.index(op.activation)
        kernel, product = kernels.gated if isinstance(op, Gated) else kernels.matmul, place
        if self._lora is not None:  # adapters add to the product before it is activated
            kernel, product, index = kernels.matmul, self._lora.product_of(op, place), 0
        operands = self._operands.matmul(matrix, inputs, *product)
        self._program.add(f"{label} {linear.name}", kernel, [each._replace(activation=index) for each in operands])
        if self._lora is not None:
            self._lora.adapt(f"{label} {linear.name}", linear, inputs, panel_form(kernels), product)
            self._lora.activate(f"{label} {linear.name}", op, kernels, product, place)
        return kernels

    def _experts(self, label: str, i: int, op: Experts) -> None:
        """Add routing, the network that all tokens take, and the experts, which add to that network's sums."""
        experts = ExpertLowering(self._at, self._program, f"{label} experts", op)
        own = self._stream.norm
        self._stream.norm = op.router_norm or own
        experts.route(self._read(label, op.router))
        self._stream.norm = own
        if op.router_norm is not None:
            self._read(label, op.router)  # the rows that experts take
        partials = self._stream.partials
        self._ops(f"{label} shared", i, op.shared)
        experts.compute(partials)
        if not op.shared:
            self._stream.leave_partials()

    def _replace(self, label: str, waiting: Sequence[Op]) -> None:
        """Replace the stream by the product of the linear layer that waits, computed by one core for all."""
        linear = last_op(waiting, Linear)
        assert linear is not None
        self._streams.product(label, linear, None, self._buffers.hidden.address, self._width)
        self._stream.replaced()

    def _row_parallel(self, label: str, linear: Linear) -> None:
        """Add a product of the values on each core, whose partial sums the next all-reduce adds up."""
        matrix, leaves = self._at.weights.matrix(linear), self._leaves
        kernels = self._kernels(matrix)
        pack = kernels.repack if leaves.is_packed else kernels.pack_rows
        inputs = self._operands.packed(leaves.values if pack is None else leaves.panels)
        if pack is not None:
            packed = [
                self._operands.pack(source.address, into, matrix.k)
                for source, into in zip(leaves.values, inputs, strict=True)
            ]
            self._program.add(f"{label} {linear.name} pack", pack, packed)
        operands = self._operands.matmul(matrix, inputs, self._stream.partials, self._width)
        self._program.add(f"{label} {linear.name}", kernels.matmul, operands)
        if self._lora is not None:
            values = [(each.address, 0) for each in leaves.values]
            form: Form = "bfloat16" if leaves.is_packed else "rows"
            self._lora.adapt(f"{label} {linear.name}", linear, values, form, (self._stream.partials, self._width))
        self._stream.leave_partials()

    def _tail(self, ops: Sequence[Op]) -> None:
        """Add the ops after the layers: logits of the sampled rows, or the normed stream of all rows."""
        head = self._graph.head if self._graph.has_head else None
        self._ops("states", 0, [op for op in ops if op is not head and not isinstance(op, FinishLogits)])
        if head is None or "states" in self._slice.end:
            if self._stream.norm is not None:
                self._stream.stay(self._stream.norm.name, self._stream.norm)
            self._stream.settle(self._plain_norm)
            if head is None or self._slice.end == "states":
                return
            self._stream.replaced()
        finish = next((op for op in ops if isinstance(op, FinishLogits)), None)
        add_logits(self._operands, self._program, self._stream, head, finish)

    @property
    def _plain_norm(self) -> Kernel:
        """The kernel that norms a stream whose panels nothing reads."""
        return linear_kernels(self._at.dtype, self._at.isa).reduce_norm
