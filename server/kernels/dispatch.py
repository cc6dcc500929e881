"""Number formats of weights and activations, and the kernels that compute each on this host's instruction set.

Only this module looks at the CPU. A matrix has a format; the instruction before it packs activations for that format.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..config.formats import Dtype, Isa, KVCacheDtype, LevelIsa, WeightFormat
from ..errors import DeviceError
from ..host.isa import BY_ISA, isas_of, isas_within
from . import embedding, norm, pack
from .attention import amx as attention_amx
from .attention import both_sides, integer_lanes, rope
from .attention import lanes as attention_lanes
from .experts import combine as combining
from .experts import route as routing
from .isa import amx, target
from .isa.jit import Kernel
from .matmul import amx as matmul_amx
from .matmul import group_bytes, group_lanes
from .matmul import lanes as matmul_lanes
from .state import convolution, gated_norm, recurrence

_BYTE_LANES: dict[KVCacheDtype, dict[Isa, tuple[Kernel, Kernel]]] = {  # AVX2 converts float8 slower than it multiplies
    "int8": {
        "avx512": (rope.rope_kv_i8_lane_pairs, integer_lanes.attention_i8_avx512),
        "avx2": (rope.rope_kv_i8_lane_pairs, integer_lanes.attention_i8_avx2),
        "portable": (rope.rope_kv_i8, attention_lanes.attention_i8),
    },
    "fp8": {
        "avx512": (rope.rope_kv_e4m3_lane_pairs, integer_lanes.attention_e4m3_avx512),
        "portable": (rope.rope_kv_e4m3, attention_lanes.attention_e4m3),
    },
}
BOTH_SIDES: dict[Dtype, Kernel] = {
    "float32": both_sides.attention_both_sides_f32,
    "bfloat16": both_sides.attention_both_sides_bf16,
}


@dataclass(frozen=True, slots=True)
class LinearKernels:
    """Kernels that multiply matrices of one format and make their inputs."""

    isa: Isa
    matmul: Kernel
    gated: Kernel  # matmul of interleaved gate and up, then activation(gate) * up
    reduce_norm: Kernel
    pack_rows: Kernel  # from float32 rows to the panels that `matmul` reads
    repack: Kernel | None  # from bfloat16 panels to those that `matmul` reads; None if it reads bfloat16
    embed_tiles: Kernel

    @property
    def gated_leaves_panels(self) -> bool:
        """Whether `gated` stores bfloat16 panels, not float32 rows."""
        return self.isa == "amx"

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        used = (self.matmul, self.gated, self.reduce_norm, self.pack_rows)
        return used if self.repack is None else (*used, self.repack)


@dataclass(frozen=True, slots=True)
class SharedKernels:
    """Kernels that do not depend on the format of weights, for one type of KV cache."""

    embed_rows: Kernel
    add_rows: Kernel
    rope_kv: Kernel
    attention: Kernel

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return (self.rope_kv, self.attention)


@dataclass(frozen=True, slots=True)
class ExpertKernels:
    """Kernels that experts need besides products, the same for all formats."""

    route: Kernel = routing.route
    group: Kernel = routing.group
    weigh: Kernel = routing.weigh_rows
    combine: Kernel = combining.combine


@dataclass(frozen=True, slots=True)
class StateKernels:
    """Kernels of layers that keep a state of each sequence, the same for all formats."""

    convolve: Kernel = convolution.convolve
    delta_rule: Kernel = recurrence.delta_rule
    mamba2: Kernel = recurrence.mamba2
    gated_norm: Kernel = gated_norm.gated_norm


@functools.cache
def host_isas() -> tuple[Isa, ...]:
    """Return the instruction sets that this host can run, best first."""
    return tuple(isa for isa in isas_of(target.compiled_features()) if isa != "amx" or amx.request_permission())


def require_isa(isa: LevelIsa | None) -> None:
    """Raise DeviceError unless kernels are compiled for the requested instruction set."""
    if isa is None or isa == host_isas()[0]:
        return
    lacks = BY_ISA[isa].lacks(target.host_features())
    why = f"this host lacks {', '.join(lacks)}" if lacks else f"this process already compiles for {host_isas()[0]}"
    raise DeviceError(f"isa is {isa}: {why}")


def kernel_isas(weights: WeightFormat) -> dict[str, str]:
    """Return the instruction set that kernels are compiled for, and that of the format's products."""
    return {"compiled_for": host_isas()[0], "matmul": linear_kernels(weights).isa}


def linear_kernels(weights: WeightFormat, isa: Isa | None = None) -> LinearKernels:
    """Return a format's kernels for `isa`, by default the host's best; DeviceError if the host lacks it."""
    chosen = host_isas()[0] if isa is None else isa
    if chosen not in host_isas():
        raise DeviceError(f"this host has no {chosen}; it has {', '.join(host_isas())}")
    return linear_kernels_of(weights, chosen)


def linear_kernels_of(weights: WeightFormat, isa: Isa) -> LinearKernels:
    """Return a format's kernels for an instruction set, whether the host has it or not."""
    return _FORMATS[weights].on(isa)


def shared_kernels(
    dtype: Dtype,
    head_dim: int,
    block_size: int,
    isa: Isa | None = None,
    kv_dtype: KVCacheDtype | None = None,
    is_causal: bool = True,
    has_bias: bool = False,
) -> SharedKernels:
    """Return the kernels around the matmuls, with a KV cache of `kv_dtype` (None = `dtype`).

    The tile unit takes only heads and blocks of whole tiles, and no bias of scores by distance. If tokens attend to
    both sides, keys and values have type `dtype` and lanes compute them.
    """
    isas = isas_within(isa or host_isas()[0])
    lanes: dict[KVCacheDtype, tuple[Kernel, Kernel]] = {
        "float32": (rope.rope_kv_f32, attention_lanes.attention_f32),
        "bfloat16": (rope.rope_kv_bf16, attention_lanes.attention_bf16),
        **{each: next(rows[isa] for isa in isas if isa in rows) for each, rows in _BYTE_LANES.items()},
    }
    tiles: dict[KVCacheDtype, tuple[Kernel, Kernel]] = {
        "bfloat16": (rope.rope_kv_pairs, attention_amx.attention_amx),
        "int8": (rope.rope_kv_i8_pairs, attention_amx.attention_i8_amx),
        "fp8": (rope.rope_kv_e4m3_pairs, attention_amx.attention_e4m3_amx),
    }
    kv, rows = kv_dtype or dtype, (embedding.embed_rows_bf16, embedding.add_rows_bf16)
    if dtype == "float32":
        rows = embedding.embed_rows_f32, embedding.add_rows_f32
    if not is_causal:
        return SharedKernels(*rows, lanes[dtype][0], BOTH_SIDES[dtype])
    if dtype == "float32" or has_bias:
        return SharedKernels(*rows, *lanes[kv])
    if (isa or host_isas()[0]) == "amx" and head_dim % 32 == 0 and block_size % 32 == 0:
        return SharedKernels(*rows, *tiles[kv])
    return SharedKernels(*rows, *lanes[kv])


class _Format(NamedTuple):
    """Kernels of a format's products, and those that make and embed its activations."""

    products: Mapping[Isa, tuple[Kernel, Kernel]]  # by instruction set: matmul, and gated
    reduce_norm: Kernel
    pack_rows: Kernel
    repack: Kernel | None
    embed_tiles: Kernel

    def on(self, isa: Isa) -> LinearKernels:
        """Return the kernels of the best instruction set within `isa` that the format supports."""
        used = next(each for each in isas_within(isa) if each in self.products)
        matmul, gated = self.products[used]
        return LinearKernels(used, matmul, gated, self.reduce_norm, self.pack_rows, self.repack, self.embed_tiles)


_LANES, _TILES = matmul_lanes.MATMULS, matmul_amx
_F32 = norm.reduce_norm_f32, pack.pack_rows_f32, pack.repack_f32
_BF16 = norm.reduce_norm_bf16, pack.pack_rows_bf16, None
_I8 = norm.reduce_norm_i8, pack.pack_rows_i8, pack.repack_i8
_I8_ROTATED = norm.reduce_norm_i8_rotated, pack.pack_rows_i8_rotated, pack.repack_i8_rotated
_CHUNKS = norm.reduce_norm_i8_chunks, pack.pack_rows_i8_chunks, pack.repack_i8_chunks
_int8 = _Format({"amx": (_TILES.matmul_i8_amx, _TILES.gated_i8_amx), **_LANES["i8"]}, *_I8, embedding.embed_tiles_i8)
_FORMATS: dict[WeightFormat, _Format] = {
    "float32": _Format(_LANES["f32"], *_F32, embedding.embed_tiles_f32),
    "bfloat16": _Format(
        {"amx": (_TILES.matmul_bf16_amx, _TILES.gated_bf16_amx), **_LANES["bf16"]}, *_BF16, embedding.embed_tiles_bf16
    ),
    "int8": _int8,
    "int8-rotated": _Format(_int8.products, *_I8_ROTATED, embedding.embed_tiles_i8_rotated),
    "int8-weight-only": _Format(
        {"amx": (_TILES.matmul_w8_amx, _TILES.gated_w8_amx), **_LANES["w8"]}, *_BF16, embedding.embed_tiles_i8
    ),
    "fp8": _Format(
        {"amx": (_TILES.matmul_e4m3_amx, _TILES.gated_e4m3_amx), **_LANES["e4m3"]}, *_BF16, embedding.embed_tiles_e4m3
    ),
    "fp8_e5m2": _Format(
        {"amx": (_TILES.matmul_e5m2_amx, _TILES.gated_e5m2_amx), **_LANES["e5m2"]}, *_BF16, embedding.embed_tiles_e5m2
    ),
    "mxfp8": _Format(_LANES["mxfp8"], *_BF16, embedding.embed_tiles_mxfp8),
    "int8-groups": _Format(group_bytes.INT8, *_CHUNKS, embedding.embed_tiles_i8_groups),
    "int4": _Format(group_lanes.INT4, *_CHUNKS, embedding.embed_tiles_i4),
    "mxfp4": _Format(group_lanes.FP4, *_CHUNKS, embedding.embed_tiles_fp4),
}
