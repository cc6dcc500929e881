"""A model's graph as a device program: each op becomes instructions, some ops together one.

embed, then for each layer
  Norm            reduce_norm: all-reduce of the branch before, residual, norm; panels for the layer that reads it
  Linear qkv      matmul, each core its heads
  HeadNorm, Rope  rope_kv, with Attention: bias, q/k norm, rotation, K and V to their slots
  Attention       attention, each core its heads
  Linear o        pack, matmul: row-parallel, a partial sum on every core, which Add leaves for the next reduce_norm
  Linear, Gated   one matmul, whose epilogue multiplies; Linear down as o
then reduce_norm of the sampled rows and the output layer: logits, vocabulary-parallel
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import ml_dtypes

from server.device.hbm import Buffer
from server.device.layout import FLOAT32_BYTES
from server.engine.load.weights import PackedMatrix
from server.engine.operands import Branch, HeadOps, Operands, Placement, address_of, addresses_of, float_bits
from server.errors import DeviceError
from server.kernels.dispatch import LinearKernels, linear_kernels, shared_kernels
from server.kernels.matmul.epilogue import ACTIVATIONS
from server.kernels.program import Program
from server.kernels.records import STEP, EmbedOperands, PackOperands
from server.models.decoder import decoder_graph
from server.models.graph import Graph
from server.models.ops import Add, Attention, Embed, Gated, HeadNorm, Linear, Norm, Op, Rope

COMPUTED = (Norm, Linear, HeadNorm, Rope, Attention, Gated, Add)


def build_program(placement: Placement) -> Program:
    """The program of a placed model; it computes the rows of one step record.

    Raises DeviceError for an op that no kernel computes.
    """
    return _Lowering(placement).run()


def _require_kernels(graph: Graph) -> None:
    """Raises DeviceError, naming the op, for what has no instruction."""
    places = [("embeddings", graph.prelude), *((f"layer {i}", layer) for i, layer in enumerate(graph.layers))]
    for place, op in ((place, op) for place, ops in places for op in ops):
        if not isinstance(op, COMPUTED) or (isinstance(op, Attention) and not op.is_causal):
            raise DeviceError(f"{place}: no kernel computes {type(op).__name__}")


@dataclass(frozen=True, slots=True)
class _Leaves:
    """Values that a column-parallel op leaves on each core for a row-parallel layer to read."""

    values: Sequence[Buffer] = ()
    panels: Sequence[Buffer] = ()  # where the reader has them packed
    is_packed: bool = False  # the values are bfloat16 panels already


class _Lowering:
    def __init__(self, placement: Placement) -> None:
        self._at = placement
        self._buffers = placement.buffers
        self._graph = decoder_graph(placement.spec)
        _require_kernels(self._graph)
        self._operands = Operands(placement)
        block_size = placement.cache.block_size
        kv_dtype, head_dim = placement.kv_dtype, placement.spec.head_dim
        self._shared = shared_kernels(placement.dtype, head_dim, block_size, placement.isa, kv_dtype)
        self._num_cores = len(placement.cores)
        self._head = placement.weights.matrix(self._graph.head)
        self._width = self._head.k
        self._program = Program("decoder", placement)
        self._branch, self._leaves = Branch(), _Leaves()

    def run(self) -> Program:
        self._embed(self._graph.embed)
        for i, layer in enumerate(self._graph.layers):
            self._layer(i, layer)
        self._logits()
        return self._program

    def _layer(self, i: int, ops: tuple[Op, ...]) -> None:
        """Ops that become one instruction with another wait for that one."""
        linear = heads = rope = None
        for at, op in enumerate(ops):
            label = f"layer {i}"
            match op:
                case Norm():
                    reader = next(each for each in ops[at:] if isinstance(each, Linear))
                    self._norm(f"{label} {op.name}", op, self._at.weights.matrix(reader))
                case Linear() if not op.is_row_parallel:
                    linear = op
                case HeadNorm():
                    heads = op
                case Rope():
                    rope = op
                case Attention() if linear is not None:
                    self._attention(i, linear, HeadOps(heads, rope, op))
                case Gated() if linear is not None:
                    self._gated(label, linear, op)
                case Linear():
                    self._row_parallel(label, op)
                case Add(norm=norm):  # the next norm begins with it
                    self._branch = replace(self._branch, norm=0 if norm is None else self._operands.vector(norm.weight))

    def _kernels(self, matrix: PackedMatrix) -> LinearKernels:
        return linear_kernels(matrix.weights, self._at.isa)

    def _embed(self, op: Embed) -> None:
        """The scale is rounded as the activations are, which is what it is multiplied with when a model is trained."""
        weights, hidden, per_core = self._at.weights, self._buffers.hidden.address, self._at.shard.vocab_per_core
        scale = float_bits(op.scale if self._at.dtype == "float32" else float(ml_dtypes.bfloat16(op.scale)))
        if weights.embedding is not None:
            kernel = self._shared.embed_rows
            tables = [(part.address, 0) for part in weights.embedding]
        else:
            kernel = self._kernels(self._head).embed_tiles
            tables = [(part.tiles.address, address_of(part.scales)) for part in self._head.shards]
        operands = [EmbedOperands(table, scales, hidden, per_core, self._width, scale) for table, scales in tables]
        self._program.add("embed", kernel, operands)

    def _norm(self, label: str, op: Norm, reader: PackedMatrix) -> None:
        """The norm before `reader`, whose format decides the panels."""
        operands = [self._operands.norm(op, self._branch)]
        self._program.add(label, self._kernels(reader).reduce_norm, operands, self._branch.num_partials > 1)

    def _attention(self, i: int, qkv: Linear, heads: HeadOps) -> None:
        buffers, cores, matrix = self._buffers, range(self._num_cores), self._at.weights.matrix(qkv)
        operands = self._operands.matmul(matrix, self._operands.normed(), addresses_of(buffers.qkv), buffers.widths.qkv)
        self._program.add(f"layer {i} qkv", self._kernels(matrix).matmul, operands)
        rope = [self._operands.rope(core, i, matrix, heads) for core in cores]
        self._program.add(f"layer {i} rope", self._shared.rope_kv, rope)
        attention = [self._operands.attention(core, i, heads.attention) for core in cores]
        self._program.add(f"layer {i} attention", self._shared.attention, attention)
        self._leaves = _Leaves(buffers.attended, buffers.attended_panels, is_packed=False)

    def _gated(self, label: str, linear: Linear, op: Gated) -> None:
        """Gate and up in one matmul, multiplied in its epilogue."""
        if op.activation not in ACTIVATIONS:
            raise DeviceError(f"{label}: no kernel computes {op.activation}, only {', '.join(ACTIVATIONS)}")
        buffers, matrix = self._buffers, self._at.weights.matrix(linear)
        outputs, width = addresses_of(buffers.activated), buffers.widths.intermediate
        operands = self._operands.matmul(matrix, self._operands.normed(), outputs, width)
        operands = [each._replace(activation=ACTIVATIONS.index(op.activation)) for each in operands]
        kernels = self._kernels(matrix)
        self._program.add(f"{label} {linear.name}", kernels.gated, operands)
        self._leaves = _Leaves(buffers.activated, buffers.activated_panels, kernels.gated_leaves_panels)

    def _row_parallel(self, label: str, linear: Linear) -> None:
        """Add a product of the values on each core, which leaves each core's partial sum for the all-reduce."""
        matrix, leaves, stride = self._at.weights.matrix(linear), self._leaves, self._buffers.sizes.partial
        kernels = self._kernels(matrix)
        pack = kernels.repack if leaves.is_packed else kernels.pack_rows
        inputs = self._operands.packed(leaves.values if pack is None else leaves.panels)
        if pack is not None:
            packed = [
                PackOperands(source.address, panels, scales, matrix.k)
                for source, (panels, scales) in zip(leaves.values, inputs, strict=True)
            ]
            self._program.add(f"{label} {linear.name} pack", pack, packed)
        partials = [self._buffers.partials.address + core * stride for core in range(self._num_cores)]
        operands = self._operands.matmul(matrix, inputs, partials, self._width)
        self._program.add(f"{label} {linear.name}", kernels.matmul, operands)
        self._branch = Branch(self._num_cores, address_of(matrix.biases[0]) if matrix.biases else 0)

    def _logits(self) -> None:
        """Add the output layer, for the rows that will be sampled."""
        buffers, head = self._buffers, self._head
        norm = self._operands.norm(self._graph.final_norm, self._branch)
        norm = norm._replace(panels=buffers.sampled.address, rows_field=STEP.num_samples, index_field=STEP.sample_rows)
        kernels = self._kernels(head)
        self._program.add(self._graph.final_norm.name, kernels.reduce_norm, [norm], self._branch.num_partials > 1)
        outputs = [buffers.logits.address + core * head.n * FLOAT32_BYTES for core in range(self._num_cores)]
        inputs = [(buffers.sampled.address, buffers.normed_scales.address)] * self._num_cores
        operands = self._operands.matmul(head, inputs, outputs, buffers.logits_width)
        operands = [o._replace(rows_field=STEP.num_samples) for o in operands]
        self._program.add("logits", kernels.matmul, operands)
