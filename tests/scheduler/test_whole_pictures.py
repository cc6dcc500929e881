"""Pictures whose tokens see each other: no step ends inside of one, and every request ends all the same."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.kv_cache.sequence_blocks import SequenceBlocks
from neuronserve.server.scheduler.sequence import Sequence
from neuronserve.server.scheduler.step import StepDraft
from neuronserve.server.types import MediaItem, Request, StepPlan
from tests.scheduler.scheduler_harness import FULL, Bench, expected_output, request

BUDGET, SEQS, SIZE = 12, 3, 4
LARGEST = BUDGET - SEQS + 1


def with_pictures(one: Request, parts: list[tuple[int, int]]) -> Request:
    """Return the request with pictures; `parts` are numbers of tokens before and in each."""
    media, at = list[MediaItem](), 0
    for before, count in parts:
        media.append(MediaItem(bytes([before, count]), at + before, count, b"", (1, 1)))
        at += before + count
    return replace(one, prompt_token_ids=tuple(range(7, at + 9)), media=tuple(media))


class PictureBench(Bench):
    def check_plan(self, plan: StepPlan) -> None:
        super().check_plan(plan)
        for seq in plan.prefill:
            end = seq.start + len(seq.token_ids)
            assert not any(each.offset < end < each.offset + each.num_tokens for each in seq.media)


parts = st.lists(st.tuples(st.integers(0, 15), st.integers(1, LARGEST)), max_size=3)


@given(st.lists(st.tuples(parts, st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=6), st.integers(0, 30))
def test_no_step_divides_a_picture(loads: list[tuple[list[tuple[int, int]], int, int]], spare: int) -> None:
    limits = SchedulerConfig(128, max_num_seqs=SEQS, max_num_batched_tokens=BUDGET, has_whole_pictures=True)
    bench = PictureBench(CacheConfig(24 + spare, SIZE, True, FULL, BUDGET), limits)
    for i, (pictures, most, wait) in enumerate(loads):
        bench.add(with_pictures(request(str(i), [1], most), pictures))
        for _ in range(wait):
            if bench.scheduler.has_work:
                bench.step()
    bench.finish()
    for i, one in bench.requests.items():
        if len(one.prompt_token_ids) + one.sampling.max_tokens <= SIZE * (23 + spare):
            assert bench.tokens(i) == expected_output(one, 128)


def test_a_picture_at_the_beginning_of_a_step_takes_its_room_when_a_target_of_time_left_less() -> None:
    one = with_pictures(request("a", [1]), [(0, 8), (1, 8)])
    seq, step = Sequence(one, SequenceBlocks(None, 1), whole=one.media), StepDraft(BUDGET, 0.0)  # type: ignore[arg-type]
    step.budget = 3
    step.place(seq)
    assert [len(each.token_ids) for each in step.prefill] == [8]
    step.place(seq)
    assert (seq.num_scheduled_tokens, step.budget, step.room) == (8, 0, 4)
