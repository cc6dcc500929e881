"""When sequences that run are foreseen to end. How limits are kept by it: api/test_admission_in_virtual_time.py."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.scheduler.lengths import MAX_OPEN, MAX_TENANTS, Lengths, Running

MOST = 1000  # tokens that each may have


def after(lengths: Iterable[int], tenant: str = "") -> Lengths:
    """What is known after sequences of these lengths."""
    known = Lengths()
    teach(known, lengths, tenant)
    return known


def teach(known: Lengths, lengths: Iterable[int], tenant: str) -> None:
    for number, length in enumerate(lengths):
        name = f"{tenant} {number}"
        known.expect(name, tenant)
        for age in range(1, length + 1):
            known.generated(name, age, age == length)


def steps(known: Lengths, ages: Iterable[int], num_ends: float = 1, tenant: str = "") -> float:
    return known.ends([Running(age, MOST, tenant) for age in ages], 30.0).steps_until(num_ends)


def test_who_has_passed_the_short_ones_is_long() -> None:
    """Of four or 120 tokens: those that are ten old end at 120, and all at once."""
    known = after([4, 4, 4, 120] * 16)
    assert 60 < steps(known, [10] * 16) < 130
    assert steps(known, [3] * 16) < 3
    assert steps(known, [115] * 16) < 10


def test_before_any_has_ended_those_that_run_say_how_long_they_are() -> None:
    known = Lengths()
    for age in range(1, 101):
        for number in range(16):
            known.generated(str(number), age, False)
    assert steps(known, [100] * 16) > 40


def test_nobody_goes_on_after_what_it_may() -> None:
    known = after([100] * 20)
    assert known.ends([Running(40, 45, "")] * 4, 100.0).steps_until(3) <= 8
    assert steps(known, [40] * 4, num_ends=3) > 40


def test_an_end_that_is_sure_is_not_made_doubtful_by_who_follows() -> None:
    assert Lengths().ends([Running(2, 16, "")], 64.0).steps_until(1) <= 17
    assert after([100] * 20).ends([Running(40, 45, "")], 100.0).steps_until(1) <= 8


def test_a_tenant_has_lengths_of_its_own_and_a_new_one_everybodys() -> None:
    known = after([8] * 40, "short")
    teach(known, [150] * 40, "long")
    assert steps(known, [6] * 8, tenant="short") < 6
    assert steps(known, [6] * 8, tenant="long") > 40
    assert steps(known, [6] * 8, tenant="new") < steps(known, [6] * 8, tenant="long")


def test_what_came_long_ago_is_forgotten() -> None:
    known = after([200] * 50 + [10] * 800)
    assert steps(known, [8] * 8) < 8


def test_what_is_known_is_bounded() -> None:
    known = Lengths()
    for number in range(2 * MAX_OPEN):  # which never end
        known.expect(str(number), str(number % (2 * MAX_TENANTS)))
    assert len(known._open) == MAX_OPEN
    assert len(known._by_tenant) == MAX_TENANTS


def test_weights_that_grow_without_end_change_nothing() -> None:
    known = after([20, 40] * 20_000)
    assert 0 < steps(known, [10] * 8) < 30


@given(st.lists(st.integers(1, 60), max_size=30), st.lists(st.integers(0, 2000), max_size=20), st.floats(0, 100))
def test_for_more_ends_it_takes_no_less(lengths: list[int], ages: list[int], num_ends: float) -> None:
    known = after(lengths)
    assert 0 <= steps(known, ages, num_ends) <= steps(known, ages, num_ends + 1)
