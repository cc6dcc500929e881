"""Instructions of cross attention: what the decoder reads of the encoder, and what the encoder's program leaves for it.

Keys and values of each decoder layer are projected from the encoder's last states by the end of the encoder's program,
and written to the blocks of the encoding, behind those that sequences of the decoder grow into. The decoder's program
reads them with the kernel of its own attention: a second step record (step_inputs.py) has an entry for each
query, placed at the encoder's last position, so that no key is behind a causal limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...kernels.dispatch import SharedKernels, linear_kernels, shared_kernels
from ...kernels.program import Program
from ...kernels.records import STEP_BYTES, AttentionOperands, RopeOperands
from ...models.decoder import decoder_graph
from ...models.linear import Linear
from ...models.ops import Attention, CrossAttention
from ..attention_operands import HeadOperands
from ..operands import HeadOps, Operands, Placement, addresses_of
from ..residual_stream import ResidualStream

SOURCE_GROUP = 1  # of the encoder's own block tables: the slots of the decoder's keys and values


def shared_kernels_of(at: Placement, head_dim: int) -> SharedKernels:
    """Return the kernels around the matmuls of a placed model, for heads of `head_dim`."""
    is_causal, has_bias = not at.spec.is_encoder, at.distances is not None
    return shared_kernels(at.dtype, head_dim, at.cache.block_size, at.isa, at.kv_dtype, is_causal, has_bias)


class CrossLowering:
    """Adds the instructions of one decoder's cross attention."""

    def __init__(self, decoder: Placement) -> None:
        self._at, self._operands = decoder, Operands(decoder)
        self._heads = HeadOperands(self._operands)
        self._shared = shared_kernels_of(decoder, decoder.spec.head_dim)
        self._cores = range(len(decoder.cores))

    def attend(self, program: Program, i: int, op: CrossAttention, queries: Linear | None) -> None:
        """Add attention of layer `i` for queries in the buffer of q, k and v, which `queries` has made."""
        assert queries is not None
        label, ldc = f"layer {i} cross", self._at.weights.matrix(queries).n
        heads = HeadOps(None, None, Attention(0, op.scale))
        rope = [self._rope(core, i, heads)._replace(ldc=ldc, kv_heads=0) for core in self._cores]
        program.add(f"{label} queries", self._shared.rope_kv, rope)
        attention = [self._attention(core, i, heads.attention)._replace(ldc=ldc) for core in self._cores]
        program.add(f"{label} attention", self._shared.attention, attention)

    def write(self, program: Program, stream: ResidualStream, encoder: Placement) -> None:
        """Add the projections of the encoder's states, which `stream` holds, to each layer's keys and values."""
        outputs = addresses_of(encoder.buffers.qkv)
        for i, ops in enumerate(decoder_graph(self._at.spec).layers):
            for op in (op for op in ops if isinstance(op, CrossAttention)):
                matrix, label = self._at.weights.matrix(op.keys_values), f"decoder layer {i}"
                kernels = linear_kernels(matrix.weights, self._at.isa)
                inputs = stream.read(label, op.keys_values.name, kernels.reduce_norm)
                products = self._operands.matmul(matrix, inputs, outputs, matrix.n)
                program.add(f"{label} {op.keys_values.name}", kernels.matmul, products)
                slots = self._slots(i, HeadOps(None, None, Attention(0, 1.0)), outputs, matrix.n)
                program.add(f"{label} cross slots", self._shared.rope_kv, slots)

    def _slots(self, i: int, heads: HeadOps, outputs: Sequence[int], ldc: int) -> list[RopeOperands]:
        return [
            self._rope(core, i, heads)._replace(qkv=outputs[core], ldc=ldc, heads=0, kv_group=SOURCE_GROUP)
            for core in self._cores
        ]

    def _rope(self, core: int, i: int, heads: HeadOps) -> RopeOperands:
        """Operands that scale queries and write keys and values, and rotate nothing."""
        return self._heads.rope(core, i, heads)._replace(rotary=0, cos=0, sin=0)

    def _attention(self, core: int, i: int, op: Attention) -> AttentionOperands:
        """Operands of one query an item, over the blocks of the sequence's encoder."""
        own = self._heads.attention(core, i, op)
        return own._replace(kv_group=len(self._at.cache.groups), tile_tokens=1, record=STEP_BYTES, bias=0)
