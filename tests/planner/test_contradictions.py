"""Contradicting measurements: steps of two sources, load tests faster than steps, and wrong numbers of users."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from neuronserve.planner.calibrate.contradictions import contradicted_steps, contradictions
from neuronserve.planner.calibrate.observation import Observation, observe
from neuronserve.planner.calibrate.published import PublishedRow, read_rows
from neuronserve.planner.calibrate.step_errors import group_names
from tests.model_specs import with_depth
from tests.planner.synthetic import observations

FOLDER = Path(__file__).parent
STEP = observations()[0]


def of(source: str, seconds: float, sdk: int = 28, number: int = 0) -> Observation:
    series = (source, sdk, number)
    return replace(STEP, source=source, seconds=seconds, sdk=sdk, setup=series)


def test_the_published_steps_that_contradict_each_other_are_a_group_of_their_own() -> None:
    found = [o for row in read_rows(FOLDER / "published_sample.csv") for o in observe(row)[0]]
    names = dict(zip([(o.row_id, o.point.phase) for o in found], group_names(found), strict=True))
    assert names["646", "decode"] == names["946", "decode"] == "decode_contradicted_inf2"  # 61 ms and 30 ms
    assert [row_id for (row_id, _), name in names.items() if "contradicted" in name] == ["646", "946"]
    assert names["661", "decode"] == "decode_dense_inf2"


@pytest.mark.parametrize(
    ("steps", "apart"),
    [
        ([of("a", 1.0), of("b", 1.4)], set()),
        ([of("a", 1.0), of("b", 1.6)], {0, 1}),
        ([of("a", 1.0), of("a", 1.6, number=1)], set()),  # one source may vary
        ([of("a", 1.0), of("b", 1.6, sdk=27)], {0, 1}),
        ([of("a", 1.0), of("b", 1.6, sdk=26)], set()),  # two releases may differ
        ([of("b", 1.6, sdk=26), of("a", 1.0)], set()),
        ([of("a", 1.0), of("b", 1.6), of("c", 1.3)], {0, 1}),  # a time in the middle contradicts none
        ([of("a", 1.0), of("a", 1.1), of("a", 9.0), of("b", 1.2)], set()),  # the median of a series counts
    ],
)
def test_two_sources_of_one_step_may_be_half_apart(steps: list[Observation], apart: set[int]) -> None:
    assert contradicted_steps(steps) == apart


def test_the_order_of_rows_does_not_matter() -> None:
    steps = [of("a", 1.0), of("b", 1.6), of("c", 1.3), of("d", 2.0)]
    expected = {o.source for i, o in enumerate(steps) if i in contradicted_steps(steps)}
    assert expected == {"a", "b", "c", "d"}
    for order in permutations(steps):
        assert {order[i].source for i in contradicted_steps(order)} == expected


def test_steps_of_other_work_are_not_compared() -> None:
    slow = of("b", 1.6)
    more = {name: 1.2 * units for name, units in STEP.work.items()}
    others = [
        replace(slow, work=more),
        replace(slow, point=replace(slow.point, batch=2)),
        replace(slow, point=replace(slow.point, tp=4)),
        replace(slow, point=replace(slow.point, phase="prefill")),
        replace(slow, shape=with_depth(slow.shape, 31)),
    ]
    for other in others:
        assert contradicted_steps([of("a", 1.0), other]) == frozenset()


@pytest.fixture(scope="module")
def rows() -> dict[str, PublishedRow]:
    return {row.row_id: row for row in read_rows(FOLDER / "serving_sample.csv")}


def test_load_tests_faster_than_the_steps_of_their_graph_are_contradicted(rows: dict[str, PublishedRow]) -> None:
    found = contradictions(list(rows.values()))
    assert "a step of this graph is published with" in found["707"]
    assert "full static batches of this graph" in found["712"]
    without = contradictions([row for row in rows.values() if row.row_id != "359"])
    assert not {"707", "712"} & set(without)


def test_users_that_the_rows_own_figures_rule_out(rows: dict[str, PublishedRow]) -> None:
    """Little's law: requests a second times the time of one is how many are open."""
    found = contradictions(list(rows.values()))
    assert found["847"] == "5.17 requests/s of 16.9 s each are 87 users at a time, not 128"
    assert not {"824", "836", "845"} & set(found)
    fewer = replace(rows["847"], counts=rows["847"].counts | {"concurrency": 87})
    assert contradictions([fewer]) == {}


@pytest.mark.parametrize(
    ("ttft_ms", "tpot_ms", "is_wrong"),
    [
        (1000.0, 20.0, True),  # 4 requests/s of 6 s are 24 users
        (1000.0, 120.0, False),  # of 31 s are 124, and within the noise of 128
        (4000.0, 112.0, False),
        (60_000.0, 20.0, False),  # of 65 s: too few turns in two minutes to settle
    ],
)
def test_whether_users_fit_the_figures(
    rows: dict[str, PublishedRow], ttft_ms: float, tpot_ms: float, is_wrong: bool
) -> None:
    measures = {"req_per_s": 4.0, "output_tok_s": 1004.0, "ttft_ms": ttft_ms, "tpot_ms": tpot_ms}
    made = replace(rows["847"], measures=measures)
    assert bool(contradictions([made])) == is_wrong


@pytest.mark.parametrize(
    ("slots", "ttft_ms", "is_wrong"),
    [
        (32, 4_000.0, True),  # 96 of 128 users wait for one of 150 answers in two minutes: 25 s on average
        (32, 30_000.0, False),
        (128, 4_000.0, False),  # a slot for everyone
    ],
)
def test_users_beyond_the_slots_wait_for_an_answer_to_end(
    rows: dict[str, PublishedRow], slots: int, ttft_ms: float, is_wrong: bool
) -> None:
    measures = {"req_per_s": 1.25, "output_tok_s": 230.0, "ttft_ms": ttft_ms, "tpot_ms": 106.0}
    counts = rows["847"].counts | {"batch_size": slots, "dp": 1, "concurrency": 128}
    found = contradictions([replace(rows["847"], measures=measures, counts=counts)])
    assert any("wait" in reason for reason in found.values()) == is_wrong


@pytest.mark.parametrize("missing", ["req_per_s", "output_tok_s", "ttft_ms", "tpot_ms"])
def test_without_all_figures_nothing_can_be_said(rows: dict[str, PublishedRow], missing: str) -> None:
    measures = {name: value for name, value in rows["847"].measures.items() if name != missing}
    assert contradictions([replace(rows["847"], measures=measures)]) == {}
