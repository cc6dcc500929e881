"""LoRA adapters in a device program: the instructions that follow a matmul whose layer may be adapted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import DeviceError
from ..kernels.activate import ActivateOperands, activate_rows, gate_panels, gate_rows
from ..kernels.dispatch import LinearKernels
from ..kernels.lora import (
    FORMS,
    ExpandOperands,
    Form,
    ShrinkOperands,
    lora_expand_bf16,
    lora_expand_f32,
    lora_shrink_bf16,
    lora_shrink_f32,
)
from ..kernels.matmul.epilogue import ACTIVATIONS
from ..kernels.program import Program
from ..models.linear import Linear
from ..models.ops import Activate, Gated
from .buffers import ActivationBuffers
from .load.adapter_slots import AdapterSlots
from .operands import PanelAddresses

FloatRows = tuple[Sequence[int], int]  # float32 rows: their address on each core, and columns

# Form of the panels that each packing kernel makes.
FORM_OF: Mapping[str, Form] = {
    "reduce_norm_f32": "float32",
    "reduce_norm_bf16": "bfloat16",
    "reduce_norm_i8": "int8",
    "reduce_norm_i8_rotated": "int8 rotated",
    "reduce_norm_i8_chunks": "int8 chunks",
}


def panel_form(kernels: LinearKernels) -> Form:
    """Return the form of the panels that a product reads. Raises DeviceError for one that no adapter reads."""
    packed_by = kernels.reduce_norm.name
    if packed_by not in FORM_OF:
        raise DeviceError(f"no adapter kernel reads the panels of {packed_by}")
    return FORM_OF[packed_by]


class AdapterInstructions:
    """Adds the adapters' instructions to one program."""

    def __init__(self, program: Program, slots: AdapterSlots, buffers: ActivationBuffers) -> None:
        self._program, self._slots, self._buffers = program, slots, buffers
        is_short = slots.dtype == "bfloat16"
        self._shrink = lora_shrink_bf16 if is_short else lora_shrink_f32
        self._expand = lora_expand_bf16 if is_short else lora_expand_f32

    def adapt(self, label: str, linear: Linear, inputs: PanelAddresses, form: Form, outputs: FloatRows) -> None:
        """Add to the layer's outputs the product of `inputs` and the rows' adapters."""
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
        addresses, ldc = outputs
        cores = range(len(addresses))
        products = [shrunk[core if len(layer.a) > 1 else 0] for core in cores]
        weights = [layer.b[core if len(layer.b) > 1 else 0].address for core in cores]
        expand = [
            ExpandOperands(shrunk=products[i], weights=weights[i], outputs=addresses[i], ldc=ldc, **shared)
            for i in cores
        ]
        self._program.add(f"{label} LoRA expand", self._expand, expand)

    def product_of(self, op: Gated | Activate | None, outputs: FloatRows) -> FloatRows:
        """Return where the product goes that `op` turns into `outputs`: gate and up are twice as wide."""
        return ([each.address for each in self._slots.product], 2 * outputs[1]) if isinstance(op, Gated) else outputs

    def activate(
        self, label: str, op: Gated | Activate | None, kernels: LinearKernels, product: FloatRows, outputs: FloatRows
    ) -> None:
        """Add the activation `op`, from `product` to `outputs`."""
        if op is None:
            return
        kernel, activation = activate_rows, ACTIVATIONS.index(op.activation)
        if isinstance(op, Gated):
            kernel = gate_panels if kernels.gated_leaves_panels else gate_rows
        (sources, columns), (targets, width) = product, outputs
        operands = [
            ActivateOperands(source, columns, target, width, activation)
            for source, target in zip(sources, targets, strict=True)
        ]
        self._program.add(f"{label} activation", kernel, operands)
