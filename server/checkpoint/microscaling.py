"""compressed-tensors checkpoints in the OCP microscaling formats: `mxfp8-quantized` and `mxfp4-pack-quantized`.

A module has e4m3 codes in `weight`, or two E2M1 codes a byte, the lower half first, in `weight_packed`, and a power of
two (E8M0) for each 32 inputs in `weight_scale`. A quantization of inputs in the file is not read. Sources:
compressed-tensors (compressors/mxfp4, mxfp8), OCP Microscaling Formats specification 1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from ml_dtypes import float4_e2m1fn, float8_e4m3fn
from msgspec import Meta

from ..errors import CheckpointError
from ..models.config_values import Values
from ..typed_json import JsonError, complaint, convert, shown_key
from .packed_form import SECTION
from .stored import Float32, GroupedCodes, StoredTensor, powers_of_two

MICROSCALING_GROUP = 32
Microscaling = Literal["mxfp8", "mxfp4"]


@dataclass(frozen=True, slots=True)
class MicroscalingForm:
    """Format of all quantized modules. The names of tensors say which modules are quantized."""

    quantization: Microscaling

    @property
    def codes(self) -> str:
        """Ending of the name of a module's codes."""
        return "weight" if self.quantization == "mxfp8" else "weight_packed"

    @property
    def dtype(self) -> str:
        """Dtype of the codes in safetensors."""
        return "F8_E4M3" if self.quantization == "mxfp8" else "U8"

    @property
    def per_byte(self) -> int:
        return 1 if self.quantization == "mxfp8" else 2


FORMS = {"mxfp8-quantized": MicroscalingForm("mxfp8"), "mxfp4-pack-quantized": MicroscalingForm("mxfp4")}
SCALE = "weight_scale"


class _Weights(msgspec.Struct):
    type: Literal["float"]
    num_bits: Literal[4, 8]
    strategy: Literal["group"]
    group_size: Literal[32]
    symmetric: bool | None = None
    dynamic: bool | None = None


class _Group(msgspec.Struct):
    weights: _Weights
    output_activations: Any = None


class _Section(msgspec.Struct):
    """Keys of `quantization_config` that are read."""

    format: Literal["mxfp8-quantized", "mxfp4-pack-quantized"]
    config_groups: Annotated[dict[str, _Group], Meta(min_length=1, max_length=1)]
    kv_cache_scheme: Any = None
    transform_config: Any = None


def is_microscaling(section: Values) -> bool:
    """Return whether `microscaling_form` reads a section."""
    return section.get("format") in FORMS


def microscaling_form(section: Values) -> MicroscalingForm:
    """Return the form of a section that `is_microscaling`. Raises JsonError for an unsupported key."""
    read = convert(section, _Section, f"{SECTION}.")
    form = FORMS[read.format]
    [(name, group)] = read.config_groups.items()
    path = f"{SECTION}.config_groups.{shown_key(name)}"
    unsupported: dict[str, object] = {
        f"{SECTION}.kv_cache_scheme": read.kv_cache_scheme,
        f"{SECTION}.transform_config": read.transform_config,
        f"{path}.output_activations": group.output_activations,
        f"{path}.weights.dynamic": group.weights.dynamic,
    }
    for key, value in unsupported.items():
        if value:
            raise JsonError(complaint(key, value, "not supported"))
    if group.weights.num_bits * form.per_byte != 8:
        raise JsonError(complaint(f"{path}.weights.num_bits", group.weights.num_bits, f"the format is {read.format}"))
    return form


@dataclass(frozen=True, slots=True)
class MicroscaledTensor:
    """The weight of one module."""

    codes: StoredTensor
    scales: StoredTensor
    shape: tuple[int, ...]
    held_by: Microscaling

    @property
    def path(self) -> Path:
        return self.codes.path

    @property
    def dtype(self) -> str:
        return self.held_by.upper()

    @property
    def has_values(self) -> bool:
        return True

    @property
    def group(self) -> int:
        return MICROSCALING_GROUP

    def rows(self, begin: int, end: int) -> Float32:
        """Return rows [begin, end) as float32."""
        return self.grouped(begin, end).values()

    def grouped(self, begin: int, end: int) -> GroupedCodes:
        """Return the codes of rows [begin, end)."""
        codes, scales = self.codes.rows(begin, end), self.scales.rows(begin, end)
        return microscaled_codes(codes.view(np.uint8), scales, self.held_by)


def microscaled_codes(
    codes: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8], quantization: Microscaling
) -> GroupedCodes:
    """Return the codes of rows of a file, [rows, bytes], with a scale for each group, [rows, groups].

    Values of a group whose scale is NaN are NaN.
    """
    if quantization == "mxfp8":
        return GroupedCodes(codes.view(float8_e4m3fn), powers_of_two(scales), None, MICROSCALING_GROUP)
    halves = np.stack([codes & 0xF, codes >> 4], axis=-1).reshape(len(codes), -1)
    return GroupedCodes(halves.view(float4_e2m1fn), powers_of_two(scales), None, MICROSCALING_GROUP)


def with_microscaled(
    tensors: Mapping[str, StoredTensor], form: MicroscalingForm, expected: Mapping[str, tuple[int, ...]]
) -> dict[str, StoredTensor]:
    """Return `tensors` with one weight for each quantized module in place of its codes and scales.

    Raises CheckpointError for codes or scales of another dtype or shape than the model's dimensions imply.
    """
    weights = {name.removesuffix(".weight"): shape for name, shape in expected.items() if name.endswith(".weight")}
    modules = {each: shape for each, shape in weights.items() if f"{each}.{SCALE}" in tensors}
    for module, (n, k) in modules.items():
        _check(tensors, f"{module}.{form.codes}", (n, k // form.per_byte), form.dtype)
        _check(tensors, f"{module}.{SCALE}", (n, -(-k // MICROSCALING_GROUP)), "U8")
        if k % MICROSCALING_GROUP:
            reason = f"has {k} inputs, which is no multiple of the group size {MICROSCALING_GROUP}"
            raise CheckpointError(str(tensors[f"{module}.{SCALE}"].path), reason, f"{module}.{form.codes}")
    quantized = {
        f"{module}.weight": MicroscaledTensor(
            tensors[f"{module}.{form.codes}"], tensors[f"{module}.{SCALE}"], shape, form.quantization
        )
        for module, shape in modules.items()
    }
    used = {f"{module}.{part}" for module in modules for part in (form.codes, SCALE)}
    return {name: tensor for name, tensor in tensors.items() if name not in used} | quantized


def _check(tensors: Mapping[str, StoredTensor], name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Check presence, shape and dtype of a tensor."""
    tensor = tensors.get(name)
    if tensor is None:
        any_scale = next(tensors[each].path for each in tensors if each.endswith(SCALE))
        raise CheckpointError(str(any_scale), "missing, though its scales are there", name)
    if tensor.shape != shape:
        reason = f"has shape {list(tensor.shape)}, config.json makes it {list(shape)}"
        raise CheckpointError(str(tensor.path), reason, name)
    if tensor.dtype != dtype:
        raise CheckpointError(str(tensor.path), f"has dtype {tensor.dtype}, must be {dtype}", name)
