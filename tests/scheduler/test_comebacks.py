"""When those who were refused are told to come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import request

from server.scheduler.comebacks import GAP, MAX_KEPT, MOST_S, Comebacks


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 5), st.floats(0, 1)), min_size=1, max_size=60))
def test_each_comes_when_there_is_room_and_behind_who_was_told_before(rows: list[tuple[float, float, float]]) -> None:
    comebacks, now, last = Comebacks(), 0.0, float("-inf")
    for pause_s, wait_s, service_s in rows:
        now += pause_s
        after_s = comebacks.book(request("r", [1], arrival_time=now), wait_s, service_s)
        assert min(MOST_S, wait_s) - 1e-9 <= after_s <= MOST_S
        assert now + after_s >= min(now + MOST_S, last + GAP * service_s) - 1e-9
        last = now + after_s


def test_neither_other_tenants_nor_the_less_urgent_are_waited_for() -> None:
    comebacks = Comebacks()
    for _ in range(20):
        comebacks.book(request("r", [1], tenant="many", priority=1), 1.0, 2.0)
    assert comebacks.book(request("r", [1], tenant="few", priority=1), 1.0, 2.0) == 1.0
    assert comebacks.book(request("r", [1], tenant="many", priority=0), 1.0, 2.0) == 1.0
    assert comebacks.book(request("r", [1], tenant="many", priority=2), 1.0, 2.0) > 30.0


def test_what_is_kept_is_bounded() -> None:
    comebacks = Comebacks()
    for priority in range(3 * MAX_KEPT):
        comebacks.book(request("r", [1], priority=-priority), 1.0, 2.0)
    assert len(comebacks._last) == MAX_KEPT
