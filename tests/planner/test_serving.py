"""Load tests of a table: reading, simulation, fit and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronserve.planner.calibrate.host_fit import (
    CLIENTS,
    STRUCTURES,
    UNITS,
    Responses,
    fit_hosts,
    knobs_of,
    value_of,
    with_value,
)
from neuronserve.planner.calibrate.load_figures import QUANTITIES, measured_figures
from neuronserve.planner.calibrate.load_generators import Clients, LoadTest, OutputLengths, stop_rate
from neuronserve.planner.calibrate.observation import Unusable
from neuronserve.planner.calibrate.published import PublishedRow, read_rows
from neuronserve.planner.calibrate.report import run_calibrate, run_check
from neuronserve.planner.calibrate.serving import TGI_1, ServingCoefficients, ServingRow, serving_rows, stack_of
from neuronserve.planner.calibrate.serving_errors import calibrate_serving
from neuronserve.server.cost.calibration import default_calibration
from neuronserve.server.cost.evidence import Series
from neuronserve.server.cost.stacks import HostWork
from neuronserve.server.scheduler.batching import POLICIES, BatchingPolicy

SAMPLE = Path(__file__).parent / "serving_sample.csv"


@pytest.fixture(scope="module")
def rows() -> dict[str, PublishedRow]:
    return {row.row_id: row for row in read_rows(SAMPLE)}


@pytest.fixture(scope="module")
def served(rows: dict[str, PublishedRow]) -> dict[str, ServingRow]:
    return {row.row.row_id: row for row in serving_rows(list(rows.values()), default_calibration())[0]}


def coefficients(**hosts: HostWork) -> ServingCoefficients:
    """Return coefficients with these hosts; stack names are written with underscores."""
    named: dict[Any, HostWork] = {name.replace("_", "-"): work for name, work in hosts.items()}
    return ServingCoefficients(named)


def test_the_shipped_coefficients_hold_on_a_sample_of_what_they_were_fitted_to() -> None:
    groups = run_check(SAMPLE).groups
    assert groups["serving_inf2"].all.mean <= 0.15
    assert groups["serving_ttft_inf2"].all.median <= 0.25
    assert groups["serving_itl_inf2"].all.median <= 0.25
    assert groups["serving_inf2"].n == 16


def test_what_load_is_told_by_the_row(rows: dict[str, PublishedRow]) -> None:
    assert LoadTest.of(rows["692"]) == LoadTest(users=128, is_waves=True)
    assert LoadTest.of(rows["824"]) == LoadTest(users=1)
    assert LoadTest.of(rows["836"]) == LoadTest(users=128)
    assert LoadTest.of(rows["827"]) == LoadTest(rate=1.54, is_poisson=True)
    assert LoadTest.of(rows["840"]) == LoadTest(rate=1.93)
    assert LoadTest.of(rows["359"]) is None


def test_every_load_test_is_compared_or_skipped_with_a_reason(rows: dict[str, PublishedRow]) -> None:
    report = run_check(SAMPLE)
    skipped = dict(entry for entry in report.skipped if entry[1].startswith("serving"))
    assert skipped == {"843": "serving: quality is X", "952": "serving: quality is C"}
    assert {error.row_id for error in report.serving} | set(skipped) == set(rows) - {"359"}
    assert {error.unit for error in report.serving if error.group == "serving_inf2"} == {"tokens/s"}


def test_rows_that_the_table_contradicts_and_queues_that_grow_are_groups_of_their_own(
    served: dict[str, ServingRow],
) -> None:
    groups = run_check(SAMPLE).groups
    assert {row_id for row_id, row in served.items() if row.contradiction} == {"707", "712", "847"}
    assert groups["serving_contradicted_inf2"].n == groups["serving_itl_contradicted_inf2"].n == 3
    saturated = {row_id for row_id, row in served.items() if row.is_saturated}
    assert saturated == {"830", "846"}, "arrivals at a rate, with nearly the most tokens of their deployment"
    assert groups["serving_ttft_saturated_inf2"].n == 2
    assert "serving_saturated_inf2" not in groups, "throughput is no worse for it"


@pytest.mark.parametrize(
    ("row_id", "changes", "policy", "samples_on_device"),
    [
        ("685", {}, TGI_1, False),  # TGI 1
        ("824", {}, POLICIES["tgi"], False),
        ("847", {}, POLICIES["tgi"], True),  # NxD Inference samples on the device
        ("824", {"framework": "vLLM (optimum-neuron)", "notes": "CPU sampling"}, POLICIES["neuron"], False),
        ("824", {"framework": "vLLM (optimum-neuron)", "notes": "on-device sampling"}, POLICIES["neuron"], True),
    ],
)
def test_a_row_names_its_stack_and_the_stack_its_rules(
    rows: dict[str, PublishedRow], row_id: str, changes: dict[str, str], policy: BatchingPolicy, samples_on_device: bool
) -> None:
    row = replace(rows[row_id], texts=rows[row_id].texts | changes)
    stack = stack_of(row)
    assert stack.samples_on_device == samples_on_device
    assert ServingRow.of(row, default_calibration()).policy == policy
    assert stack.name == ("optimum-vllm" if "framework" in changes else "tgi")


@pytest.mark.parametrize("changes", [{"framework": "TorchServe"}, {"neuron_sdk": "2.16"}])
def test_software_without_slots_that_come_and_go_is_not_simulated(
    rows: dict[str, PublishedRow], changes: dict[str, str]
) -> None:
    with pytest.raises(Unusable, match="no continuous batching is known of"):
        stack_of(replace(rows["685"], texts=rows["685"].texts | changes))


def test_more_users_get_more_tokens_and_wait_longer(served: dict[str, ServingRow]) -> None:
    start = ServingCoefficients()
    few, many = (served[row_id].predict(start) for row_id in ("685", "692"))
    assert many[0] > 10 * few[0]
    assert many[1] > 3 * few[1]


def test_a_prediction_repeats_itself(served: dict[str, ServingRow]) -> None:
    start = ServingCoefficients()
    assert served["830"].predict(start) == served["830"].predict(start)


def test_a_row_feels_its_own_coefficients_only(served: dict[str, ServingRow]) -> None:
    base = coefficients(tgi=HostWork(0.05, 2e-4, 5e-9))
    slow_logits = coefficients(tgi=HostWork(0.05, 2e-4, 1e-6))
    slow_clients = replace(base, clients=Clients(3.0, 0.01))
    other_stack = coefficients(tgi=HostWork(0.05, 2e-4, 5e-9), nxdi_vllm=HostWork(9.0, 9.0))
    for row_id, other, is_felt in (
        ("846", slow_logits, False),  # SDK 2.22 samples on the device
        ("830", slow_logits, True),
        ("846", slow_clients, False),  # guidellm
        ("692", slow_clients, True),
        ("692", other_stack, False),
    ):
        row = served[row_id]
        assert (row.used_coefficients(base) != row.used_coefficients(other)) == is_felt, row_id
        assert (row.predict(base)[0] > row.predict(other)[0]) == is_felt, row_id


def test_the_hosts_request_work_is_a_wait_and_slots_slow_every_token(served: dict[str, ServingRow]) -> None:
    row = served["827"]
    base, waits, slows = (
        row.predict(coefficients(tgi=host)) for host in (HostWork(), HostWork(request_s=1.0), HostWork(slot_s=2e-3))
    )
    assert waits[1] - base[1] == pytest.approx(1000, rel=0.2)
    assert waits[2] == pytest.approx(base[2], rel=0.05)
    assert slows[2] > 1.05 * base[2]


def made(rows: list[ServingRow], truth: ServingCoefficients) -> list[ServingRow]:
    """Return the same load tests, measured on stacks and clients with these coefficients."""
    return [replace(row, measured=dict(zip(QUANTITIES, row.predict(truth, 2), strict=True))) for row in rows]


def test_a_fit_finds_the_host_that_made_the_figures(served: dict[str, ServingRow]) -> None:
    truth = ServingCoefficients({"tgi": HostWork(0.1, 1.6e-3, 5e-9)}, Clients(0.2, 1e-3, 1e-8))
    found = made([served[row_id] for row_id in ("685", "689", "698", "824", "827", "830", "837", "846")], truth)
    fit = fit_hosts(found)
    assert fit.structure.name == "one host"
    fitted = fit.coefficients.hosts["tgi"]
    assert fitted.slot_s == pytest.approx(1.6e-3, rel=0.25)
    assert fitted.request_s == pytest.approx(0.1, rel=0.25)
    for row in found:
        assert row.predict(fit.coefficients, 2)[0] == pytest.approx(row.measured["throughput"], rel=0.06)


def test_the_fewest_hosts_that_explain_the_figures_are_taken(served: dict[str, ServingRow]) -> None:
    """Hosts that differ are told apart only if the rows of unseen series say so."""
    some_rows = [served[row_id] for row_id in ("685", "689", "824", "827", "837", "846")]
    none = made(some_rows, ServingCoefficients({}, Clients(0.2, 1e-3, 0.0)))
    assert fit_hosts(none).structure.name == "no host"


def test_hosts_of_stacks_are_pulled_towards_each_other() -> None:
    knobs = (("nxdi-vllm", "slot_s"), ("tgi", "slot_s"), (CLIENTS, "spacing_s"), (CLIENTS, "draw_s"))
    shapes = [structure.unknowns(knobs) for structure in STRUCTURES]
    assert [spread.shape[1] for spread, _ in shapes] == [1, 3, 4], "clients; and a host; and two, with draws"
    assert [len(ties) for _, ties in shapes] == [0, 0, 1]
    one_host, each = shapes[1][0], shapes[2]
    assert one_host[0].tolist() == one_host[1].tolist(), "one unknown for both"
    assert (each[1] @ np.linalg.lstsq(each[0], np.array([2.0, 2.0, 1.0, 5.0]), rcond=None)[0]).tolist() == [0.0]


def test_a_left_out_series_does_not_bend_the_fit(served: dict[str, ServingRow]) -> None:
    rows = [served[row_id] for row_id in ("685", "689", "824", "827", "837", "846")]
    spoilt = [replace(row, measured={n: 5 * v for n, v in row.measured.items()}) if row.row.row_id < "800" else row
              for row in rows]  # fmt: skip
    point = ServingCoefficients({"tgi": HostWork(0.05, 2e-4)})
    fits = []
    for table in (rows, spoilt):
        responses = Responses(table, point)
        kept = responses.series != responses.numbers[rows[0].series]
        fits.append(responses.fit(responses.choose(kept), kept))
    assert fits[0].tolist() == fits[1].tolist()


def test_a_fit_without_rows_is_no_host() -> None:
    assert fit_hosts([]).coefficients == ServingCoefficients()


def test_every_coefficient_is_a_knob(served: dict[str, ServingRow]) -> None:
    knobs = knobs_of([served["685"]])
    assert {name for _, name in knobs} == set(UNITS)
    start = ServingCoefficients()
    for knob in knobs:
        changed = with_value(start, knob, 0.5)
        assert value_of(changed, knob) == 0.5
        assert all(value_of(changed, other) == value_of(start, other) for other in knobs if other != knob)
    assert start == ServingCoefficients(), "unchanged"


def some(ids: set[str], folder: Path) -> Path:
    lines = SAMPLE.read_text().splitlines(keepends=True)
    found = folder / "some.csv"
    found.write_text(lines[0] + "".join(line for line in lines if line.split(",")[0] in ids))
    return found


def test_calibrate_fits_the_load_tests_of_a_table_too(tmp_path: Path) -> None:
    report = run_calibrate(some({"685", "689", "824", "830"}, tmp_path))
    group = report.groups["serving_inf2"]
    assert group.n == 4
    assert set(group.left_out) == {"series"}
    assert group.series is not None
    assert group.series.n == 2
    assert set(report.calibration.clients) == {"spacing_s", "stop_rate", "draw_s"}
    assert all(value > 0 for value in report.calibration.clients.values())
    phases = [each.point.phase for each in report.calibration.evidence.samples]
    assert {"throughput", "ttft", "itl"} <= set(phases)
    assert {"no host", "constant factor"} <= set(report.baselines)
    assert report.baselines["no host"].keys() >= {"serving_inf2", "serving_itl_inf2"}
    assert report.as_json()["serving"][0].keys() >= {"row_id", "group", "unit", "measured", "predicted", "error"}


def test_contradicted_load_tests_are_fitted_to_by_nobody(rows: dict[str, PublishedRow]) -> None:
    def found(*row_ids: str) -> ServingCoefficients:
        table = [rows[row_id] for row_id in row_ids]
        return calibrate_serving(table, default_calibration(), lambda _: default_calibration()).coefficients

    assert found("359", "689", "824", "707", "712") == found("359", "689", "824")


def test_a_series_of_load_tests_is_judged_by_steps_and_hosts_that_had_not_seen_it(
    rows: dict[str, PublishedRow],
) -> None:
    """Absurd measurements of a series leave predictions of its own rows unchanged."""
    chosen = [rows[row_id] for row_id in ("685", "689", "824", "827", "837")]
    asked: list[Series] = []

    def without(series: Series) -> Any:
        asked.append(series)
        return default_calibration()

    def unseen(table: list[PublishedRow]) -> dict[tuple[str, str], float]:
        errors = calibrate_serving(table, default_calibration(), without).errors
        return {(e.row_id, e.unit): e.measured * (1 + (e.left_out or 0.0)) for e in errors if e.unit != "ms"}

    spoilt = [
        replace(row, measures={name: 7 * value for name, value in row.measures.items()})
        if row.texts["source_group"] == "hf-optimum-tgi-llmperf"
        else row
        for row in chosen
    ]
    before, after = unseen(chosen), unseen(spoilt)
    assert set(asked) == {
        ("hf-optimum-tgi-llmperf", 18, "Llama-2-7B-chat"),
        ("hf-optimum-guidellm", 20, "Llama-3.1-8B-Instruct"),
        ("hf-optimum-guidellm", 21, "Llama-3.1-8B-Instruct"),
    }
    for row_id in ("685", "689"):
        assert after[row_id, "tokens/s"] == pytest.approx(before[row_id, "tokens/s"], rel=1e-3)


def test_hosts_draw_tokens_for_chat_clients_and_take_the_likeliest_for_llmperf(served: dict[str, ServingRow]) -> None:
    drawn = {row_id: row.draws for row_id, row in served.items()}
    assert drawn["827"], "guidellm asks the chat API"
    assert not drawn["692"], "llmperf"
    assert not drawn["846"], "the device samples"


def test_users_of_other_tools_than_llmperf_do_not_wait_for_each_other(rows: dict[str, PublishedRow]) -> None:
    texts = rows["692"].texts | {"source_group": "a-repository", "tpot_stat": "P50", "notes": ""}
    assert LoadTest.of(replace(rows["692"], texts=texts)) == LoadTest(users=128)


@pytest.mark.slow
def test_a_test_without_an_answer_in_its_window_goes_on_until_one_ends(served: dict[str, ServingRow]) -> None:
    slow = ServingCoefficients({"tgi": HostWork(slot_s=100.0)})
    tokens_s, ttft_ms, itl_ms = served["836"].predict(slow)
    assert 0 < tokens_s < 1
    assert 0 < ttft_ms < np.inf
    assert itl_ms > 1e5


@pytest.mark.parametrize(
    ("tokens_s", "ttft_ms", "is_kept"),
    [
        (35.5, 285.5, True),
        (38.5, 285.5, False),  # 1 / TPOT: a first token leaves less
        (38.5, 0.0, False),
        (30.0, 0.0, True),
    ],
)
def test_the_inverse_of_a_time_per_token_is_no_throughput(
    rows: dict[str, PublishedRow], tokens_s: float, ttft_ms: float, is_kept: bool
) -> None:
    row = rows["824"]
    measures = row.measures | {"output_tok_s": tokens_s, "ttft_ms": ttft_ms, "tpot_ms": 26.0}
    assert ("throughput" in measured_figures(replace(row, measures=measures))) == is_kept


def test_waits_in_a_test_of_unknown_length_are_a_group_of_their_own(rows: dict[str, PublishedRow]) -> None:
    known, row = rows["836"], rows["836"]
    unknown = replace(row, texts=row.texts | {"source_group": "a-repository"})
    for one, is_apart in ((known, False), (unknown, True)):
        (found,), _ = serving_rows([one], default_calibration())
        assert found.is_saturated == is_apart
        assert ("ttft" in found.fitted) != is_apart


def test_early_stops_give_the_mean_length() -> None:
    rate = stop_rate(250, 175)
    drawn = OutputLengths(10, 250, rate).draw(np.random.default_rng(0), 20_000)
    assert OutputLengths(10, 250, rate).mean == pytest.approx(175)
    assert drawn.mean() == pytest.approx(175, rel=0.03)
    assert stop_rate(250, 250) == 0.0
    assert OutputLengths(10, 250, 0.0).mean == 250


def test_a_table_of_load_tests_alone_can_be_checked(tmp_path: Path) -> None:
    alone = some({"692", "837"}, tmp_path)
    assert {name: group.n for name, group in run_check(alone).groups.items() if group.n} == {
        "serving_inf2": 2,
        "serving_itl_inf2": 2,
        "serving_ttft_inf2": 1,
        "serving_ttft_saturated_inf2": 1,
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda row: replace(row, counts={k: v for k, v in row.counts.items() if k != "tp"}), "tp not stated"),
        (lambda row: replace(row, measures=row.measures | {"ttft_ms": -1.0}), "a measured figure is negative"),
        (lambda row: replace(row, measures={}), "no throughput, TTFT or time per token"),
        (lambda row: replace(row, texts=row.texts | {"arrival": "by hand"}), "no load test of a known kind"),
    ],
)
def test_load_tests_that_cannot_be_simulated_are_skipped_with_the_reason(
    rows: dict[str, PublishedRow], change: Callable[[PublishedRow], PublishedRow], reason: str
) -> None:
    found, skipped = serving_rows([change(rows["692"])], default_calibration())
    assert not found
    assert skipped == [("692", f"serving: {reason}")]


def test_a_check_of_one_stack_compares_its_load_tests_alone() -> None:
    rows = read_rows(SAMPLE)
    every, _ = serving_rows(rows, default_calibration())
    for stack in ("tgi", "nxdi-vllm"):
        found, skipped = serving_rows(rows, default_calibration(), stack)
        assert [row.row.row_id for row in found] == [row.row.row_id for row in every if row.stack.name == stack]
        assert len(found) + sum("a load test of" in reason for _, reason in skipped) == len(every)
