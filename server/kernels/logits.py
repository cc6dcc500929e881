"""Scale and soft cap of logits after the output layer, in place, before they are sampled or reported."""

from __future__ import annotations

from .isa import simd
from .isa.jit import kernel, share_begin
from .isa.memory import load_f32, load_i64
from .isa.softcap import softcap
from .records import STEP
from .sample.records import LOGITS


@kernel
def finish_logits(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Set logits = cap * tanh(logits * scale / cap), or logits * scale without a cap. Items are runs of sixteen."""
    logits, cap = load_i64(operands + LOGITS.logits), load_f32(operands + LOGITS.cap)
    by = simd.splat(load_f32(operands + LOGITS.scale))
    runs = load_i64(step + STEP.num_samples) * load_i64(operands + LOGITS.width) // 16
    for i in range(share_begin(runs, worker, workers), share_begin(runs, worker + 1, workers)):
        value = simd.mul(simd.load(logits + i * 64), by)
        if cap != 0.0:
            value = softcap(value, cap)
        simd.store(logits + i * 64, value)
