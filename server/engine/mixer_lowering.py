"""Instructions of mixers: attention of each kind, and layers that keep a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..device.hbm import Buffer
from ..kernels.attention.rope import head_squares
from ..kernels.dispatch import LinearKernels
from ..kernels.program import Program
from ..models.graph import last_op
from ..models.linear import Linear
from ..models.ops import Attention, AttentionGate, CrossAttention, HeadNorm, LatentAttention, Op, PlainHeadNorm, Rope
from ..models.state_ops import Convolution, GatedNorm, Recurrence
from .attention_operands import HeadOperands
from .cross.lowering import CrossLowering, shared_kernels_of
from .latent_lowering import LatentLowering
from .operands import HeadOps, Leaves, Operands, PanelAddresses
from .state_lowering import KERNELS, StateLowering

MixerOp = Attention | AttentionGate | Convolution | CrossAttention | GatedNorm | LatentAttention | Recurrence
Product = Callable[[str, Sequence[Op], Sequence[Buffer]], LinearKernels]


class MixerLowering:
    """Adds the ops with which tokens see each other; `product` adds the waiting linear layer into buffers."""

    def __init__(
        self, operands: Operands, program: Program, product: Product, read: Callable[[str, Linear], PanelAddresses]
    ) -> None:
        self._operands, self._program, self._product, self._read = operands, program, product, read
        self._at, self._buffers = operands.placement, operands.placement.buffers
        self._heads, self._num_cores = HeadOperands(operands), len(operands.placement.cores)

    def add(self, i: int, waiting: list[Op], op: MixerOp) -> Leaves:
        """Add an op of layer `i` after the ops that wait; return the values that it leaves on each core."""
        match op:
            case Attention():
                self._attention(i, waiting, op)
            case CrossAttention():
                self._cross_attention(i, waiting, op)
            case LatentAttention():
                return LatentLowering(self._at, self._program, self._read).add(i, op)
            case AttentionGate():
                gates = [self._heads.gate(core, i) for core in range(self._num_cores)]
                self._program.add(f"layer {i} attention gate", KERNELS.gated_norm, gates)
            case _:
                return self._state(i, waiting, op)
        return Leaves(self._buffers.attended, self._buffers.attended_panels, is_packed=False)

    def _attention(self, i: int, waiting: Sequence[Op], op: Attention) -> None:
        buffers, cores, label = self._buffers, range(self._num_cores), f"layer {i}"
        norm = last_op(waiting, HeadNorm) or last_op(waiting, PlainHeadNorm)
        heads = HeadOps(norm, last_op(waiting, Rope), op)
        self._product(label, waiting, buffers.qkv)
        rope = [self._heads.rope(core, i, heads) for core in cores]
        if isinstance(norm, HeadNorm) and norm.is_wide:
            self._program.add(f"{label} head squares", head_squares, rope, is_collective=len(cores) > 1)
        kernels = shared_kernels_of(self._at, rope[0].head_dim)
        self._program.add(f"{label} rope", kernels.rope_kv, rope)
        operands = self._heads.attention if op.is_causal else self._heads.both_sides
        self._program.add(f"{label} attention", kernels.attention, [operands(core, i, op) for core in cores])

    def _cross_attention(self, i: int, waiting: Sequence[Op], op: CrossAttention) -> None:
        """Add attention to the encoder's states; the waiting layer makes its queries."""
        self._product(f"layer {i}", waiting, self._buffers.qkv)
        CrossLowering(self._at).attend(self._program, i, op, last_op(waiting, Linear))

    def _state(self, i: int, waiting: list[Op], op: Convolution | Recurrence | GatedNorm) -> Leaves:
        """Add an op of a mixer that keeps a state, after the projections that wait."""
        buffers = self._buffers.states
        assert buffers is not None
        for linear in waiting:
            assert isinstance(linear, Linear)
            into = buffers.gates if linear.name == "state_gates" else buffers.projected
            self._product(f"layer {i}", [linear], into)
        waiting.clear()
        StateLowering(self._program, self._operands, buffers).add(i, op)
        return Leaves(buffers.mixed, buffers.mixed_panels, is_packed=False)
