"""The arrays of a step: what is laid out, and that a step beyond their room is refused by name and changes nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from neuronserve.server.config import AttentionSpan, CacheConfig
from neuronserve.server.engine.attention_work import AttentionWork
from neuronserve.server.engine.step_inputs import StepInputs
from neuronserve.server.errors import StepTooLarge
from neuronserve.server.types import SamplingParams, ScheduledSeq
from tools.random_checkpoint.writer import Options, write_checkpoint

TOKENS, SEQS, MAX_LEN, BLOCK = 24, 3, 40, 16


def inputs() -> StepInputs:
    return StepInputs(TOKENS, SEQS, MAX_LEN, CacheConfig(9, BLOCK), AttentionWork(9, num_slots=4, num_workers=1))


def seq(name: str, num_tokens: int, start: int = 0, num_blocks: int = 3) -> ScheduledSeq:
    ids = tuple(range(100, 100 + num_tokens))
    table = tuple(range(5, 5 + num_blocks))
    return ScheduledSeq(name, ids, start, (table,), True, SamplingParams(1), ids, num_tokens)


def test_sequences_lie_one_after_the_other_in_the_slots_of_their_blocks() -> None:
    made = inputs()
    made.fill([seq("a", 3, start=15), seq("b", 1, start=39)])
    assert made.token_ids[:4].tolist() == [100, 101, 102, 100]
    assert made.positions[:4].tolist() == [15, 16, 17, 39]
    assert made.slots[0, :4].tolist() == [5 * 16 + 15, 6 * 16, 6 * 16 + 1, 7 * 16 + 7]
    assert (made.query_start[:3].tolist(), made.sample_rows[:2].tolist()) == ([0, 3, 4], [2, 3])


def test_entries_of_attention_are_those_of_the_step_whatever_was_before() -> None:
    made, singles = inputs(), [seq("a", 1), seq("b", 1), seq("c", 1)]
    for _ in range(2):
        made.fill([seq("a", 12), seq("b", 3)])  # a second tile of the first begins at its tenth token
        assert (made.tile_seq[:3].tolist(), made.tile_row[:3].tolist()) == ([0, 0, 1], [0, 9, 12])
        for _ in range(2):
            made.fill(singles)
            assert (made.tile_seq[:3].tolist(), made.tile_row[:3].tolist()) == ([0, 1, 2], [0, 1, 2])
            assert made.tile_split[:3].tolist() == [[-1, 0, 0]] * 3
        made.fill(singles[:2])
        record = np.ctypeslib.as_array((ctypes.c_int64 * 21).from_address(made.address))
        assert record[3] == 2


def test_each_group_of_layers_has_its_tables_and_slots() -> None:
    groups = AttentionSpan(), AttentionSpan(700)
    made = StepInputs(TOKENS, SEQS, 1280, CacheConfig(200, BLOCK, groups=groups), AttentionWork(9, 4, 1))
    full, sliding = range(1, 81), [0] * 20 + list(range(101, 161))
    made.fill([seq("a", 3, start=1039)._replace(block_tables=(full, sliding))])
    assert made.slots[:, :3].tolist() == [
        [65 * 16 + 15, 66 * 16, 66 * 16 + 1][:3],
        [145 * 16 + 15, 146 * 16, 146 * 16 + 1],
    ]
    assert made.block_tables[0, 0, :66].tolist() == list(range(1, 67))
    # From the partition on in which the first key that is seen lies.
    assert made.block_tables[1, 0, :66].tolist() == [0] * 20 + list(range(101, 147))
    record = np.ctypeslib.as_array((ctypes.c_int64 * 21).from_address(made.address))
    assert record[-2:].tolist() == [made.slots.strides[0], made.block_tables.strides[0]]


@pytest.mark.parametrize(
    ("seqs", "words"),
    [
        ([seq("a", 1), seq("long", 1, start=40)], "request long: a context of 41 tokens; .* room for max_model_len 40"),
        ([seq("long", 24, start=20)], "request long: a context of 44 tokens; .* room for max_model_len 40"),
        ([seq("bare", 3, start=15, num_blocks=1)], "request bare: a context of 18 tokens; .* room for 16 in its block"),
        ([seq("a", 20), seq("wide", 5)], "request wide: token 25 of the step; .* room for 24"),
        ([seq(name, 1) for name in "abcd"], "request d: sequence or draft 4 of the step; .* room for 3"),
    ],
)
def test_a_step_beyond_the_room_is_refused_by_name_and_changes_nothing(seqs: list[ScheduledSeq], words: str) -> None:
    made = inputs()
    made.fill([seq("before", 2)])
    with pytest.raises(StepTooLarge, match=words):
        made.fill(seqs)
    assert made.query_start.tolist() == [0, 2, 0, 0]
    assert not made.block_tables[:, 1:].any()


def test_rows_are_grouped_by_adapter() -> None:
    slots = {"x": 2, "y": 0}
    made = StepInputs(TOKENS, 6, MAX_LEN, CacheConfig(9, BLOCK), AttentionWork(9, num_slots=4, num_workers=1), slots)
    adapters = ("x", "", "y", "x", "", "y")
    seqs = [seq(str(i), i + 1)._replace(lora=lora) for i, lora in enumerate(adapters)]
    assert made.fill(seqs) == 2
    assert made.lora_groups[:2].tolist() == [[0, 0, 9], [2, 9, 14]]
    assert made.lora_rows[:14].tolist() == [3, 4, 5, *range(15, 21), 0, 6, 7, 8, 9]
    assert made.fill([seq("a", 3)]) == 0
    slots["z"] = 1
    assert made.fill([seq("a", 1)._replace(lora="z")]) == 1
    assert made.lora_groups[0].tolist() == [1, 0, 1]


def test_the_largest_step_has_room() -> None:
    made = inputs()
    made.fill([seq("a", 1, start=39), seq("b", 22, start=18), seq("c", 1)])
    assert made.query_start.tolist() == [0, 1, 23, 24]


def test_the_runner_refuses_a_text_longer_than_its_context(
    engine_logits: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    write_checkpoint("tiny-llama", tmp_path / "model", Options())
    with pytest.raises(StepTooLarge, match="a context of 513 tokens; the runner has room for max_model_len 512"):
        engine_logits(tmp_path / "model", "float32", 1, [1] * 513)
    assert len(engine_logits(tmp_path / "model", "float32", 1, [1] * 20)) == 20
