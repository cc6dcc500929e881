"""output = activations @ weights on vector lanes, for int8 weights with a scale for each 32 of k (group_lanes.py).

There is a row for each instruction set with exact byte products; others use the portable one.
"""

from __future__ import annotations

from typing import Any

from ...config.formats import Isa
from ..isa import byte_codes, neon, nibbles
from .group_lanes import Codes, codes_of, kernels_of
from .loop import LINE

_UNSIGNED, _SIGNED = (
    ((byte_codes.unsigned_line, byte_codes.next_unsigned_line), byte_codes.first_sums),
    (
        (byte_codes.signed_line, byte_codes.next_signed_line),
        nibbles.no_sums,
    ),
)


def _codes(sign: tuple[tuple[Any, Any], Any], dot: Any, load_scales: Any = nibbles.load_f16) -> Codes:
    return codes_of(2 * LINE, *sign, load_scales, dot)


_CODES: dict[Isa, Codes] = {
    "avx512-vnni": _codes(_UNSIGNED, nibbles.dot_u8_avx512_vnni)._replace(is_by_two=True),
    "avx2-vnni": _codes(_UNSIGNED, nibbles.dot_u8_avx2_vnni),
    "avx2": _codes(_SIGNED, byte_codes.dot_signed_avx2),
    "neon-dot": _codes(_SIGNED, neon.dot_codes),
    "portable": _codes(_SIGNED, byte_codes.dot_signed_portable, nibbles.load_f16_portable),
}
INT8 = kernels_of("i8_groups", _CODES, False)
