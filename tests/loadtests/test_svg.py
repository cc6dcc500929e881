"""Charts: all points inside the frame, round ticks, and no failure on odd data."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.loadtests.svg import HEIGHT, WIDTH, Axis, Series, chart, number, ticks

VALUE = st.floats(1e-3, 1e6)
POINTS = st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=20)


@given(points=POINTS, is_log=st.booleans(), limit=st.none() | VALUE)
def test_every_dot_is_inside_the_frame(points: list[tuple[float, float]], is_log: bool, limit: float | None) -> None:
    text = chart(Axis("x", is_log, limit), Axis("y", is_log), [Series("s", points, "dots")])
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([^"]+)" cy="([^"]+)"', text)]
    assert len(places) == len(points)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert "nan" not in text


@given(low=st.floats(1e-3, 1e5), factor=st.floats(1.3, 1e6), is_log=st.booleans())
def test_ticks_are_in_range_ascending_and_few(low: float, factor: float, is_log: bool) -> None:
    found = ticks(low, low * factor, is_log)
    assert found == sorted(found)
    assert all(low * (1 - 1e-9) <= tick <= low * factor * (1 + 1e-9) for tick in found)
    assert len(found) <= 16


def test_linear_ticks_are_round() -> None:
    assert ticks(0, 10, is_log=False) == [0, 2, 4, 6, 8, 10]
    assert ticks(1, 100, is_log=True) == [1, 2, 5, 10, 20, 50, 100]


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show() -> None:
    text = chart(Axis("x"), Axis("y", is_log=True), [Series("s", [(1, 0.0), (2, 5.0)], "dots")])
    assert text.count("<circle") == 1


def test_without_points_there_is_a_sentence() -> None:
    assert "no data" in chart(Axis("x"), Axis("y"), [Series("s", [])])


def test_steps_keep_a_value_until_the_next() -> None:
    text = chart(Axis("x", low=0, high=10), Axis("y", low=0, high=10), [Series("s", [(0, 0), (10, 10)], "step")])
    assert re.search(r'class="line s0" d="M62\.0 [\d.]+H546\.0V14\.0"', text)


def test_text_is_escaped() -> None:
    text = chart(Axis("<x>"), Axis("y"), [Series("<a>", [(1, 1)], "dots", ["<n>"]), Series("b", [(1, 2)])])
    assert "&lt;x&gt;" in text
    assert "&lt;a&gt;" in text
    assert "<title>&lt;n&gt;</title>" in text


NUMBERS = [(0, "0"), (0.01234, "0.0123"), (12.345, "12.3"), (999.4, "999"), (1234.5, "1,234"), (2e6, "2,000,000")]


@pytest.mark.parametrize(("value", "text"), NUMBERS)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text
