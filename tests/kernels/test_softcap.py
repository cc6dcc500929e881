"""The hyperbolic tangent of lanes, and logits that are scaled and capped by it."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from neuronserve.server.kernels.isa import simd
from neuronserve.server.kernels.isa.softcap import tanh
from neuronserve.server.kernels.logits import finish_logits
from neuronserve.server.kernels.sample.records import LogitsOperands
from neuronserve.server.kernels.workers import WorkerPool
from tests.kernels.kernel_bench import address, aligned, float_bits, run, step_record


@njit
def _tanh(source: int, target: int, count: int) -> None:
    for i in range(0, count, 16):
        simd.store(target + i * 4, tanh(simd.load(source + i * 4)))


def test_tanh_is_within_four_units_in_the_last_place() -> None:
    near = np.geomspace(1e-30, 1.0, 80_000, dtype=np.float32)
    x = np.concatenate([near, -near, np.linspace(-20, 20, 160_000, dtype=np.float32)])
    y = np.zeros_like(x)
    _tanh(x.ctypes.data, y.ctypes.data, x.size)
    exact = np.tanh(x.astype(np.float64))
    assert np.max(np.abs(y - exact) / np.maximum(np.abs(exact), 1e-37)) <= 4 * 2.0**-23
    assert np.abs(y).max() <= 1.0


def test_tanh_of_extremes() -> None:
    x = np.array([0.0, 1e30, -1e30, np.inf, -np.inf, np.nan] + [0.0] * 10, np.float32)
    y = np.zeros_like(x)
    _tanh(x.ctypes.data, y.ctypes.data, x.size)
    assert y[:5].tolist() == [0.0, 1.0, -1.0, 1.0, -1.0]
    assert np.isnan(y[5])


@pytest.mark.parametrize(("scale", "cap"), [(1.0, 1.5), (0.25, 0.0), (4.0, 30.0)])
def test_logits_of_sampled_rows_are_scaled_and_capped(pool: WorkerPool, scale: float, cap: float) -> None:
    logits = aligned((5, 48), np.float32)
    logits[:] = np.random.default_rng(0).standard_normal((5, 48)) * 5
    want = logits.astype(np.float64) * scale
    want = cap * np.tanh(want / cap) if cap else want
    want[3:] = logits[3:]
    operands = LogitsOperands(address(logits), 48, float_bits(scale), float_bits(cap))
    run(pool, finish_logits, [operands], step_record(num_samples=3))
    assert np.allclose(logits, want, rtol=1e-6, atol=0)
