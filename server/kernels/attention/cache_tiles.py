"""8-bit KV caches in pairs to bfloat16 tiles: a slice of keys is converted once, then serves all rows of an item."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from neuronserve.server.kernels.isa import simd
from neuronserve.server.kernels.isa.access import READ, WRITE, pointer
from neuronserve.server.kernels.isa.jit import inline
from neuronserve.server.kernels.isa.memory import NOTHING, emitted
from neuronserve.server.kernels.matmul import weight_codes

_CODES, _HALVES = ir.VectorType(ir.IntType(8), 32), ir.VectorType(ir.IntType(16), 32)


def _converter(convert: Any) -> Any:
    @emitted(types.void, types.int64, types.int64)
    def convert_line(builder: Any, codes: Any, halves: Any) -> Any:
        """32 codes to 32 bfloat16."""
        data = builder.load(pointer(builder, codes, _CODES, READ), align=1)
        builder.store(convert(builder, data), pointer(builder, halves, _HALVES, WRITE), align=2)
        return NOTHING

    @inline
    def convert_slice(k, v, offset, block_size, head_dim, k_to, v_to, scales):  # type: ignore[no-untyped-def]
        """32 keys at `offset` of a block: K to rows 256 bytes apart, V to rows of pairs; their scales to `scales`."""
        for d in range(head_dim // 2):
            codes = k + (d * block_size + offset) * 2
            convert_line(codes, k_to + d * 256)
            convert_line(codes + 32, k_to + d * 256 + 64)
        for i in range(0, 32 * head_dim, 32):
            convert_line(v + offset * head_dim + i, v_to + i * 2)
        behind = head_dim * block_size + offset * 4
        for i in range(0, 128, 64):
            simd.store(scales + i, simd.load(k + behind + i))
            simd.store(scales + 256 + i, simd.load(v + behind + i))

    return convert_slice


from_int8 = _converter(weight_codes.of_codes(weight_codes.halves_of_int8))
from_e4m3 = _converter(weight_codes.of_codes(weight_codes.halves_of_float8(mantissa_bits=3, bias=7)))
