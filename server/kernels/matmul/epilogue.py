"""Epilogue of a matmul: scale the sums, add the bias, activate and store.

`value(sums, row_scale, column_scale)` makes float32 lanes of sixteen columns of one row. An Output takes two
neighbouring column tiles of one row; of a gated product the first is gate and the second up, and only
activation(gate) * up is stored:

  plain         rows [T][ldc] float32, each value activated
  gated         rows [T][ldc] float32, half as many columns
  gated_panels  panels [T/16][ldc/32][16][32] bfloat16 of those columns: half the bytes, ready for tile loads
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..isa import avx512, simd
from ..isa.jit import inline

PANEL_BYTES = 1024  # sixteen rows of 32 bfloat16
# Indexed by the operand.
ACTIVATIONS = ("none", "silu", "gelu_tanh", "gelu", "relu", "swiglu_clamped", "relu2", "quick_gelu")
_CLAMPED = ACTIVATIONS.index("swiglu_clamped")
_SWIGLU_ALPHA, _SWIGLU_LIMIT = 1.702, 7.0  # GptOssConfig of transformers
_GELU_LINEAR, _GELU_CUBIC = 1.5957691216, 0.0713548163  # 2 sqrt(2 / pi), and 0.044715 times that
# The share of a normal distribution above x >= 0 is e ** (-x * x / 2) times this polynomial in 1 / (1 + x / slope),
# fitted for the least relative error on 0 <= x <= 13: 6e-8.
_TAIL_SLOPE = 2.5
_TAIL = (
    *(-1.29050723e-05, 0.159923464, 0.155619264, 0.159201711, -0.0145673165, 0.254660308, -0.377397656, 0.202648371),
    -0.0400753058,
)


@inline
def unscaled(sums, row_scale, column_scale):  # type: ignore[no-untyped-def]
    """Return float32 sums of unscaled activations and weights."""
    return sums


@inline
def scaled_columns(sums, row_scale, column_scale):  # type: ignore[no-untyped-def]
    """Scale float32 sums of unscaled activations and 8-bit weights."""
    return simd.mul(sums, column_scale)


@inline
def scaled_both(sums, row_scale, column_scale):  # type: ignore[no-untyped-def]
    """Scale int32 sums, already as float32, of int8 activations and int8 weights."""
    return simd.mul(simd.mul(sums, simd.splat(row_scale)), column_scale)


def _one_of(activations: Sequence[Any]) -> Any:
    """Return `activate(index, x)` over functions of x. A kernel's call has one index, so its branches are predicted."""
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
def sigmoid(x):  # type: ignore[no-untyped-def]
    """Return 1 / (1 + e ** -x), never 0; NaN stays NaN."""
    one = simd.splat(1.0)
    return simd.div(one, simd.add(one, simd.exp(simd.sub(simd.splat(0.0), x))))


def _polynomial(coefficients: Sequence[float]) -> Any:
    """Return the polynomial `p(x)` with the coefficients of 1, x, x ** 2 and so on."""
    first, others = coefficients[0], coefficients[1:]
    if not others:
        return inline(lambda _: simd.splat(first))
    rest = _polynomial(others)

    @inline
    def p(x):  # type: ignore[no-untyped-def]
        return simd.fma(rest(x), x, simd.splat(first))

    return p


_tail = _polynomial(_TAIL)


@inline
def relu(x):  # type: ignore[no-untyped-def]
    """Return max(0, x); NaN stays NaN."""
    return simd.larger(simd.splat(0.0), x)


@inline
def _relu2(x):  # type: ignore[no-untyped-def]
    """Return max(0, x) squared."""
    return simd.mul(relu(x), relu(x))


@inline
def gelu(x):  # type: ignore[no-untyped-def]
    """Return x times the share of a normal distribution below x."""
    one, size, half = simd.splat(1.0), simd.absolute(x), simd.mul(x, simd.splat(-0.5))
    t = simd.div(one, simd.fma(size, simd.splat(1.0 / _TAIL_SLOPE), one))
    beyond = simd.mul(simd.exp(simd.mul(half, x)), _tail(t))
    return simd.sub(relu(x), simd.mul(size, beyond))


def _activations(sigmoid: Any) -> dict[str, Any]:
    """Return ACTIVATIONS, as exact as `sigmoid`, or float32 if they need none."""

    @inline
    def silu(x):  # type: ignore[no-untyped-def]
        return simd.mul(x, sigmoid(x))

    @inline
    def gelu_tanh(x):  # type: ignore[no-untyped-def]
        """Return x (1 + tanh u) / 2, which is x sigmoid(2 u)."""
        by = simd.fma(simd.mul(x, x), simd.splat(_GELU_CUBIC), simd.splat(_GELU_LINEAR))
        return simd.mul(x, sigmoid(simd.mul(x, by)))

    @inline
    def swiglu_clamped(x):  # type: ignore[no-untyped-def]
        """Activate a gate; `_factor` limits the other factor."""
        x = simd.clamp(x, simd.splat(-3.0e38), simd.splat(_SWIGLU_LIMIT))
        return simd.mul(x, sigmoid(simd.mul(x, simd.splat(_SWIGLU_ALPHA))))

    @inline
    def quick_gelu(x):  # type: ignore[no-untyped-def]
        """Return x sigmoid(1.702 x), as CLIP computes it."""
        return simd.mul(x, sigmoid(simd.mul(x, simd.splat(_SWIGLU_ALPHA))))

    plain = {"none": inline(lambda x: x), "gelu": gelu, "relu": relu, "relu2": _relu2}
    return {**plain, "silu": silu, "gelu_tanh": gelu_tanh, "swiglu_clamped": swiglu_clamped, "quick_gelu": quick_gelu}


def _activate(sigmoid: Any) -> Any:
    table = _activations(sigmoid)
    return _one_of([table[name] for name in ACTIVATIONS])


_exact, _near = _activate(sigmoid), _activate(avx512.sigmoid)


@inline
def _factor(activation, up):  # type: ignore[no-untyped-def]
    """Return the factor of an activated gate."""
    if activation == _CLAMPED:
        up = simd.clamp(up, simd.splat(-_SWIGLU_LIMIT), simd.splat(_SWIGLU_LIMIT))
        return simd.add(up, simd.splat(1.0))
    return up


class Output(NamedTuple):
    """How the sums of column tiles n and n + 1 of one row are stored."""

    place: Any  # (output, ldc, row, n) -> address
    store: Any  # (place, left, right, width, activation); `width` is 1 if there is no right tile


@inline
def _plain_place(output, ldc, row, n):  # type: ignore[no-untyped-def]
    return output + row * ldc * 4 + n * 64


@inline
def _plain_store(place, left, right, width, activation):  # type: ignore[no-untyped-def]
    if activation != 0:
        left, right = _exact(activation, left), _exact(activation, right)
    simd.store(place, left)
    if width == 2:
        simd.store(place + 64, right)


@inline
def _row_place(output, ldc, row, n):  # type: ignore[no-untyped-def]
    return output + row * ldc * 4 + n * 32


@inline
def _row_store(place, gate, up, width, activation):  # type: ignore[no-untyped-def]
    """Store activation(gate) * up: sixteen columns of thirty-two."""
    simd.store(place, simd.mul(_exact(activation, gate), _factor(activation, up)))


@inline
def _panel_place(output, ldc, row, n):  # type: ignore[no-untyped-def]
    return output + (row // 16 * (ldc // 32) + n // 4) * PANEL_BYTES + row % 16 * 64 + n // 2 % 2 * 32


@inline
def _panel_store(place, gate, up, width, activation):  # type: ignore[no-untyped-def]
    """Store activation(gate) * up with bfloat16's precision."""
    avx512.store_bf16(place, simd.mul(_near(activation, gate), _factor(activation, up)))


OUTPUTS = {
    "plain": Output(_plain_place, _plain_store),
    "gated": Output(_row_place, _row_store),
    "gated_panels": Output(_panel_place, _panel_store),
}
