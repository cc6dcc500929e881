"""Expectations of the pace check; the check itself is a measurement."""

from __future__ import annotations

import numpy as np
import pytest

from neuronserve.planner.model_names import resolve_shape
from neuronserve.server.clock import NS
from neuronserve.server.cost.model import CostModel
from neuronserve.server.device.catalog import instance
from neuronserve.server.settings.model import DEFAULT_MODEL
from tools.pace_check import INPUT_LEN, REQUESTS_PER_CLIENT, simulated

INVENTORY = {
    "device": {"instance": "inf2.xlarge", "tensor_parallel_size": 2},
    "compiled": {
        "batching": "continuous",
        "stack": "ideal",
        "max_model_len": 2048,
        "max_num_seqs": 16,
        "context_encoding_buckets": [128, 2048],
        "token_generation_buckets": [2048],
    },
}


def test_one_client_sees_the_cost_models_own_steps() -> None:
    cost = CostModel.of(resolve_shape(str(DEFAULT_MODEL)), instance("inf2.xlarge"), 2)
    report = simulated(INVENTORY, 1)
    assert report.completed == REQUESTS_PER_CLIENT
    assert np.median(report.tpot_ms) == pytest.approx(cost.decode(16, 2048).elapsed_s * 1e3, abs=1e3 / NS)
    assert np.median(report.ttft_ms) == pytest.approx(cost.prefill(INPUT_LEN, 128).elapsed_s * 1e3, abs=1e3 / NS)


def test_more_clients_wait_for_each_others_prompts() -> None:
    assert np.median(simulated(INVENTORY, 4).ttft_ms) > 1.5 * np.median(simulated(INVENTORY, 1).ttft_ms)
