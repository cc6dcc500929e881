"""output = activations @ weights on vector lanes, for int8 weights with a scale for each 32 of k (group_lanes.py).

There is a row for each instruction set with exact byte products; others use the portable one.
"""

from __future__ import annotations

from typing import Any

from ...config.formats import Isa
from ..isa import byte_codes, neon, nibbles, simd
from ..isa.jit import inline
from .group_lanes import kernels_of
from .group_products import Codes, Unpacked, codes_of
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


@inline
def _signed_and_sizes(source, target):  # type: ignore[no-untyped-def]
    """Write two lines of signed codes, each before a line of their magnitudes."""
    for i in range(2):
        codes = byte_codes.signed_line(source + i * LINE)
        simd.store(target + 2 * i * LINE, codes)
        simd.store(target + 2 * i * LINE + LINE, byte_codes.magnitudes(codes))


@inline
def _dot_sizes(sums, word, line):  # type: ignore[no-untyped-def]
    return byte_codes.dot_magnitudes_avx2(sums, word, simd.load(line), simd.load(line + LINE))


_CODES: dict[Isa, Codes] = {
    "avx512-vnni": _codes(_UNSIGNED, nibbles.dot_u8_avx512_vnni)._replace(is_by_two=True),
    "avx2-vnni": _codes(_UNSIGNED, nibbles.dot_u8_avx2_vnni),
    "avx2": _codes(_SIGNED, byte_codes.dot_signed_avx2)._replace(
        unpacked=Unpacked(2 * LINE, _signed_and_sizes, _dot_sizes)
    ),
    "neon-dot": _codes(_SIGNED, neon.dot_codes),
    "portable": _codes(_SIGNED, byte_codes.dot_signed_portable, nibbles.load_f16_portable),
}
INT8 = kernels_of("i8_groups", _CODES, False)
