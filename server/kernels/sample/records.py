"""Operands of the kernels that read logits."""

from __future__ import annotations

from typing import NamedTuple

from ..records import offsets


class LogitsOperands(NamedTuple):
    """Sampled rows of logits, changed in place."""

    logits: int  # float32 [S, width]
    width: int  # a multiple of 16
    scale: int  # bits of a float32
    cap: int  # bits of a float32: soft cap by a hyperbolic tangent; 0 = none


class SampleOperands(NamedTuple):
    """Sampling of a token from each row of logits. Arrays have one element for each row."""

    logits: int  # float32 [S, ldc]
    ldc: int
    vocab: int
    scratch: int  # float32, `scratch_floats` for each worker
    scratch_floats: int
    temperature: int  # float32, 0 = greedy
    top_k: int  # int64, 0 = all
    top_p: int  # float32
    min_p: int  # float32
    seed: int  # int64
    drawn: int  # int64, number of tokens the sequence has drawn before
    masks: int  # int64, addresses of int32 words whose bits are the allowed tokens, lowest first; 0 = all tokens
    chosen: int  # int64, output: token id, or -1 where the logits are not numbers


SAMPLE = offsets(SampleOperands)
LOGITS = offsets(LogitsOperands)
