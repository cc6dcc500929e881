"""Memory of a batch, computed by hand. tests/placement checks configurations that ran on a real accelerator."""

from __future__ import annotations

import pytest

from neuronserve.planner.model_names import NAMED
from neuronserve.planner.plan.memory import Memory
from neuronserve.planner.plan.options import Buckets
from neuronserve.planner.plan.weight_types import DTYPES, WeightDtype

LLAMA = Memory(NAMED["llama-8b"], Buckets(prefill=1024, decode=2048))

WITH_RINGS = 1 + 220 / 1948  # DMA rings take a share of the weights


def test_a_slot_costs_the_kv_of_its_whole_compiled_length() -> None:
    slot = 2 * 32 * 4 * 128 * 2 * 2048  # K and V, layers, KV heads of a core, dimensions, bytes, positions
    per_slot = (LLAMA.needed_bytes(2, "bfloat16", 64) - LLAMA.needed_bytes(2, "bfloat16", 32)) / 32
    assert slot <= per_slot < 1.02 * slot  # and its row of logits


def test_8_bit_weights_take_half_and_their_scales() -> None:
    saved = LLAMA.needed_bytes(1, "bfloat16", 1) - LLAMA.needed_bytes(1, "int8", 1)
    matrices = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 4096 * 128256
    assert 0.99 * matrices < saved / WITH_RINGS < matrices
    groups = LLAMA.needed_bytes(1, "fp8", 1) - LLAMA.needed_bytes(1, "int8", 1)
    scales = 4096 * 128256 * 2 // 32 - 4 * 128256
    assert groups == pytest.approx(scales * WITH_RINGS, abs=1), "the output layer has a float16 scale for each 32"


def test_4_bit_weights_take_a_quarter_and_the_scales_of_their_groups() -> None:
    """The output layer takes half, with scales."""
    layers, output = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336), 4096 * 128256
    expected = layers * (2 - 9 / 16) + output * (2 - 17 / 16)
    for dtype in ("int4", "mxfp4"):
        saved = LLAMA.needed_bytes(1, "bfloat16", 1) - LLAMA.needed_bytes(1, dtype, 1)
        assert 0.99 * expected < saved / WITH_RINGS < 1.01 * expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_slots_need_more_and_more_cores_hold_less_each(dtype: WeightDtype) -> None:
    by_batch = [LLAMA.needed_bytes(8, dtype, 2**n) for n in range(9)]
    assert by_batch == sorted(set(by_batch))
    assert LLAMA.needed_bytes(2, dtype, 4) > LLAMA.needed_bytes(4, dtype, 4) > LLAMA.needed_bytes(8, dtype, 4)
