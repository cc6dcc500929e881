"""The number formats of weights and activations, and which kernels compute each on this host's instruction set.

The one place that looks at the CPU. A matrix has a format; whoever produces its activations packs them as it wants.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from server.config import Dtype, KVCacheDtype, WeightFormat
from server.errors import DeviceError
from server.kernels import embedding, norm, pack
from server.kernels.attention import amx as attention_amx
from server.kernels.attention import both_sides, rope
from server.kernels.attention import lanes as attention_lanes
from server.kernels.experts import combine as combining
from server.kernels.experts import route as routing
from server.kernels.isa import amx, target
from server.kernels.isa.jit import Kernel
from server.kernels.matmul import amx as matmul_amx
from server.kernels.matmul import group_bytes, group_lanes, scaled_lanes
from server.kernels.matmul import lanes as matmul_lanes

Isa = Literal["amx", "avx512", "avx2", "portable"]
BOTH_SIDES: dict[Dtype, Kernel] = {
    "float32": both_sides.attention_both_sides_f32,
    "bfloat16": both_sides.attention_both_sides_bf16,
}
ISAS: tuple[Isa, ...] = ("amx", "avx512", "avx2", "portable")  # best first


@dataclass(frozen=True, slots=True)
class LinearKernels:
    """How matrices of one format are multiplied, and their inputs made."""

    isa: Isa
    matmul: Kernel
    gated: Kernel  # matmul of interleaved gate and up, then activation(gate) * up
    reduce_norm: Kernel
    pack_rows: Kernel  # float32 rows to what `matmul` reads
    repack: Kernel | None  # bfloat16 panels to what `matmul` reads; None where it reads these
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
    """What does not depend on the format of weights, for one type of KV cache."""

    embed_rows: Kernel
    add_rows: Kernel
    rope_kv: Kernel
    attention: Kernel

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return (self.rope_kv, self.attention)


@dataclass(frozen=True, slots=True)
class ExpertKernels:
    """What experts need besides products; the same for all formats."""

    route: Kernel = routing.route
    group: Kernel = routing.group
    weigh: Kernel = routing.weigh_rows
    combine: Kernel = combining.combine


def isas_of(features: Mapping[str, bool]) -> tuple[Isa, ...]:
    """The instruction sets that code with these CPU features may use, best first."""
    can: list[Isa] = []
    if all(features.get(name) for name in ("amx-tile", "amx-bf16", "amx-int8")):
        can.append("amx")
    if all(features.get(name) for name in ("avx512f", "avx512bw", "avx512bf16", "avx512vnni")):
        can.append("avx512")
    if features.get("avxvnni") or (features.get("avx512vnni") and features.get("avx512vl")):
        can.append("avx2")
    return (*can, "portable")


@functools.cache
def host_isas() -> tuple[Isa, ...]:
    """The instruction sets this host can run, best first."""
    return tuple(isa for isa in isas_of(target.compiled_features()) if isa != "amx" or amx.request_permission())


def linear_kernels(weights: WeightFormat, isa: Isa | None = None) -> LinearKernels:
    """The kernels of a format, on the host's best instruction set or the one named; DeviceError where it lacks that."""
    chosen = host_isas()[0] if isa is None else isa
    if chosen not in host_isas():
        raise DeviceError(f"this host has no {chosen}; it has {', '.join(host_isas())}")
    return linear_kernels_of(weights, chosen)


def linear_kernels_of(weights: WeightFormat, isa: Isa) -> LinearKernels:
    """The kernels of a format on an instruction set, whether this host has it or not."""
    if weights == "float32":
        return _float32()
    if weights == "int8":
        return _int8(isa)
    if weights == "int8-rotated":  # of matrices whose inputs come from `pack_rows` or `repack`
        return replace(_int8(isa), pack_rows=pack.pack_rows_i8_rotated, repack=pack.repack_i8_rotated)
    if weights in ("int8-groups", "int4", "mxfp4"):
        return _chunked_activations(weights, isa)
    return _bfloat16_activations(weights, isa)


def shared_kernels(
    dtype: Dtype,
    head_dim: int,
    block_size: int,
    isa: Isa | None = None,
    kv_dtype: KVCacheDtype | None = None,
    is_causal: bool = True,
) -> SharedKernels:
    """The kernels around the matmuls, with a KV cache of `kv_dtype` (None = `dtype`).

    The tile unit takes heads and blocks of whole tiles only. Where tokens attend to both sides, keys and values are of
    `dtype` and lanes compute it.
    """
    lanes: dict[KVCacheDtype, tuple[Kernel, Kernel]] = {
        "float32": (rope.rope_kv_f32, attention_lanes.attention_f32),
        "bfloat16": (rope.rope_kv_bf16, attention_lanes.attention_bf16),
        "int8": (rope.rope_kv_i8, attention_lanes.attention_i8),
        "fp8": (rope.rope_kv_e4m3, attention_lanes.attention_e4m3),
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
    if dtype == "float32":
        return SharedKernels(*rows, *lanes[kv])
    if (isa or host_isas()[0]) == "amx" and head_dim % 32 == 0 and block_size % 32 == 0:
        return SharedKernels(*rows, *tiles[kv])
    return SharedKernels(*rows, *lanes[kv])


def _float32() -> LinearKernels:
    products = matmul_lanes.matmul_f32, matmul_lanes.gated_f32
    return LinearKernels(
        "portable", *products, norm.reduce_norm_f32, pack.pack_rows_f32, pack.repack_f32, embedding.embed_tiles_f32
    )


def _int8(isa: Isa) -> LinearKernels:
    products: dict[Isa, tuple[Kernel, Kernel]] = {
        "amx": (matmul_amx.matmul_i8_amx, matmul_amx.gated_i8_amx),
        "avx512": (matmul_lanes.matmul_i8_avx512, matmul_lanes.gated_i8_avx512),
        "avx2": (matmul_lanes.matmul_i8_avx2, matmul_lanes.gated_i8_avx2),
        "portable": (matmul_lanes.matmul_i8_portable, matmul_lanes.gated_i8_portable),
    }
    packs = norm.reduce_norm_i8, pack.pack_rows_i8, pack.repack_i8
    return LinearKernels(isa, *products[isa], *packs, embedding.embed_tiles_i8)


def _chunked_activations(weights: WeightFormat, isa: Isa) -> LinearKernels:
    """Weights in groups by int8 activations with a scale for each 32; hosts with a tile unit have lanes for it too."""
    lanes, used = group_lanes, "avx512" if isa == "amx" else isa
    int8: dict[str, tuple[Kernel, Kernel]] = {
        "avx512": (group_bytes.matmul_i8_groups_avx512, group_bytes.gated_i8_groups_avx512),
        "avx2": (group_bytes.matmul_i8_groups_avx2, group_bytes.gated_i8_groups_avx2),
        "portable": (group_bytes.matmul_i8_groups_portable, group_bytes.gated_i8_groups_portable),
    }
    int4: dict[str, tuple[Kernel, Kernel]] = {
        "avx512": (lanes.matmul_i4_avx512, lanes.gated_i4_avx512),
        "avx2": (lanes.matmul_i4_avx2, lanes.gated_i4_avx2),
        "portable": (lanes.matmul_i4_portable, lanes.gated_i4_portable),
    }
    mxfp4: dict[str, tuple[Kernel, Kernel]] = {
        "avx512": (lanes.matmul_fp4_avx512, lanes.gated_fp4_avx512),
        "avx2": (lanes.matmul_fp4_avx2, lanes.gated_fp4_avx2),
        "portable": (lanes.matmul_fp4_portable, lanes.gated_fp4_portable),
    }
    tables: dict[WeightFormat, tuple[dict[str, tuple[Kernel, Kernel]], Kernel]] = {
        "int8-groups": (int8, embedding.embed_tiles_i8_groups),
        "int4": (int4, embedding.embed_tiles_i4),
        "mxfp4": (mxfp4, embedding.embed_tiles_fp4),
    }
    table, embed = tables[weights]
    packs = norm.reduce_norm_i8_chunks, pack.pack_rows_i8_chunks, pack.repack_i8_chunks
    return LinearKernels(used, *table[used], *packs, embed)


def _bfloat16_activations(weights: WeightFormat, isa: Isa) -> LinearKernels:
    lanes, tiles = matmul_lanes, matmul_amx
    portable: dict[WeightFormat, tuple[Kernel, Kernel, Kernel]] = {
        "bfloat16": (lanes.matmul_bf16_portable, lanes.gated_bf16_portable, embedding.embed_tiles_bf16),
        "int8-weight-only": (lanes.matmul_w8_portable, lanes.gated_w8_portable, embedding.embed_tiles_i8),
        "fp8": (lanes.matmul_e4m3_portable, lanes.gated_e4m3_portable, embedding.embed_tiles_e4m3),
        "fp8_e5m2": (lanes.matmul_e5m2_portable, lanes.gated_e5m2_portable, embedding.embed_tiles_e5m2),
        "mxfp8": (scaled_lanes.matmul_mxfp8_portable, scaled_lanes.gated_mxfp8_portable, embedding.embed_tiles_mxfp8),
    }
    avx512: dict[WeightFormat, tuple[Kernel, Kernel]] = {
        "bfloat16": (lanes.matmul_bf16_avx512, lanes.gated_bf16_avx512),
        "mxfp8": (scaled_lanes.matmul_mxfp8_avx512, scaled_lanes.gated_mxfp8_avx512),
    }
    amx_products: dict[WeightFormat, tuple[Kernel, Kernel]] = {
        "bfloat16": (tiles.matmul_bf16_amx, tiles.gated_bf16_amx),
        "int8-weight-only": (tiles.matmul_w8_amx, tiles.gated_w8_amx),
        "fp8": (tiles.matmul_e4m3_amx, tiles.gated_e4m3_amx),
        "fp8_e5m2": (tiles.matmul_e5m2_amx, tiles.gated_e5m2_amx),
    }
    matmul, gated, embed = portable[weights]
    used: Isa = "portable"
    if isa == "amx" and weights in amx_products:
        (matmul, gated), used = amx_products[weights], "amx"
    elif isa in ("amx", "avx512") and weights in avx512:
        (matmul, gated), used = avx512[weights], "avx512"
    return LinearKernels(used, matmul, gated, norm.reduce_norm_bf16, pack.pack_rows_bf16, None, embed)
