"""`quantization_config` of checkpoints whose codes are packed into 32-bit words: GPTQ, AWQ, compressed-tensors' own.

What a section says is read into a `PackedForm`; every option that would change the values and is not read is refused by
name. Reads no weights. Sources: AutoGPTQ and GPTQModel (quantization/config.py), AutoAWQ (modules/linear/gemm.py),
compressed-tensors (compressors/quantized_compressors/pack_quantized.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from neuronserve.server.models.config_values import Values
from neuronserve.server.typed_json import JsonError, complaint, convert, shown_key

SECTION = "quantization_config"
PACKED = "pack-quantized"
Layout = Literal["gptq", "awq", "compressed-tensors"]
GroupSize = Annotated[int, Meta(ge=-1, le=1 << 20)]  # -1 = all of a row
Bits = Literal[4, 8]


@dataclass(frozen=True, slots=True)
class PackedForm:
    """How all packed modules of a checkpoint are to be read. Which these are, their tensors say."""

    layout: Layout
    bits: Bits
    group_size: int | None  # inputs that share a scale; None = all of a row
    zero_shift: int = 0  # added to zero points that are stored, modulo the number of codes


class _Gptq(msgspec.Struct):
    """`sym` and `desc_act` need not be known: zero points and the groups of inputs are in the files."""

    bits: Bits
    group_size: GroupSize
    checkpoint_format: Literal["gptq", "gptq_v2"] | None = None
    dynamic: Any = None
    is_marlin_format: bool = False

    def form(self, path: str) -> PackedForm:
        _require(not self.is_marlin_format, f"{path}.is_marlin_format", True, "not supported")
        _require(not self.dynamic, f"{path}.dynamic", self.dynamic, "modules that differ are not supported")
        shift = 0 if self.checkpoint_format == "gptq_v2" else 1
        return PackedForm("gptq", self.bits, _size(self.group_size, path), shift)


class _Awq(msgspec.Struct):
    bits: Literal[4]
    group_size: GroupSize
    zero_point: bool = True
    version: str = "gemm"

    def form(self, path: str) -> PackedForm:
        _require(self.version.lower() == "gemm", f"{path}.version", self.version, "only 'gemm' is supported")
        _require(self.zero_point, f"{path}.zero_point", self.zero_point, "only true is supported")
        return PackedForm("awq", self.bits, _size(self.group_size, path))


class _Weights(msgspec.Struct):
    """null stands for the form's own defaults."""

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
            _require(not getattr(self, key), f"{path}.{key}", getattr(self, key), "not supported")
        [(name, group)] = self.config_groups.items()
        path, weights = f"{path}.config_groups.{shown_key(name)}", group.weights
        for key in ("input_activations", "output_activations"):
            value = getattr(group, key)
            _require(not value, f"{path}.{key}", value, "with packed weights activations are not quantized")
        for key in ("dynamic", "block_structure"):
            _require(not getattr(weights, key), f"{path}.weights.{key}", getattr(weights, key), "not supported")
        size = _size(weights.group_size, f"{path}.weights")
        is_stated = (weights.strategy == "group") == (size is not None)
        _require(is_stated, f"{path}.weights.group_size", size, f"the strategy is {weights.strategy!r}")
        return PackedForm("compressed-tensors", weights.num_bits, size)


def is_packed(section: Values) -> bool:
    """Whether a section is one of those read here."""
    return section.get("quant_method") in ("gptq", "awq") or section.get("format") == PACKED


def packed_form(section: Values) -> PackedForm:
    """What a section that `is_packed` says. Raises JsonError for what is not supported, by its key."""
    kinds: dict[object, type[_Gptq | _Awq]] = {"gptq": _Gptq, "awq": _Awq}
    kind: type[_Gptq | _Awq | _Compressed] = kinds.get(section.get("quant_method"), _Compressed)
    return convert(section, kind, f"{SECTION}.").form(SECTION)


def _size(size: int | None, path: str) -> int | None:
    _require(size != 0, f"{path}.group_size", size, "must be at least 1, or -1 for all of a row")
    return None if size == -1 else size


def _require(holds: bool, key: str, value: object, reason: str) -> None:
    if not holds:
        raise JsonError(complaint(key, value, reason))
