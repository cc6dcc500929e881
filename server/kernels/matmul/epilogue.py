"""What becomes of a matmul's sums: scaled to what they stand for, then stored as they are or as one column of two.

`value(sums, row_scale, column_scale)` makes float32 lanes of sixteen columns of one row. An Output takes two
neighbouring column tiles of one row; of a gated product the first is gate and the second up, and only
activation(gate) * up is stored:
  plain         rows [T][ldc] float32
  gated         rows [T][ldc] float32, half as many columns
  gated_panels  panels [T/16][ldc/32][16][32] bfloat16 of those columns: half the bytes, and what tiles are loaded from
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from server.kernels.isa import avx512, simd
from server.kernels.isa.jit import inline

PANEL_BYTES = 1024  # sixteen rows of 32 bfloat16
ACTIVATIONS = ("silu", "gelu_tanh")  # by the index that is the operand
_GELU_LINEAR, _GELU_CUBIC = 1.5957691216, 0.0713548163  # 2 sqrt(2 / pi), and 0.044715 times as much


@inline
def unscaled(sums, row_scale, column_scale):  # type: ignore[no-untyped-def]
    """float32 sums of unscaled activations and weights."""
    return sums


@inline
def scaled_columns(sums, row_scale, column_scale):  # type: ignore[no-untyped-def]
    """float32 sums of unscaled activations and 8-bit weights."""
    return simd.mul(sums, column_scale)


@inline
def scaled_both(sums, row_scale, column_scale):  # type: ignore[no-untyped-def]
    """int32 sums, already as float32, of int8 activations and int8 weights."""
    return simd.mul(simd.mul(sums, simd.splat(row_scale)), column_scale)


def _one_of(activations: Sequence[Any]) -> Any:
    """Make `activate(index, x)` of functions of x. A call of a kernel has one index, so its branches are foreseen."""
    first, others = activations[0], activations[1:]
    if not others:
        return inline(lambda _, x: first(x))
    rest = _one_of(others)

    @inline
    def activate(index, x):  # type: ignore[no-untyped-def]
        if index == 0:
            return first(x)
        return rest(index - 1, x)

    return activate


@inline
def _sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + e ** -x), never 0; NaN stays NaN."""
    one = simd.splat(1.0)
    return simd.div(one, simd.add(one, simd.exp(simd.sub(simd.splat(0.0), x))))


def _activations(sigmoid: Any) -> dict[str, Any]:
    """ACTIVATIONS, as exact as `sigmoid` is."""

    @inline
    def silu(x):  # type: ignore[no-untyped-def]
        return simd.mul(x, sigmoid(x))

    @inline
    def gelu_tanh(x):  # type: ignore[no-untyped-def]
        """x (1 + tanh u) / 2 is x sigmoid(2 u)."""
        by = simd.fma(simd.mul(x, x), simd.splat(_GELU_CUBIC), simd.splat(_GELU_LINEAR))
        return simd.mul(x, sigmoid(simd.mul(x, by)))

    return {"silu": silu, "gelu_tanh": gelu_tanh}


def _activate(sigmoid: Any) -> Any:
    table = _activations(sigmoid)
    return _one_of([table[name] for name in ACTIVATIONS])


_exact, _near = _activate(_sigmoid), _activate(avx512.sigmoid)


class Output(NamedTuple):
    """Where the sums of column tiles n and n + 1 go, in one row."""

    place: Any  # (output, ldc, row, n) -> address
    store: Any  # (place, left, right, width, activation); `width` is 1 where there is no right-hand tile


@inline
def _plain_place(output, ldc, row, n):  # type: ignore[no-untyped-def]
    return output + row * ldc * 4 + n * 64


@inline
def _plain_store(place, left, right, width, activation):  # type: ignore[no-untyped-def]
    simd.store(place, left)
    if width == 2:
        simd.store(place + 64, right)


@inline
def _row_place(output, ldc, row, n):  # type: ignore[no-untyped-def]
    return output + row * ldc * 4 + n * 32


@inline
def _row_store(place, gate, up, width, activation):  # type: ignore[no-untyped-def]
    """activation(gate) * up: sixteen columns from thirty-two."""
    simd.store(place, simd.mul(_exact(activation, gate), up))


@inline
def _panel_place(output, ldc, row, n):  # type: ignore[no-untyped-def]
    return output + (row // 16 * (ldc // 32) + n // 4) * PANEL_BYTES + row % 16 * 64 + n // 2 % 2 * 32


@inline
def _panel_store(place, gate, up, width, activation):  # type: ignore[no-untyped-def]
    """The same, as exact as bfloat16 is."""
    avx512.store_bf16(place, simd.mul(_near(activation, gate), up))


OUTPUTS = {
    "plain": Output(_plain_place, _plain_store),
    "gated": Output(_row_place, _row_store),
    "gated_panels": Output(_panel_place, _panel_store),
}
