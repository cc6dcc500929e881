"""The ordered queue."""

from __future__ import annotations

from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import request

from neuronserve.server.kv_cache.hashing import HashChain
from neuronserve.server.kv_cache.sequence_blocks import SequenceBlocks
from neuronserve.server.scheduler.queue import OrderedQueue
from neuronserve.server.scheduler.sequence import Sequence


def sequence(request_id: str, arrival_time: float = 0.0, priority: int = 0) -> Sequence:
    blocks = SequenceBlocks(HashChain(4, ""), num_groups=1)
    return Sequence(request(request_id, [1], arrival_time=arrival_time, priority=priority), blocks)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1)), min_size=1, max_size=20), st.data())
def test_it_is_in_order_whatever_is_added_and_removed(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    queue = OrderedQueue()
    inside: list[Sequence] = []
    for index, (arrival_time, priority) in enumerate(rows):
        inside.append(sequence(f"r{index}", arrival_time, priority))
        queue.add(inside[-1])
        if data.draw(st.booleans()):
            queue.remove(inside.pop(data.draw(st.integers(0, len(inside) - 1))))
        inside.sort(key=attrgetter("order"))
        assert list(queue) == inside
        assert len(queue) == len(inside)
        if inside:
            assert (queue.first, queue.last) == (inside[0], inside[-1])


def test_priority_comes_before_arrival_and_arrival_before_id() -> None:
    queue = OrderedQueue()
    for seq in (sequence("b", 1), sequence("c", 0), sequence("a", 1), sequence("d", 9, priority=-1)):
        queue.add(seq)
    assert [seq.request.request_id for seq in queue] == ["d", "c", "a", "b"]


def test_removing_another_sequence_of_the_same_name_is_a_mistake() -> None:
    queue = OrderedQueue()
    queue.add(sequence("a"))
    with pytest.raises(AssertionError):
        queue.remove(sequence("a"))
