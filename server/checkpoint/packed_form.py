"""`quantization_config` of checkpoints whose codes are packed into 32-bit words: GPTQ, AWQ, compressed-tensors' own.

A section is read as a `PackedForm`; an option that would change the values and is not read is refused by name. Reads no
weights. Sources: the configurations of AutoGPTQ and GPTQModel, the GEMM module of AutoAWQ, and the packed compressor of
compressed-tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..models.config_values import Values
from ..typed_json import JsonError, complaint, convert, shown_key

SECTION = "quantization_config"
PACKED = "pack-quantized"
Layout = Literal["gptq", "awq", "compressed-tensors"]
GroupSize = Annotated[int, Meta(ge=-1, le=1 << 20)]  # -1 = all of a row
Bits = Literal[4, 8]


@dataclass(frozen=True, slots=True)
class PackedForm:
    """Form of all packed modules of a checkpoint. The names of tensors say which modules are packed."""

    layout: Layout
    bits: Bits
    group_size: int | None  # inputs that share a scale; None = all of a row
    zero_shift: int = 0  # added to zero points that are stored, modulo the number of codes


class _Gptq(msgspec.Struct):
    """Keys of GPTQ. `sym` and `desc_act` are not read: zero points and the groups of inputs are in the files."""

    bits: Bits
    group_size: GroupSize
    checkpoint_format: Literal["gptq", "gptq_v2"] | None = None
    dynamic: Any = None
    is_marlin_format: bool = False

    def form(self, path: str) -> PackedForm:
        require(not self.is_marlin_format, f"{path}.is_marlin_format", True, "not supported")
        require(not self.dynamic, f"{path}.dynamic", self.dynamic, "modules that differ are not supported")
        shift = 0 if self.checkpoint_format == "gptq_v2" else 1
        return PackedForm("gptq", self.bits, _size(self.group_size, path), shift)


class _Awq(msgspec.Struct):
    bits: Literal[4]
    group_size: GroupSize
    zero_point: bool = True
    version: str = "gemm"

    def form(self, path: str) -> PackedForm:
        require(self.version.lower() == "gemm", f"{path}.version", self.version, "only 'gemm' is supported")
        require(self.zero_point, f"{path}.zero_point", self.zero_point, "only true is supported")
        return PackedForm("awq", self.bits, _size(self.group_size, path))


class _Weights(msgspec.Struct):
    """Format of the codes. null means the form's own defaults."""

    type: Literal["int"]
    num_bits: Bits
    strategy: Literal["group", "channel"]
    group_size: GroupSize | None = None
    dynamic: bool | None = None
    block_structure: Any = None


class _Group(msgspec.Struct):
    weights: _Weights
    input_activations: Any = None
    output_activations: Any = None


class _Compressed(msgspec.Struct):
    config_groups: Annotated[dict[str, _Group], Meta(min_length=1, max_length=1)]
    kv_cache_scheme: Any = None
    transform_config: Any = None

    def form(self, path: str) -> PackedForm:
        for key in ("kv_cache_scheme", "transform_config"):
            require(not getattr(self, key), f"{path}.{key}", getattr(self, key), "not supported")
        [(name, group)] = self.config_groups.items()
        path, weights = f"{path}.config_groups.{shown_key(name)}", group.weights
        for key in ("input_activations", "output_activations"):
            value = getattr(group, key)
            require(not value, f"{path}.{key}", value, "with packed weights activations are not quantized")
        for key in ("dynamic", "block_structure"):
            require(not getattr(weights, key), f"{path}.weights.{key}", getattr(weights, key), "not supported")
        size = _size(weights.group_size, f"{path}.weights")
        is_stated = (weights.strategy == "group") == (size is not None)
        require(is_stated, f"{path}.weights.group_size", size, f"the strategy is {weights.strategy!r}")
        return PackedForm("compressed-tensors", weights.num_bits, size)


def is_packed(section: Values) -> bool:
    """Return whether `packed_form` reads a section."""
    return section.get("quant_method") in ("gptq", "awq") or section.get("format") == PACKED


def packed_form(section: Values) -> PackedForm:
    """Return the form of a section that `is_packed`. Raises JsonError for an unsupported key."""
    kinds: dict[object, type[_Gptq | _Awq]] = {"gptq": _Gptq, "awq": _Awq}
    kind: type[_Gptq | _Awq | _Compressed] = kinds.get(section.get("quant_method"), _Compressed)
    return convert(section, kind, f"{SECTION}.").form(SECTION)


def _size(size: int | None, path: str) -> int | None:
    require(size != 0, f"{path}.group_size", size, "must be at least 1, or -1 for all of a row")
    return None if size == -1 else size


def require(holds: bool, key: str, value: object, reason: str) -> None:
    """Raise JsonError with `key`, `value` and `reason` unless the condition holds."""
    if not holds:
        raise JsonError(complaint(key, value, reason))
