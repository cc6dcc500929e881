"""Online softmax between the two products of attention on the tile unit: scores of CHUNK keys to bfloat16 weights.

Weights are rounded to bfloat16, so an exponential of 8e-5 relative error is exact enough.
"""

from __future__ import annotations

from typing import Any

from neuronserve.server.device.attention_layout import CHUNK
from neuronserve.server.kernels.attention.items import ITEM
from neuronserve.server.kernels.attention.softmax import Weights
from neuronserve.server.kernels.attention.softmax import softmax as softmax_of
from neuronserve.server.kernels.attention.state import first_key, state_bytes
from neuronserve.server.kernels.isa.avx512 import exp2, store_bf16_pair
from neuronserve.server.kernels.isa.jit import inline
from neuronserve.server.kernels.isa.memory import load_f32, load_i64
from neuronserve.server.kernels.records import ATTENTION


@inline
def _store(at, a, b, c, d):  # type: ignore[no-untyped-def]
    store_bf16_pair(at, a, b)
    store_bf16_pair(at + 64, c, d)


_IN_BFLOAT16 = Weights(exp2, _store)


def softmax_rows(is_scaled: bool) -> Any:
    softmax_row = softmax_of(_IN_BFLOAT16, is_scaled)

    @inline
    def softmax(item, first, base, states, s, weights, scales):  # type: ignore[no-untyped-def]
        """Up to 32 rows from row `first` of the item on, against CHUNK keys from `base` on."""
        op, group = load_i64(item + ITEM.op), load_i64(item + ITEM.group)
        window, head_dim = load_i64(op + ATTENTION.window), load_i64(op + ATTENTION.head_dim)
        size, cap = state_bytes(head_dim), load_f32(op + ATTENTION.cap)
        position, head = load_i64(item + ITEM.position) + first // group, first % group
        for r in range(min(32, load_i64(item + ITEM.rows) - first)):
            state, line, out = states + r * size, s + r * CHUNK * 4, weights + r * CHUNK * 2
            begin, end = first_key(position, window) - base, position - base + 1
            softmax_row(state, line, out, begin, end, scales, head_dim, cap)
            head += 1
            if head == group:
                position, head = position + 1, 0

    return softmax
