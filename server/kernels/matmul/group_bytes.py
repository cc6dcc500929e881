"""output = activations @ weights on vector lanes, of int8 weights with a scale for each 32 of k: see group_lanes.py."""

from __future__ import annotations

from server.kernels.isa import byte_codes, nibbles
from server.kernels.isa.jit import kernel
from server.kernels.matmul.group_lanes import Codes, matmul_of
from server.kernels.matmul.loop import LINE

_STEP = 2 * LINE
_UNSIGNED = (_STEP, byte_codes.unsigned_line, byte_codes.next_unsigned_line, byte_codes.first_sums)
_avx512 = Codes(*_UNSIGNED, nibbles.load_f16, nibbles.dot_u8_avx512)
_avx2 = Codes(*_UNSIGNED, nibbles.load_f16, nibbles.dot_u8_avx2)
_portable = Codes(
    _STEP,
    byte_codes.signed_line,
    byte_codes.next_signed_line,
    byte_codes.no_sums,
    nibbles.load_f16_portable,
    byte_codes.dot_signed_portable,
)

_i8_avx512, _i8_avx512_gated = matmul_of(_avx512, "plain", False), matmul_of(_avx512, "gated", False)
_i8_avx2, _i8_avx2_gated = matmul_of(_avx2, "plain", False), matmul_of(_avx2, "gated", False)
_i8_portable, _i8_portable_gated = matmul_of(_portable, "plain", False), matmul_of(_portable, "gated", False)


@kernel
def matmul_i8_groups_avx512(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8 weights in groups, AVX512-VNNI."""
    _i8_avx512(operands, cores, step, worker, workers)


@kernel
def gated_i8_groups_avx512(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8 weights in groups, AVX512-VNNI, gated."""
    _i8_avx512_gated(operands, cores, step, worker, workers)


@kernel
def matmul_i8_groups_avx2(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8 weights in groups, AVX-VNNI."""
    _i8_avx2(operands, cores, step, worker, workers)


@kernel
def gated_i8_groups_avx2(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8 weights in groups, AVX-VNNI, gated."""
    _i8_avx2_gated(operands, cores, step, worker, workers)


@kernel
def matmul_i8_groups_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8 weights in groups, any host."""
    _i8_portable(operands, cores, step, worker, workers)


@kernel
def gated_i8_groups_portable(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """int8 by int8 weights in groups, any host, gated."""
    _i8_portable_gated(operands, cores, step, worker, workers)
