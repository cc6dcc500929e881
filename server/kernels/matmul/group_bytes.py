"""output = activations @ weights on vector lanes, of int8 weights with a scale for each 32 of k: see group_lanes.py.

A row for each instruction set that multiplies bytes without loss; others take what is portable.
"""

from __future__ import annotations

from server.config.formats import Isa
from server.kernels.isa import byte_codes, neon, nibbles
from server.kernels.matmul.group_lanes import Codes, kernels_of
from server.kernels.matmul.loop import LINE

_STEP = 2 * LINE
_UNSIGNED = (_STEP, byte_codes.unsigned_line, byte_codes.next_unsigned_line, byte_codes.first_sums)
_SIGNED = (_STEP, byte_codes.signed_line, byte_codes.next_signed_line, byte_codes.no_sums)
_CODES: dict[Isa, Codes] = {
    "avx512-vnni": Codes(*_UNSIGNED, nibbles.load_f16, nibbles.dot_u8_avx512_vnni),
    "avx2-vnni": Codes(*_UNSIGNED, nibbles.load_f16, nibbles.dot_u8_avx2_vnni),
    "neon-dot": Codes(*_SIGNED, nibbles.load_f16, neon.dot_codes),
    "portable": Codes(*_SIGNED, nibbles.load_f16_portable, byte_codes.dot_signed_portable),
}
INT8 = kernels_of("i8_groups", _CODES, False)
