"""Which kernels this host runs: the one place that looks at the CPU."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import llvmlite.binding

from server.config import Dtype
from server.device.kernels import (
    amx,
    attention,
    embedding,
    matmul_bf16,
    matmul_bf16_amx,
    matmul_f32,
    norm,
    rope,
    swiglu,
)
from server.device.kernels.jit import Kernel
from server.errors import DeviceError

Isa = Literal["amx", "avx512", "portable"]
ISAS: tuple[Isa, ...] = ("amx", "avx512", "portable")  # best first


@dataclass(frozen=True, slots=True)
class KernelSet:
    """The kernels of one element type on one instruction set."""

    isa: Isa
    cell_bytes: int  # of one weight, activation or KV element
    matmul: Kernel
    embed_rows: Kernel
    embed_tiles: Kernel
    reduce_norm: Kernel
    rope_kv: Kernel
    attention: Kernel
    swiglu: Kernel

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return (
            self.matmul,
            self.embed_rows,
            self.embed_tiles,
            self.reduce_norm,
            self.rope_kv,
            self.attention,
            self.swiglu,
        )


@functools.cache
def host_isas() -> tuple[Isa, ...]:
    """The instruction sets this host can run, best first."""
    features = llvmlite.binding.get_host_cpu_features()
    can: list[Isa] = []
    if features.get("amx-bf16") and features.get("amx-tile") and amx.request_permission():
        can.append("amx")
    if features.get("avx512bf16") and features.get("avx512f"):
        can.append("avx512")
    return (*can, "portable")


def kernel_set(dtype: Dtype, isa: Isa | None = None) -> KernelSet:
    """The kernels for `dtype`, of the host's best instruction set or the one named; DeviceError where it lacks that."""
    chosen = host_isas()[0] if isa is None else isa
    if chosen not in host_isas():
        raise DeviceError(f"this host has no {chosen}; it has {', '.join(host_isas())}")
    if dtype == "float32":
        return KernelSet(
            "portable",
            4,
            matmul_f32.matmul_f32,
            embedding.embed_rows_f32,
            embedding.embed_tiles_f32,
            norm.reduce_norm_f32,
            rope.rope_kv_f32,
            attention.attention_f32,
            swiglu.swiglu_f32,
        )
    matmuls: dict[Isa, Kernel] = {
        "amx": matmul_bf16_amx.matmul_bf16_amx,
        "avx512": matmul_bf16.matmul_bf16_avx512,
        "portable": matmul_bf16.matmul_bf16_portable,
    }
    return KernelSet(
        chosen,
        2,
        matmuls[chosen],
        embedding.embed_rows_bf16,
        embedding.embed_tiles_bf16,
        norm.reduce_norm_bf16,
        rope.rope_kv_bf16,
        attention.attention_bf16,
        swiglu.swiglu_bf16,
    )
