"""A layer's experts as instructions of a device program.

router       matmul in float32: a logit for each expert
route        each token's experts and their weights; then the same choices as rows sorted by expert
shared       a network that all tokens take, if there is one, into the partial sums (lowering.py)
gather       each token's row to panels, once for each of its experts
gate_up      one instruction for all experts: each matrix multiplies its rows; matrices without rows are not read
down         the same, after pack
combine      adds up a token's rows, in the order of its choices, into the partial sums of each core
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import DeviceError
from ..kernels.dispatch import ExpertKernels, LinearKernels, linear_kernels
from ..kernels.experts.records import CombineOperands, GroupOperands, RouteOperands, WeighOperands
from ..kernels.experts.route import ROUTINGS
from ..kernels.matmul.epilogue import ACTIVATIONS
from ..kernels.program import Program
from ..kernels.records import MatmulOperands
from ..models.linear import Linear
from ..models.ops import Activate, Experts, Gated
from .load.weights import PackedMatrix
from .operands import Operands, PanelAddresses, Placement, addresses_of, float_bits

KERNELS = ExpertKernels()


class ExpertLowering:
    """Adds the instructions of one layer's experts, which read the panels of the norm before."""

    def __init__(self, placement: Placement, program: Program, label: str, op: Experts) -> None:
        """Raise DeviceError for experts that no kernel computes."""
        assert placement.buffers.experts is not None
        self._at, self._program, self._label, self._op = placement, program, label, op
        self._buffers, self._operands = placement.buffers.experts, Operands(placement)
        self._num_cores, self._hidden = len(placement.cores), placement.buffers.widths.hidden
        match op.first:
            case Linear(), Gated() | Activate() as activation, Linear() if activation.activation in ACTIVATIONS:
                self._activation = ACTIVATIONS.index(activation.activation)
                self._has_gate = isinstance(activation, Gated)
            case _:
                raise DeviceError(f"{label}: no kernel computes experts of these ops")
        networks = [[each for each in op.network(i) if isinstance(each, Linear)] for i in range(op.count)]
        self._gate_up, self._down = ([placement.weights.matrix(each[at]) for each in networks] for at in (0, 1))

    def _kernels(self, matrices: Sequence[PackedMatrix]) -> LinearKernels:
        """Return the kernels of the matrices. Raises DeviceError when they have several formats."""
        formats = list(dict.fromkeys(matrix.weights for matrix in matrices))
        if len(formats) > 1:
            raise DeviceError(f"{self._label} are in {' and '.join(formats)}: all of a layer must be in one format")
        return linear_kernels(formats[0], self._at.isa)

    def route(self, inputs: PanelAddresses) -> None:
        """Add the router, which reads `inputs`, the choices, and their order."""
        op, buffers = self._op, self._buffers
        matrix, outputs = self._at.weights.matrix(op.router), [buffers.logits.address] * self._num_cores
        [router, *_] = self._operands.matmul(matrix, inputs, outputs, matrix.n)
        self._program.add(f"{self._label} router", linear_kernels(matrix.weights, self._at.isa).matmul, [router])
        route = RouteOperands(
            logits=buffers.logits.address,
            ldc=matrix.n,
            experts=op.count,
            per_token=op.per_token,
            routing=ROUTINGS.index(op.routing),
            chosen=buffers.chosen.address,
            weights=buffers.weights.address,
            gates=buffers.gates.address if op.has_shared_gate else 0,
            scores=0 if op.choice.is_plain else buffers.scores.address,
            bias=0 if op.choice_bias is None else self._operands.vector(op.choice_bias),
            groups=op.choice.groups,
            top_groups=op.choice.top_groups,
            best_of_group=op.choice.best_of_group,
            scaling=float_bits(op.scaling),
            scales=0 if op.scales is None else self._operands.vector(op.scales),
            margin=float_bits(op.margin),
        )
        self._program.add(f"{self._label} route", KERNELS.route, [route])
        group = GroupOperands(
            chosen=buffers.chosen.address,
            experts=op.count,
            per_token=op.per_token,
            counts=buffers.counts.address,
            groups=buffers.groups.address,
            slots=buffers.slots.address,
        )
        self._program.add(f"{self._label} group", KERNELS.group, [group])

    def compute(self, partials: Sequence[int]) -> None:
        """Add the experts, from the tokens' rows to the partial sums of each core."""
        op, buffers = self._op, self._buffers
        rows, tokens = buffers.read.address, buffers.tokens.address
        if op.weighs_inputs:
            weighed = buffers.weighed.address
            weigh = WeighOperands(rows, buffers.weights.address, weighed, self._hidden, op.per_token)
            self._program.add(f"{self._label} weigh", KERNELS.weigh, [weigh])
            rows, tokens = weighed, 0  # one row for each choice, in order
        kernels = self._kernels(self._gate_up)
        routed = buffers.routed.address, buffers.routed_scales.address
        gather = self._operands.pack(rows, routed, self._hidden)
        gather = gather._replace(per_token=op.per_token, source_rows=tokens, target_rows=buffers.slots.address)
        self._program.add(f"{self._label} gather", kernels.pack_rows, [gather])
        outputs, width = addresses_of(buffers.activated), self._gate_up[0].n // (1 + self._has_gate)
        operands = self._grouped(self._gate_up, [routed] * len(outputs), outputs, width)
        operands = [each._replace(activation=self._activation) for each in operands]
        product = kernels.gated if self._has_gate else kernels.matmul
        self._program.add(f"{self._label} gate_up", product, operands)
        self._down_products(self._has_gate and kernels.gated_leaves_panels)
        self._program.add(
            f"{self._label} combine", KERNELS.combine, [self._combine(*each) for each in enumerate(partials)]
        )

    def _down_products(self, is_packed: bool) -> None:
        """Add the down products; `is_packed`: their inputs are bfloat16 panels already."""
        buffers, kernels = self._buffers, self._kernels(self._down)
        pack = kernels.repack if is_packed else kernels.pack_rows
        source = addresses_of(buffers.activated)
        inputs = list(
            zip(source if pack is None else addresses_of(buffers.activated_panels), self._scales, strict=True)
        )
        if pack is not None:
            slots = buffers.slots.address
            packed = [
                self._operands.pack(each, into, self._down[0].k)._replace(
                    per_token=self._op.per_token, source_rows=slots, target_rows=slots
                )
                for each, into in zip(source, inputs, strict=True)
            ]
            self._program.add(f"{self._label} down pack", pack, packed)
        operands = self._grouped(self._down, inputs, addresses_of(buffers.outputs), self._hidden)
        self._program.add(f"{self._label} down", kernels.matmul, operands)

    @property
    def _scales(self) -> list[int]:
        return addresses_of(self._buffers.activated_scales)

    def _grouped(
        self, matrices: Sequence[PackedMatrix], inputs: PanelAddresses, outputs: Sequence[int], ldc: int
    ) -> list[MatmulOperands]:
        """Records of each expert on each core that has a part of all experts, or on the expert's own core."""
        records = [self._operands.matmul(matrix, inputs, outputs, ldc) for matrix in matrices]
        groups = self._buffers.groups.address
        return [
            record._replace(groups=groups, matrices=len(matrices))
            for of_core in zip(*records, strict=True)
            for record in of_core
        ]

    def _combine(self, core: int, partial: int) -> CombineOperands:
        op, buffers = self._op, self._buffers
        experts = self._at.shard.experts(op.count, core)
        return CombineOperands(
            outputs=buffers.outputs[core % len(buffers.outputs)].address,
            partial=partial,
            width=self._hidden,
            chosen=buffers.chosen.address,
            slots=buffers.slots.address,
            weights=0 if op.weighs_inputs else buffers.weights.address,
            per_token=op.per_token,
            first_expert=experts.start,
            last_expert=experts.stop,
            is_begun=int(bool(op.shared)),
            gates=buffers.gates.address if op.has_shared_gate else 0,
        )
