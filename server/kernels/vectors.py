"""Vectors of pictures in the residual stream: they replace the rows of their tokens, or are added to them."""

from __future__ import annotations

from typing import NamedTuple

from .isa import simd
from .isa.jit import kernel, share_begin
from .isa.memory import load_i64
from .records import STEP, offsets


class VectorOperands(NamedTuple):
    """Operands of `hidden[t] = vector`, or `+=`, for tokens of pictures, on one core for all."""

    hidden: int  # float32 [T, width]
    width: int
    offset: int  # bytes from the address in the step record to the vector, float32 [width]
    is_added: int


VECTORS = offsets(VectorOperands)


@kernel
def place_vectors(op: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Replace the stream of a picture's tokens by vectors, or add vectors to it."""
    tokens, width = load_i64(step + STEP.num_tokens), load_i64(op + VECTORS.width)
    vectors, offset = load_i64(step + STEP.vectors), load_i64(op + VECTORS.offset)
    if vectors == 0:
        return
    for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
        vector, hidden = load_i64(vectors + t * 8), load_i64(op + VECTORS.hidden) + t * width * 4
        if vector != 0:
            for i in range(0, width, 16):
                value = simd.load(vector + offset + i * 4)
                if load_i64(op + VECTORS.is_added) != 0:
                    value = simd.add(value, simd.load(hidden + i * 4))
                simd.store(hidden + i * 4, value)
