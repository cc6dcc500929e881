"""What a batch needs: KV worked by hand, and every published configuration, which did fit on the real part."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from server.device.catalog import instance
from server.models.public import known_model
from server.models.spec import ModelSpec
from server.placement.fit import budget_bytes
from server.planner.model_names import NAMED
from server.planner.plan.memory import Memory
from server.planner.plan.options import Buckets, WeightDtype

SAMPLE = Path(__file__).parent / "published_sample.csv"
LLAMA = Memory(NAMED["llama-8b"], Buckets(prefill=1024, decode=2048))


def published() -> list[dict[str, str]]:
    """Rows of dense gated models with everything that decides memory."""
    with SAMPLE.open() as file:
        rows = [
            row for row in csv.DictReader(file) if row["quality"] in "AB" and row["input_len"] and row["max_seq_len"]
        ]
    return [row for row in rows if (s := known_model(row["model"])) and s.is_gated and not s.num_experts]


def test_a_slot_costs_the_kv_of_its_whole_compiled_length() -> None:
    slot = 2 * 32 * 4 * 128 * 2 * 2048  # K and V, layers, KV heads of a core, dimensions, bytes, positions
    per_slot = (LLAMA.needed_bytes(2, "bfloat16", 64) - LLAMA.needed_bytes(2, "bfloat16", 32)) / 32
    assert slot <= per_slot < 1.02 * slot  # and its row of logits


def test_8_bit_weights_take_half_and_their_scales() -> None:
    saved = LLAMA.needed_bytes(1, "bfloat16", 1) - LLAMA.needed_bytes(1, "int8", 1)
    matrices = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 4096 * 128256
    assert 0.99 * matrices < saved < matrices
    assert LLAMA.needed_bytes(1, "fp8", 1) == LLAMA.needed_bytes(1, "int8", 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "fp8"])
def test_more_slots_need_more_and_more_cores_hold_less_each(dtype: WeightDtype) -> None:
    by_batch = [LLAMA.needed_bytes(8, dtype, 2**n) for n in range(9)]
    assert by_batch == sorted(set(by_batch))
    assert LLAMA.needed_bytes(2, dtype, 4) > LLAMA.needed_bytes(4, dtype, 4) > LLAMA.needed_bytes(8, dtype, 4)


def test_configurations_that_were_measured_fit() -> None:
    rows = published()
    assert len(rows) > 30
    for row in rows:
        shape = known_model(row["model"])
        assert shape is not None
        dims = (shape.num_layers, shape.hidden_size, shape.intermediate_size, shape.num_heads, shape.num_kv_heads)
        spec = ModelSpec("LlamaForCausalLM", *dims, shape.head_dim, shape.vocab_size, 1 << 20)
        longest, prompt, part = int(row["max_seq_len"]), int(row["input_len"]), instance(row["instance"])
        dtype: WeightDtype = "int8" if row["weight_dtype"] == "int8" else "bfloat16"
        memory = Memory(spec, Buckets(min(prompt, longest), longest))
        needed = memory.needed_bytes(int(row["tp"]), dtype, int(row["batch_size"]))
        assert needed <= budget_bytes(part, 0.9), row["row_id"]
