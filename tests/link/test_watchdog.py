"""Engines that stall, hang or are stopped, as the watchdog detects them."""

from __future__ import annotations

from neuronserve.server.link.watchdog import Watchdog

PERIOD_S = Watchdog.PERIOD_S


def looks(*stopped_at: float | None, expected: float = 1e9) -> Watchdog:
    """A watchdog after one look for each of these, a period apart."""
    watchdog = Watchdog()
    for i, seconds in enumerate(stopped_at):
        watchdog.look(i * PERIOD_S, expected, seconds)
    return watchdog


def test_a_stopped_process_is_told_before_its_step_could_be_over() -> None:
    assert not looks(None, 4.0).is_stalled
    assert looks(None, 4.0, 4.0).is_stalled
    assert not looks(None, 4.0, 4.0, 4.0).is_stopped
    assert looks(None, 4.0, 4.0, 4.0, 4.0).is_stopped


def test_a_process_that_is_stopped_and_continued_in_turns_is_left_alone() -> None:
    """A tool that limits CPU may have stopped the process at each look, while it ran in between."""
    assert not looks(*(4.0 + 0.01 * i for i in range(50))).is_stalled
    assert not looks(4.0, 4.0, 4.0, None, 4.0, 4.0, 4.0).is_stopped


def test_a_process_that_goes_on_is_no_stopped_one() -> None:
    assert not looks(4.0, 4.0, 4.0, None).is_stalled


def test_a_slow_step_is_no_hang() -> None:
    assert looks(*[None] * 50).late_s == 0


def test_time_in_which_nobody_looked_counts_as_little() -> None:
    watchdog = Watchdog()
    watchdog.look(0.0, 1.0)
    watchdog.look(100.0, 1.0)
    assert 0 < watchdog.late_s <= 2 * PERIOD_S
    assert not watchdog.is_stalled
    watchdog.look(100.0, 101.0)
    assert watchdog.late_s == 0
