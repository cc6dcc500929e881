"""How the attention of a step is divided: every query and key exactly once, and never more than fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.device.attention_layout import PARTITION
from neuronserve.server.engine.attention_work import AttentionWork
from neuronserve.server.types import SamplingParams, ScheduledSeq

GREEDY = SamplingParams(max_tokens=1)


def seq(num_tokens: int, start: int) -> ScheduledSeq:
    return ScheduledSeq("r", (0,) * num_tokens, start, (), True, GREEDY, (), 1)


def test_one_long_context_is_divided_and_many_equal_ones_are_not() -> None:
    work = AttentionWork(9, num_slots=200, num_workers=2)
    assert [e.partition for e in work.divide([seq(1, 5 * PARTITION)])] == [0, 1, 2, 3, 4, 5]
    assert [e.partition for e in work.divide([seq(1, PARTITION - 1)])] == [-1]
    assert all(e.partition == -1 for e in work.divide([seq(1, 5 * PARTITION)] * 30))
    uneven = work.divide([seq(1, 60 * PARTITION)] + [seq(1, 10)] * 30)
    assert len(uneven) == 61 + 30


@given(
    st.lists(
        st.tuples(st.one_of(st.just(1), st.integers(1, 70)), st.integers(0, 40 * PARTITION)), min_size=1, max_size=20
    ),
    st.integers(1, 20),
    st.integers(0, 60),
    st.integers(1, 16),
)
def test_every_query_meets_every_key_once(
    lengths: list[tuple[int, int]], tile_tokens: int, num_slots: int, num_workers: int
) -> None:
    seqs = [seq(*each) for each in lengths]
    work = AttentionWork(tile_tokens, num_slots, num_workers)
    entries = work.divide(seqs)
    assert len(entries) <= work.most_entries(sum(n for n, _ in lengths), len(seqs))
    row, slots = 0, set[int]()
    for b, (num_tokens, start) in enumerate(lengths):
        mine = [e for e in entries if e.seq == b]
        if mine[0].partition < 0:
            assert [e.row for e in mine] == list(range(row, row + num_tokens, tile_tokens))
            assert all(e.partition == -1 for e in mine)
        else:
            assert num_tokens == 1
            assert [e.partition for e in mine] == list(range(start // PARTITION + 1))
            assert {(e.row, e.slot, e.num_partitions) for e in mine} == {(row, mine[0].slot, len(mine))}
            taken = {e.slot + e.partition for e in mine}
            assert not slots & taken
            slots |= taken
        row += num_tokens
    assert not slots or max(slots) < num_slots
