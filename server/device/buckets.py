"""The shapes that a deployment is compiled for: the batch of decode, and the lengths of prefill and of decode.

Names are those of NxD Inference: context encoding is prefill, token generation is decode.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

SMALLEST_BUCKET = 128  # NxD Inference feature guide: automatic buckets are powers of two from here to the longest


@dataclass(frozen=True, slots=True)
class CompiledShapes:
    """One graph for each length; ascending, the last of each is the longest that can be served."""

    slots: int  # sequences of a decode, busy or not
    context_encoding: tuple[int, ...]  # tokens of one prompt, or of a part of it
    token_generation: tuple[int, ...]  # positions of each slot


def powers_of_two(longest: int) -> tuple[int, ...]:
    """Automatic buckets: 128, 256, ... and `longest`."""
    powers = (SMALLEST_BUCKET << i for i in range(longest.bit_length()))
    return (*(length for length in powers if length < longest), longest)


def smallest(buckets: tuple[int, ...], length: int) -> int:
    """The shortest of `buckets` (ascending) that holds `length`."""
    assert length <= buckets[-1], f"{length} tokens are beyond the longest bucket {buckets[-1]}"
    return buckets[bisect_left(buckets, length)]
