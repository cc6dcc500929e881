"""The timeline of the modelled accelerator: deadlines that do not drift, and pieces that leave no hole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.cost.timeline import MAX_CARRY_NS, Timeline

MS = 1_000_000


def test_a_step_that_follows_is_due_a_full_step_after_the_one_before_whatever_the_host_took_between() -> None:
    line = Timeline(0)
    now, due = 0, []
    for _ in range(5):
        assert line.lag(now) == 0
        due.append(line.step(3 * MS))
        now = due[-1] + MAX_CARRY_NS  # the host's turn
    assert due == [3 * MS * (i + 1) for i in range(5)]


def test_a_longer_delay_is_lost_and_no_later_step_is_hurried() -> None:
    line = Timeline(0)
    line.step(3 * MS)
    assert line.lag(10 * MS) == 7 * MS - MAX_CARRY_NS
    assert line.step(3 * MS) == 13 * MS - MAX_CARRY_NS


def test_after_a_pause_a_step_begins_when_it_begins() -> None:
    line = Timeline(5)
    line.step(10)
    assert line.pause(1000) == 985
    assert line.step(10) == 1010


def test_the_end_of_a_host_step_begins_the_pause() -> None:
    line = Timeline(0)
    line.step(10)
    line.host_step(700)
    assert line.pause(1000) == 300


def test_a_step_that_waits_for_other_stages_leaves_a_bubble_and_loses_nothing() -> None:
    line = Timeline(0)
    assert line.step(3 * MS, 6 * MS) == 9 * MS
    assert line.bubble(0) == line.lag(0) == 0
    assert line.step(3 * MS, 6 * MS) == 12 * MS  # the next one, before the results of the first
    assert line.bubble(12 * MS) == 6 * MS
    assert line.lag(12 * MS) == 0
    assert line.step(3 * MS, 6 * MS) == 21 * MS


@given(st.lists(st.tuples(st.booleans(), *[st.integers(0, 5 * MS)] * 2, st.integers(1, 5 * MS)), max_size=50))
def test_pauses_losses_and_steps_add_up_to_the_whole(turns: list[tuple[bool, int, int, int]]) -> None:
    start = now = 123
    line, total = Timeline(start), 0
    for is_pause, delay, others, duration in turns:
        now += delay
        total += line.pause(now) if is_pause else line.bubble(now) + line.lag(now)
        before, due = now, line.step(duration, others)
        total += duration
        assert due <= before + duration + others, "never later than a full step from its begin"
        now = max(now, due)
    assert line.end_ns == start + total
