"""Checkpoints of small floats with scales of blocks: FP8 as DeepSeek publishes it, and NVFP4.

An FP8 module has e4m3 codes in `weight` and a scale for each block, often of 128 x 128, in `weight_scale_inv` or
`weight_scale`; a value is code * scale. An NVFP4 module has two E2M1 codes a byte, the lower half first, an e4m3 scale
for each 16 inputs, and one float32 for all: ModelOpt's `weight_scale_2` multiplies, and the `weight_global_scale` of
compressed-tensors divides. The names of tensors say which modules are quantized. A quantization of inputs or of the KV
cache in the file is not read. Sources: DeepSeek-V3 (kernel), transformers (finegrained_fp8),
compressed-tensors (compressors/nvfp4), ModelOpt (NVFP4QTensor).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from ml_dtypes import float4_e2m1fn, float8_e4m3fn
from msgspec import Meta

from ..config.formats import Quantization
from ..errors import CheckpointError
from ..models.config_values import Values
from ..typed_json import convert
from .packed_form import SECTION, require
from .stored import Float32, GroupedCodes, StoredTensor

NVFP4_GROUP = 16
SMALLEST_KEPT = 32  # groups of fewer inputs have no format of the cores
NVFP4 = "nvfp4-pack-quantized"
FLOATS = ("F32", "BF16", "F16", "F8_E8M0")  # dtypes of the scales of FP8
OF_INPUTS = ("input_scale", "input_global_scale")

BlockSize = Annotated[int, Meta(ge=1, le=1 << 20)]
Block = tuple[BlockSize, BlockSize]
ALGORITHMS = Literal["NVFP4", "W4A16_NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MIXED_PRECISION"]


@dataclass(frozen=True, slots=True)
class BlockForm:
    """Outputs and inputs that share a scale of FP8."""

    block: Block = (128, 128)


class _Fp8(msgspec.Struct):
    """Keys of `quant_method` fp8."""

    fmt: Literal["e4m3"] = "e4m3"
    weight_block_size: Block | None = None
    scale_fmt: Literal["ue8m0", "float"] | None = None

    def form(self) -> BlockForm:
        return BlockForm(self.weight_block_size or (128, 128))


class _ModelOpt(msgspec.Struct):
    quant_algo: ALGORITHMS

    def form(self) -> BlockForm:
        return BlockForm()


class _Weights(msgspec.Struct):
    type: Literal["float"]
    num_bits: Literal[4, 8]
    strategy: Literal["block", "tensor_group", "group", "channel", "tensor"]
    group_size: Literal[16] | None = None
    block_structure: Block | None = None
    symmetric: bool | None = None


class _Group(msgspec.Struct):
    weights: _Weights
    output_activations: Any = None


class _Compressed(msgspec.Struct):
    config_groups: Annotated[dict[str, _Group], Meta(min_length=1)]
    kv_cache_scheme: Any = None
    transform_config: Any = None

    def form(self) -> BlockForm:
        for key in ("kv_cache_scheme", "transform_config"):
            require(not getattr(self, key), f"{SECTION}.{key}", getattr(self, key), "not supported")
        for group in self.config_groups.values():
            weights, path = group.weights, f"{SECTION}.config_groups.weights"
            require(weights.symmetric is not False, f"{path}.symmetric", weights.symmetric, "only True is supported")
            has_group = weights.num_bits == 8 or weights.group_size == NVFP4_GROUP
            require(has_group, f"{path}.group_size", weights.group_size, f"NVFP4 has groups of {NVFP4_GROUP}")
        found = (group.weights.block_structure for group in self.config_groups.values())
        return BlockForm(next((each for each in found if each), (128, 128)))


def is_scaled_blocks(section: Values) -> bool:
    """Return whether `block_form` reads a section."""
    groups = section.get("config_groups")
    values = groups.values() if isinstance(groups, dict) else ()
    weights = [group.get("weights") for group in values if isinstance(group, dict)]
    has_blocks = any(isinstance(each, dict) and each.get("strategy") == "block" for each in weights)
    return section.get("quant_method") in ("fp8", "modelopt") or section.get("format") == NVFP4 or has_blocks


def block_form(section: Values) -> BlockForm:
    """Return the form of a section that `is_scaled_blocks`. Raises JsonError for an unsupported key."""
    kinds: dict[object, type[_Fp8 | _ModelOpt]] = {"fp8": _Fp8, "modelopt": _ModelOpt}
    kind: type[_Fp8 | _ModelOpt | _Compressed] = kinds.get(section.get("quant_method"), _Compressed)
    return convert(section, kind, f"{SECTION}.").form()


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """The weight of one module."""

    codes: StoredTensor
    scales: StoredTensor
    shape: tuple[int, ...]
    block: Block  # outputs and inputs of a scale
    is_nvfp4: bool
    factor: float = 1.0  # all scales are multiplied with it
    divisor: float = 1.0  # and divided by it

    @property
    def path(self) -> Path:
        return self.codes.path

    @property
    def dtype(self) -> str:
        return "NVFP4" if self.is_nvfp4 else "FP8 in blocks"

    @property
    def has_values(self) -> bool:
        return True

    @property
    def held_by(self) -> Quantization:
        """Codes in groups of 16 become eight bits for each 32."""
        return "int8-groups" if self.is_nvfp4 else "mxfp8"

    @property
    def group(self) -> int:
        return 0 if self._width % SMALLEST_KEPT else self._width

    @property
    def _width(self) -> int:
        """Inputs that share a scale, of blocks that do not divide a row the largest part that does."""
        return math.gcd(self.block[1], self.shape[1])

    def rows(self, begin: int, end: int) -> Float32:
        """Return rows [begin, end) as float32."""
        return self.grouped(begin, end).values()

    def grouped(self, begin: int, end: int) -> GroupedCodes:
        """Return the codes of rows [begin, end)."""
        height, width = self.block
        first = begin // height
        stored = self.scales.rows(first, max(first, -(-end // height))) if self.scales.shape else self.scales.rows(0, 1)
        with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses values that are not finite
            scales = stored.astype(np.float32).reshape(len(stored), -1)
            scales = scales * np.float32(self.factor) / np.float32(self.divisor)
        at_rows = np.arange(begin, end) // height - first
        at_columns = np.arange(0, self.shape[1], self._width) // width
        return GroupedCodes(self._codes(begin, end), scales[at_rows][:, at_columns], None, self._width)

    def _codes(self, begin: int, end: int) -> npt.NDArray[Any]:
        codes = self.codes.rows(begin, end).view(np.uint8)
        if not self.is_nvfp4:
            return codes.view(float8_e4m3fn)
        return np.stack([codes & 0xF, codes >> 4], axis=-1).reshape(len(codes), -1).view(float4_e2m1fn)


def with_blocks(
    tensors: Mapping[str, StoredTensor], form: BlockForm, expected: Mapping[str, tuple[int, ...]]
) -> dict[str, StoredTensor]:
    """Return `tensors` with one weight for each quantized module in place of its codes and scales.

    Raises CheckpointError for codes or scales of another dtype or shape than the model's dimensions imply.
    """
    weights = {name.removesuffix(".weight"): shape for name, shape in expected.items() if name.endswith(".weight")}
    quantized, used = {}, set()
    for module, shape in weights.items():
        packed, inverse = f"{module}.weight_packed", f"{module}.weight_scale_inv"
        scale = inverse if inverse in tensors else f"{module}.weight_scale"
        codes = packed if packed in tensors else f"{module}.weight"
        if scale in tensors and codes in tensors:
            is_nvfp4 = tensors[codes].dtype == "U8"
            make = _nvfp4 if is_nvfp4 else _fp8
            quantized[f"{module}.weight"] = make(tensors, (codes, scale), (shape[0], shape[1]), form)
            used |= {codes, scale, f"{module}.weight_scale_2", f"{module}.weight_global_scale"}
            used |= {f"{module}.{each}" for each in OF_INPUTS}
    return {name: tensor for name, tensor in tensors.items() if name not in used} | quantized


Tensors = Mapping[str, StoredTensor]


def _fp8(tensors: Tensors, names: tuple[str, str], shape: tuple[int, int], form: BlockForm) -> BlockTensor:
    """Return a module of e4m3 codes. One scale, or one for each output, has a block of its own."""
    codes, scales = (tensors[name] for name in names)
    _check(codes, names[0], {shape}, ("F8_E4M3",))
    (n, k), (height, width) = shape, form.block
    counts = -(-n // height), -(-k // width)
    blocks = {counts: form.block, (counts[0], 1, counts[1], 1): form.block, (n, 1): (1, k), (n,): (1, k)}
    blocks |= {(): shape, (1,): shape, (1, 1): shape}
    _check(scales, names[1], set(blocks), FLOATS)
    return BlockTensor(codes, scales, shape, blocks[scales.shape], False)


def _nvfp4(tensors: Tensors, names: tuple[str, str], shape: tuple[int, int], _: BlockForm) -> BlockTensor:
    """Return a module of E2M1 codes."""
    codes, scales = (tensors[name] for name in names)
    n, k = shape
    _check(codes, names[0], {(n, k // 2)}, ("U8",))
    _check(scales, names[1], {(n, k // NVFP4_GROUP)}, ("F8_E4M3",))
    if k % NVFP4_GROUP:
        reason = f"has {k} inputs, which is no multiple of the group size {NVFP4_GROUP}"
        raise CheckpointError(str(codes.path), reason, names[0])
    return BlockTensor(
        codes, scales, shape, (1, NVFP4_GROUP), True, *_factors(tensors, names[0].rpartition(".")[0], codes)
    )


def _factors(tensors: Tensors, module: str, codes: StoredTensor) -> tuple[float, float]:
    """Return factor and divisor of all scales of a module."""
    for ending in ("weight_scale_2", "weight_global_scale"):
        name = f"{module}.{ending}"
        if name in tensors:
            _check(tensors[name], name, {(), (1,)}, ("F32",))
            value = float(tensors[name].rows(0, 1)[0])
            if not (math.isfinite(value) and value > 0):
                raise CheckpointError(str(tensors[name].path), f"is {value}, must be above 0", name)
            return (value, 1.0) if ending == "weight_scale_2" else (1.0, value)
    reason = "neither weight_scale_2 nor weight_global_scale is there"
    raise CheckpointError(str(codes.path), reason, module)


def _check(tensor: StoredTensor, name: str, shapes: set[tuple[int, ...]], dtypes: tuple[str, ...]) -> None:
    if tensor.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in sorted(shapes, key=len, reverse=True)[:2])
        reason = f"has shape {list(tensor.shape)}, config.json makes it {wanted}"
        raise CheckpointError(str(tensor.path), reason, name)
    if tensor.dtype not in dtypes:
        raise CheckpointError(str(tensor.path), f"has dtype {tensor.dtype}, must be {' or '.join(dtypes)}", name)
