"""Sequences whose decoder attends to an encoder: blocks of cross attention, and passes of the encoder in steps."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.config import AttentionSpan, CacheConfig, SchedulerConfig
from neuronserve.server.engine.cross.queries import is_encoded, num_source_tokens
from neuronserve.server.types import StepPlan
from tests.scheduler.scheduler_harness import FULL, Bench, expected_output, request

LONGEST, BUDGET, SIZE = 20, 12, 4


class SourceBench(Bench):
    """A bench whose fake runner sees the sequences' own tables; the laws of passes are checked after each step."""

    def __init__(self, num_blocks: int) -> None:
        config = SchedulerConfig(32, max_num_seqs=3, max_num_batched_tokens=BUDGET)
        super().__init__(CacheConfig(num_blocks, SIZE, False, (*FULL, AttentionSpan(source=LONGEST)), BUDGET), config)
        own = CacheConfig(num_blocks, SIZE, False, FULL, BUDGET)
        self.fake, self.runner = type(self.runner)(own, 11), self  # type: ignore[assignment]
        self.num_encoded = 0

    def execute(self, plan: StepPlan) -> Any:
        lengths = [num_source_tokens(seq) for seq in plan.prefill if is_encoded(seq)]
        assert sum(lengths) <= max(BUDGET, *lengths, 0)
        self.num_encoded += len(lengths)
        for seq in plan.seqs:
            assert is_encoded(seq) == (seq.start == 0)
            assert len(seq.block_tables[1]) == -(-num_source_tokens(seq) // SIZE)
        prefill, decode = (
            tuple(seq._replace(block_tables=seq.block_tables[:1]) for seq in part)
            for part in (plan.prefill, plan.decode)
        )
        return self.fake.execute(plan._replace(prefill=prefill, decode=decode))


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, LONGEST), st.integers(1, 12), st.integers(0, 4)),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 12),
)
def test_tables_are_whole_and_every_start_is_encoded(loads: list[tuple[int, int, int, int]], spare: int) -> None:
    """A preempted sequence is encoded again; all blocks come back in the end."""
    bench = SourceBench(1 + 6 + 5 + spare)
    for i, (length, source, most, wait) in enumerate(loads):
        bench.add(request(str(i), list(range(length)), most, num_source_tokens=source))
        for _ in range(wait):
            if bench.scheduler.has_work:
                bench.step()
    bench.finish()
    for i, one in bench.requests.items():
        assert bench.tokens(i) == expected_output(one, 32)
    preempted = sum(len(plan.preempted) for plan in bench.plans)
    assert bench.num_encoded == len(loads) + preempted
    assert bench.cache.usage == 0


def test_a_text_beyond_the_budget_is_encoded_alone() -> None:
    bench = SourceBench(40)
    for i in range(3):
        bench.add(request(str(i), [1, 2], 3, num_source_tokens=LONGEST))
    plans = [bench.step() for _ in range(3)]
    assert [sum(is_encoded(seq) for seq in plan.prefill) for plan in plans] == [1, 1, 1]
    assert [len(plan.decode) for plan in plans] == [0, 1, 2], "the others get their tokens in the same steps"
