"""Checkpoints that hold the experts of a layer in one tensor: slices of it as the tensors of each expert.

One tensor has all gates and ups, `experts.gate_up_proj`, another all downs, `experts.down_proj`: [experts, outputs,
inputs] or [experts, inputs, outputs], as `Names.fused` says, with a scale for each block in `_scale_inv` if they are
FP8; or the values are MXFP4 in `_blocks`, [experts, outputs, inputs / 32, 16], and `_scales`. Source: transformers,
models/{qwen2_moe,gpt_oss,llama4}/modeling_*.py, and for the codes the OCP Microscaling Formats specification 1.0 (e2m1
values, a power of two for each 32; the lower half of a byte first).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

from ..config.formats import Quantization
from ..errors import CheckpointError
from ..models.names import FusedExperts
from .microscaling import MICROSCALING_GROUP, microscaled_codes
from .stored import GroupedCodes, StoredTensor

Array = npt.NDArray[Any]

EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")
BLOCKS, SCALES, INVERSE = "_blocks", "_scales", "_scale_inv"


@dataclass(frozen=True, slots=True)
class _Fused:
    """One tensor of all experts. The slice of the last expert is kept, since it is read in many small pieces."""

    name: str
    tensor: StoredTensor
    scales: StoredTensor | None  # None = the tensor holds values, not blocks of MXFP4
    is_transposed: bool
    takes_turns: bool  # gate and up by row, not one after the other
    kept: dict[int, tuple[Array, ...]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all experts: [experts, outputs, inputs], or [experts, outputs] for a bias."""
        count, *rest = self.tensor.shape
        if self.scales is not None:
            outputs, groups, size = rest
            return count, outputs, groups * size * 2
        return (count, *reversed(rest)) if self.is_transposed else (count, *rest)

    def rows(self, expert: int, part: slice, begin: int, end: int) -> tuple[Array, ...]:
        """Return outputs [begin, end) of a part of one expert: values, or MXFP4 blocks and scales."""
        return tuple(each[part][begin:end] for each in self._of(expert))

    def _of(self, expert: int) -> tuple[Array, ...]:
        with self.lock:
            if expert not in self.kept:
                self.kept.clear()
                self.kept[expert] = self._read(expert)
            return self.kept[expert]

    def _read(self, expert: int) -> tuple[Array, ...]:
        values: Array = self.tensor.rows(expert, expert + 1)[0]
        if self.scales is not None:
            return values, self.scales.rows(expert, expert + 1)[0]
        return (np.ascontiguousarray(values.T) if self.is_transposed else values,)


@dataclass(frozen=True, slots=True)
class ExpertTensor:
    """Rows of one expert's gate, up or down in the tensor of all experts."""

    fused: _Fused
    expert: int
    part: slice  # of the outputs

    @property
    def path(self) -> Path:
        return self.fused.tensor.path

    @property
    def dtype(self) -> str:
        return self.fused.tensor.dtype if self.fused.scales is None else "MXFP4"

    @property
    def shape(self) -> tuple[int, ...]:
        _, outputs, *rest = self.fused.shape
        return len(range(outputs)[self.part]), *rest

    @property
    def has_values(self) -> bool:
        return self.fused.scales is not None or self.fused.tensor.has_values

    def rows(self, begin: int, end: int) -> Array:
        """Return [begin, end) of the first axis; MXFP4 as bfloat16, which holds it exactly."""
        if not self.group:
            return self.fused.rows(self.expert, self.part, begin, end)[0]
        with np.errstate(over="ignore"):  # a value beyond the range becomes infinity, which is refused
            values: Array = self.grouped(begin, end).values().astype(bfloat16)
        return values

    @property
    def held_by(self) -> Quantization | None:
        return None if self.fused.scales is None else "mxfp4"

    @property
    def group(self) -> int:
        return 0 if self.fused.scales is None else MICROSCALING_GROUP

    def grouped(self, begin: int, end: int) -> GroupedCodes:
        """Return the codes of rows [begin, end)."""
        blocks, scales = self.fused.rows(self.expert, self.part, begin, end)
        return microscaled_codes(blocks.reshape(len(blocks), -1), scales, "mxfp4")


def with_experts(
    tensors: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]], form: FusedExperts
) -> Mapping[str, StoredTensor]:
    """Return `tensors`, where tensors of all experts are split if the model expects one for each.

    Raises CheckpointError for a tensor that has other dimensions, or another number of experts.
    """
    wanted = {name: found for name in expected if name not in tensors and (found := EXPERT.fullmatch(name))}
    counts: dict[str, int] = {}
    for found in wanted.values():
        counts[found[1]] = max(counts.get(found[1], 0), int(found[2]) + 1)
    fused: dict[str, _Fused] = {}
    apart: dict[str, StoredTensor] = {}
    for name, found in wanted.items():
        stem = f"{found[1]}.{'down_proj' if found[3] == 'down' else 'gate_up_proj'}"
        for ending, own in (("_bias", ""),) if found[4] == "bias" else (("", ""), (INVERSE, INVERSE)):
            whole = stem + ending
            if whole not in fused:
                # Blocks of scales have a shape of their own.
                inputs = 0 if ending == INVERSE else expected[name][-1]
                if (opened := _open(tensors, whole, form, counts[found[1]], inputs)) is not None:
                    fused[whole] = opened
            if whole in fused:
                apart[name + own] = ExpertTensor(fused[whole], int(found[2]), _part(found[3], fused[whole]))
    used = {stored for name in fused for stored in (name, name + BLOCKS, name + SCALES)}
    return {**{name: tensor for name, tensor in tensors.items() if name not in used}, **apart}


def _open(tensors: Mapping[str, StoredTensor], name: str, form: FusedExperts, count: int, inputs: int) -> _Fused | None:
    """Return the tensor of all experts of this name; None where there is none.

    Files of Qwen3-VL are transposed as published, and not as transformers writes them: the number of inputs decides.
    """
    is_blocks = name + BLOCKS in tensors
    tensor = tensors.get(name + BLOCKS if is_blocks else name)
    if tensor is None:
        return None
    scales = tensors.get(name + SCALES) if is_blocks else None
    is_bias = name.endswith("_bias")
    num_dims = 4 if is_blocks else 2 if is_bias else 3
    shape = list(tensor.shape)
    if len(shape) != num_dims or shape[0] != count:
        reason = f"has shape {shape}, config.json makes it {num_dims} dimensions, the first of {count} experts"
        raise CheckpointError(str(tensor.path), reason, name)
    if is_blocks and (scales is None or list(scales.shape) != shape[:3] or {tensor.dtype, scales.dtype} != {"U8"}):
        raise CheckpointError(str(tensor.path), "MXFP4 blocks without scales of U8 for each", name + BLOCKS)
    takes_turns = form == "inputs, in turns" and not name.removesuffix("_bias").endswith("down_proj")
    is_transposed = form != "outputs" or shape[1] == inputs != shape[-1]
    return _Fused(name, tensor, scales, is_transposed and not is_blocks and not is_bias, takes_turns)


def _part(projection: str, fused: _Fused) -> slice:
    """Return the outputs of a projection within the tensor of all experts."""
    if projection == "down":
        return slice(None)
    if fused.takes_turns:
        return slice(0, None, 2) if projection == "gate" else slice(1, None, 2)
    half = fused.shape[1] // 2
    return slice(0, half) if projection == "gate" else slice(half, None)
