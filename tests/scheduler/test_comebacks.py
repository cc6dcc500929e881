"""When those who were refused are told to come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import request

from neuronserve.server.scheduler.comebacks import GAP, LATE_S, MAX_KEPT, MOST_S, NUM_JUDGED, Comebacks


def refused(comebacks: Comebacks, number: int, now: float, wait_s: float = 1.0, service_s: float = 2.0) -> float:
    """Seconds that a request which has come is told to wait."""
    one = request("r", [number], arrival_time=now)
    comebacks.come(one)
    return comebacks.book(one, wait_s, service_s)


@given(st.lists(st.tuples(st.floats(0, 0.05), st.floats(0, 5), st.floats(0, 1)), min_size=1, max_size=40))
def test_each_comes_when_there_is_room_and_behind_who_was_told_before(rows: list[tuple[float, float, float]]) -> None:
    comebacks, now, last = Comebacks(), 0.0, float("-inf")
    for number, (pause_s, wait_s, service_s) in enumerate(rows):
        now += pause_s  # so that nobody is late before the last is told
        after_s = refused(comebacks, number, now, wait_s, service_s)
        assert min(MOST_S, wait_s) - 1e-9 <= after_s <= MOST_S
        needed_s = wait_s + GAP * sum(service for _, _, service in rows[: number + 1])
        assert now + after_s >= min(now + MOST_S, last + GAP * service_s, now + needed_s - GAP * service_s) - 1e-9
        last = now + after_s


def test_neither_other_tenants_nor_the_less_urgent_are_waited_for() -> None:
    comebacks = Comebacks()
    for number in range(20):
        comebacks.book(request("r", [number], tenant="many", priority=1), 1.0, 2.0)
    assert comebacks.book(request("r", [1], tenant="few", priority=1), 1.0, 2.0) == 1.0
    assert comebacks.book(request("r", [1], tenant="many", priority=0), 1.0, 2.0) == 1.0
    assert comebacks.book(request("r", [1], tenant="many", priority=2), 1.0, 2.0) > 30.0


def test_who_asks_again_at_once_takes_one_place_and_has_nobody_wait() -> None:
    comebacks = Comebacks()
    for number in range(600):
        refused(comebacks, 1, 0.01 * number)
    assert refused(comebacks, 2, 6.0) <= 1.0 + 3 * 2.0
    assert len(comebacks._told) == 2


def test_those_who_never_come_are_not_waited_for_once_that_is_known() -> None:
    comebacks, told = Comebacks(), list[float]()
    for number in range(
        200
    ):  # one a second, of two seconds each: told one behind the other they would be told a minute
        told.append(refused(comebacks, number, float(number)))
    assert max(told[-20:]) <= 4.0
    assert max(told) < MOST_S


def test_where_all_come_when_they_were_told_all_are_waited_for() -> None:
    comebacks, due = Comebacks(), list[tuple[float, int]]()
    due = [(0.01 * number, number) for number in range(8)]
    for _ in range(8 * NUM_JUDGED):
        due.sort()
        now, number = due.pop(0)
        due.append((now + refused(comebacks, number, now) + LATE_S / 2, number))
    gaps = [after - before for (before, _), (after, _) in zip(sorted(due), sorted(due)[1:], strict=False)]
    assert min(gaps) >= GAP * 2.0 - 1e-6


def test_what_is_kept_is_bounded() -> None:
    comebacks = Comebacks()
    for number in range(2 * MAX_KEPT):
        one = request("r", [number], priority=-number, tenant=str(number))
        comebacks.come(one)
        comebacks.book(one, 1.0, 2.0)
    kept = comebacks._told, comebacks._times, comebacks._lines, comebacks._shares
    assert max(map(len, kept)) <= MAX_KEPT + 1
