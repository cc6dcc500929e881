"""Pooling by its definitions, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from neuronserve.server.config.formats import PoolingMode
from neuronserve.server.engine.encode.head import MODES, pooled

DEFINITIONS: dict[PoolingMode, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(axis=0),
    "mean": lambda x: x.mean(axis=0),
    "mean_sqrt_len_tokens": lambda x: x.sum(axis=0) / np.sqrt(len(x)),
    "weightedmean": lambda x: np.average(x, axis=0, weights=np.arange(1, len(x) + 1)),
    "lasttoken": lambda x: x[-1],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 2, 100])
def test_modes(mode: PoolingMode, length: int) -> None:
    states = np.random.default_rng(length).standard_normal((length, 24)).astype(np.float32)
    assert np.allclose(pooled(states, [mode]), DEFINITIONS[mode](states.astype(np.float64)), atol=1e-5)


def test_several_modes_stand_side_by_side() -> None:
    states = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    assert np.array_equal(pooled(states, ["max", "cls"]), np.concatenate([states.max(axis=0), states[0]]))
