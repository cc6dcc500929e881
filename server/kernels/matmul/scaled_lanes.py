"""output = activations @ weights on vector lanes, of MXFP8 weights: e4m3 codes with a power of two for each 32 of k.

Weights are tiles as those of all 8-bit codes, scales bfloat16 [N/16][K/32][16 n]. Both become bfloat16 values, as a
column pair of float8 weights does, and are multiplied with bfloat16 activations.
"""

from __future__ import annotations

from server.kernels.isa import dot_product
from server.kernels.isa.jit import kernel
from server.kernels.matmul.lanes import scaled_codes
from server.kernels.matmul.weight_codes import from_mxfp8

_avx512 = scaled_codes(dot_product.dot_bf16_avx512, from_mxfp8, "plain")
_avx512_gated = scaled_codes(dot_product.dot_bf16_avx512, from_mxfp8, "gated")
_portable = scaled_codes(dot_product.dot_bf16_portable, from_mxfp8, "plain")
_portable_gated = scaled_codes(dot_product.dot_bf16_portable, from_mxfp8, "gated")


@kernel
def matmul_mxfp8_avx512(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by MXFP8 weights, AVX512-BF16."""
    _avx512(operands, cores, step, worker, workers)


@kernel
def gated_mxfp8_avx512(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by MXFP8 weights, AVX512-BF16, gated."""
    _avx512_gated(operands, cores, step, worker, workers)


@kernel
def matmul_mxfp8_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by MXFP8 weights, any host."""
    _portable(operands, cores, step, worker, workers)


@kernel
def gated_mxfp8_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """bfloat16 by MXFP8 weights, any host, gated."""
    _portable_gated(operands, cores, step, worker, workers)
