"""Names that settings choose from: formats of numbers, instruction sets and others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["bfloat16", "float32"]
Quantization = Literal["int8", "int8-weight-only", "int8-groups", "fp8", "fp8_e5m2", "mxfp8", "int4", "mxfp4"]
WeightFormat = Dtype | Quantization | Literal["int8-rotated"]
LevelIsa = Literal[  # best first, of each architecture
    "amx", "avx512-bf16", "avx512-vnni", "avx512", "avx2-vnni", "avx2", "neon-i8mm", "neon-dot"
]
Isa = LevelIsa | Literal["portable"]
Batching = Literal["continuous", "neuron", "tgi", "static"]
SchedulingPolicy = Literal["fcfs", "priority", "fair", "slo"]
StackName = Literal["nxdi-vllm", "optimum-vllm", "vllm-neuron", "tgi", "nxd-static", "ideal"]
Pace = Literal["host", "device"]
KVCacheDtype = Literal["bfloat16", "float32", "int8", "fp8"]
RunnerKind = Literal["auto", "generate", "pooling"]
PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


# Formats with larger errors than int8, whose output layer is in int8-groups.
WIDE_OUTPUT: tuple[Quantization, ...] = ("fp8", "fp8_e5m2", "mxfp8", "int4", "mxfp4")
GroupSize = Literal[32, 64, 128]


@dataclass(frozen=True, slots=True)
class WeightGroups:
    """Groups of int4 weights: neighbours in k that share a scale, and without symmetry also a shift."""

    size: GroupSize = 32
    is_symmetric: bool = True


DEFAULT_GROUPS = WeightGroups()


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """The format of every matrix: `quantization` (None = none), but `dtype` for the modules that are left out.

    `wide_modules` are in int8-groups: the files have codes for them with more bits than `quantization`.

    `from_values`: this server makes the codes. It rotates int8 matrices and their inputs, since an outlier of an input
    would use most of its token's 255 steps (server/kernels/rotation.py). Formats in WIDE_OUTPUT then have the output
    layer in int8-groups, because its errors are the logits' errors. Codes of a checkpoint stay as they are.
    """

    dtype: Dtype
    quantization: Quantization | None = None
    modules_to_not_convert: tuple[str, ...] = ()
    from_values: bool = False
    groups: WeightGroups = DEFAULT_GROUPS
    wide_modules: frozenset[str] = frozenset()

    @property
    def goes_by_name(self) -> bool:
        """Whether matrices that differ only in names may have different formats."""
        return bool(self.modules_to_not_convert or self.wide_modules)

    def of(self, *modules: str, is_output: bool = False) -> WeightFormat:
        """Return the format of a matrix made of `modules` (dotted names). A module is left out with its parent.

        `is_output`: the matrix is the output layer.
        """
        if self.quantization is None or any(self._is_left_out(module) for module in modules):
            return self.dtype
        if not self.wide_modules.isdisjoint(modules):
            return "int8-groups"
        if self.from_values and is_output and self.quantization in WIDE_OUTPUT:
            return "int8-groups"
        return "int8-rotated" if self.from_values and self.quantization == "int8" else self.quantization

    def _is_left_out(self, module: str) -> bool:
        return any(f".{name}." in f".{module}." for name in self.modules_to_not_convert)


@dataclass(frozen=True, slots=True)
class RequestedFormats:
    """Formats that a user requests, before the model's files are read, which may be quantized already."""

    dtype: Dtype
    quantization: Quantization | Literal["none"] | None = None  # None = as the files are
    modules_to_not_convert: tuple[str, ...] = ()
    groups: WeightGroups | None = None  # of quantization int4; None = as the files are
    may_microscale: bool = False  # codes of microscaling formats may stay as they are in the files
