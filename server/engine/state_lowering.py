"""Layers that keep a state as instructions of a device program, after the products of their projections.

Convolution     convolve: the columns that are mixed along the sequence, from the projections to a buffer of their own;
                a short convolution with its gates, to the output
Recurrence      delta_rule or mamba2, each core its value heads, to the output
GatedNorm       gated_norm in place: groups of columns with the gate's columns of the projections; a collective if cores
                share a group
"""

from __future__ import annotations

from ..device.layout import FLOAT32_BYTES
from ..kernels.dispatch import StateKernels
from ..kernels.program import Program
from ..kernels.state.records import ConvolutionOperands, GatedNormOperands, RecurrenceOperands
from ..models.state_layer import GatedDeltaNetSpec, Mamba2Spec, Recurrent, ShortConvSpec
from ..models.state_ops import Convolution, GatedNorm, Recurrence
from .operands import Operands, float_bits
from .state_buffers import StateBuffers

KERNELS = StateKernels()


class StateLowering:
    """Adds the instructions of one model's layers with a state."""

    def __init__(self, program: Program, operands: Operands, buffers: StateBuffers) -> None:
        self._program, self._operands, self._buffers = program, operands, buffers
        self._cores = range(len(buffers.slots))

    def add(self, i: int, op: Convolution | Recurrence | GatedNorm) -> None:
        """Add the instruction of an op of layer `i`."""
        label, mixer = f"layer {i}", self._buffers.mixer
        if isinstance(op, Convolution):
            records = [self._convolution(core, i, op) for core in self._cores]
            self._program.add(f"{label} convolution", KERNELS.convolve, records)
            return
        assert not isinstance(mixer, ShortConvSpec)
        if isinstance(op, Recurrence):
            kernel = KERNELS.delta_rule if isinstance(mixer, GatedDeltaNetSpec) else KERNELS.mamba2
            steps = [self._recurrence(core, i, op, mixer) for core in self._cores]
            self._program.add(f"{label} recurrence", kernel, steps)
            return
        norms = [self._norm(core, op, mixer) for core in self._cores]
        self._program.add(f"{label} gated norm", KERNELS.gated_norm, norms, is_collective=norms[0].group_cores > 1)

    def _state(self, core: int, i: int, part: int) -> int:
        """Return the address of layer `i`'s convolution state (part 0) or recurrent state (part 1) in slot 0."""
        return self._buffers.slots[core].address + self._buffers.sizes.offsets[i][part]

    def _convolution(self, core: int, i: int, op: Convolution) -> ConvolutionOperands:
        buffers, widths, mixer = self._buffers, self._buffers.widths, self._buffers.mixer
        at = [buffers.projected[core].address + part * widths.values * FLOAT32_BYTES for part in range(3)]
        before, after, source = at if op.is_gated else (0, 0, at[0])
        return ConvolutionOperands(
            source=source,
            before=before,
            after=after,
            source_ldc=widths.projected,
            weights=self._operands.vector(op.weight, core),
            bias=0 if op.bias is None else self._operands.vector(op.bias, core),
            has_silu=int(not op.is_gated),
            taps=mixer.taps,
            channels=widths.channels,
            max_channels=widths.channels,
            output=(buffers.mixed if op.is_gated else buffers.convolved)[core].address,
            output_ldc=widths.mixed if op.is_gated else widths.channels,
            states=self._state(core, i, 0),
            slot_bytes=buffers.sizes.slot,
        )

    def _recurrence(self, core: int, i: int, op: Recurrence, mixer: Recurrent) -> RecurrenceOperands:
        buffers, widths, scratch = self._buffers, self._buffers.widths, self._operands.placement.buffers
        values, projected = buffers.convolved[core].address, buffers.projected[core].address
        first, second = (values + columns * FLOAT32_BYTES for columns in (widths.values, widths.values + widths.keys))
        is_mamba = isinstance(mixer, Mamba2Spec)
        in_projected = projected + (widths.channels + widths.values) * FLOAT32_BYTES
        steps = in_projected if is_mamba else buffers.gates[core].address
        return RecurrenceOperands(
            queries=second if is_mamba else first,
            keys=first if is_mamba else second,
            values=values,
            ldc=widths.channels,
            steps=steps,
            strengths=0 if is_mamba else steps + widths.heads * FLOAT32_BYTES,
            gate_ldc=widths.projected if is_mamba else widths.gates,
            decays=self._operands.vector(op.decays, core),
            step_bias=self._operands.vector(op.step_bias, core),
            skips=0 if op.skips is None else self._operands.vector(op.skips, core),
            least_step=float_bits(mixer.least_step if isinstance(mixer, Mamba2Spec) else 0.0),
            most_step=float_bits(mixer.most_step if isinstance(mixer, Mamba2Spec) else 0.0),
            scale=float_bits(mixer.key.unit_size**-0.5),
            key_heads=buffers.key_heads[core].address,
            heads=widths.heads,
            max_heads=widths.heads,
            key_dim=mixer.key.unit_size,
            value_dim=mixer.value.unit_size,
            output=buffers.mixed[core].address,
            output_ldc=widths.mixed,
            states=self._state(core, i, 1),
            slot_bytes=buffers.sizes.slot,
            scratch=scratch.worker_scratch.address,
            scratch_stride=scratch.sizes.worker_scratch,
        )

    def _norm(self, core: int, op: GatedNorm, mixer: Recurrent) -> GatedNormOperands:
        buffers, widths, tp = self._buffers, self._buffers.widths, self._buffers.shard.tp
        groups, group_cores, size = widths.heads, 1, mixer.value.unit_size
        has_own = op.weight is not None and op.weight.axis is not None  # each column of a core has its own weight
        if has_own and isinstance(mixer, Mamba2Spec):
            groups, group_cores = max(1, mixer.num_groups // tp), max(1, tp // mixer.num_groups)
            size = mixer.value.size // mixer.num_groups
        columns = widths.values // groups
        return GatedNormOperands(
            source=buffers.mixed[core].address,
            source_ldc=widths.mixed,
            gates=buffers.projected[core].address + widths.channels * FLOAT32_BYTES,
            gates_ldc=widths.projected,
            weight=0 if op.weight is None else self._operands.vector(op.weight, core),
            weight_stride=columns * FLOAT32_BYTES * has_own,
            groups=groups,
            max_groups=groups,
            columns=columns,
            size=size,
            group_cores=group_cores,
            is_gate_first=int(op.is_gate_first),
            eps=float_bits(op.eps),
            output=buffers.mixed[core].address,
            output_ldc=widths.mixed,
        )
