"""LoRA adapters in a device program: what follows a matmul whose layer may be adapted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neuronserve.server.engine.buffers import ActivationBuffers
from neuronserve.server.engine.load.adapter_slots import AdapterSlots
from neuronserve.server.errors import DeviceError
from neuronserve.server.kernels.activate import ActivateOperands, activate_rows, gate_panels, gate_rows
from neuronserve.server.kernels.dispatch import LinearKernels
from neuronserve.server.kernels.lora import (
    FORMS,
    ExpandOperands,
    Form,
    ShrinkOperands,
    lora_expand_bf16,
    lora_expand_f32,
    lora_shrink_bf16,
    lora_shrink_f32,
)
from neuronserve.server.kernels.matmul.epilogue import ACTIVATIONS
from neuronserve.server.kernels.program import Program
from neuronserve.server.models.linear import Linear
from neuronserve.server.models.ops import Activate, Gated

Inputs = Sequence[tuple[int, int]]  # rows or panels, and row scales, for each core
Place = tuple[Sequence[int], int]  # of float32 rows: addresses on each core, and columns


# What the kernels that pack a matrix's inputs make of them.
FORM_OF: Mapping[str, Form] = {
    "reduce_norm_f32": "float32",
    "reduce_norm_bf16": "bfloat16",
    "reduce_norm_i8": "int8",
    "reduce_norm_i8_rotated": "int8 rotated",
    "reduce_norm_i8_chunks": "int8 chunks",
}


def panel_form(kernels: LinearKernels) -> Form:
    """The panels that a product reads. Raises DeviceError for panels that no adapter reads."""
    packed_by = kernels.reduce_norm.name
    if packed_by not in FORM_OF:
        raise DeviceError(f"no adapter reads what {packed_by} packs")
    return FORM_OF[packed_by]


class AdapterInstructions:
    """Adds to one program what adapters do."""

    def __init__(self, program: Program, slots: AdapterSlots, buffers: ActivationBuffers) -> None:
        self._program, self._slots, self._buffers = program, slots, buffers
        is_short = slots.dtype == "bfloat16"
        self._shrink = lora_shrink_bf16 if is_short else lora_shrink_f32
        self._expand = lora_expand_bf16 if is_short else lora_expand_f32

    def adapt(self, label: str, linear: Linear, inputs: Inputs, form: Form, place: Place) -> None:
        """Add to the layer's outputs at `place` what the rows' adapters make of `inputs`."""
        layer = self._slots.layers.get(linear.modules[0])
        if layer is None:
            return
        table, width, buffers = layer.table.address, self._slots.width, self._buffers
        shared = {"table": table, "parts": len(layer.shape.parts), "width": width}
        shrunk = [each.address for each in self._slots.shrunk]
        shrink = [
            ShrinkOperands(
                inputs=source,
                form=FORMS.index(form),
                row_scales=row_scales,
                weights=a.address,
                k=layer.shape.shape.k,
                shrunk=to,
                scratch=buffers.worker_scratch.address,
                scratch_stride=buffers.sizes.worker_scratch,
                **shared,
            )
            for (source, row_scales), a, to in zip(inputs, layer.a, shrunk, strict=False)
        ]
        self._program.add(f"{label} LoRA shrink", self._shrink, shrink)
        outputs, ldc = place
        cores = range(len(outputs))
        products = [shrunk[core if len(layer.a) > 1 else 0] for core in cores]
        weights = [layer.b[core if len(layer.b) > 1 else 0].address for core in cores]
        expand = [
            ExpandOperands(shrunk=products[i], weights=weights[i], outputs=outputs[i], ldc=ldc, **shared) for i in cores
        ]
        self._program.add(f"{label} LoRA expand", self._expand, expand)

    def product_of(self, op: Gated | Activate | None, place: Place) -> Place:
        """Where a product is left that `op` makes into what is at `place`: gate and up are twice as wide."""
        return ([each.address for each in self._slots.product], 2 * place[1]) if isinstance(op, Gated) else place

    def activate(
        self, label: str, op: Gated | Activate | None, kernels: LinearKernels, product: Place, place: Place
    ) -> None:
        """Add what `op` does, from `product` to `place`."""
        if op is None:
            return
        kernel, activation = activate_rows, ACTIVATIONS.index(op.activation)
        if isinstance(op, Gated):
            kernel = gate_panels if kernels.gated_leaves_panels else gate_rows
        (sources, columns), (outputs, width) = product, place
        operands = [
            ActivateOperands(source, columns, output, width, activation)
            for source, output in zip(sources, outputs, strict=True)
        ]
        self._program.add(f"{label} activation", kernel, operands)
