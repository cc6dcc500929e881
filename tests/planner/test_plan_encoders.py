"""Plans of encoders, compared with the Neuron SDK's published rows, which no fit has seen, and a simulated replica."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console

from neuronserve.cli import main
from neuronserve.planner.model_names import resolve_shape
from neuronserve.planner.plan.encoder_table import render
from neuronserve.planner.plan.encoders import EncoderRow, plan_encoder
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.queueing import MAX_LOAD
from neuronserve.planner.plan.text_batches import TextTimes, load_within
from neuronserve.planner.plan.times import Limit
from neuronserve.server.config.formats import WeightFormats
from neuronserve.server.cost.model import CostModel
from neuronserve.server.device.catalog import instance
from neuronserve.server.errors import DeviceMemoryError, SettingsError
from neuronserve.server.placement.footprint import encoder_bytes

MINI = PlanOptions("sentence-transformers/all-MiniLM-L6-v2", 256, request_rate=5000.0)

# Model, instance, texts of a pass, median milliseconds of a pass of 128 tokens on one core, both cores busy:
# github.com/aws-neuron/aws-neuron-sdk at 81ce03ae, about-neuron/benchmarks/{inf2,trn1}/*_data_encoder.csv.
PUBLISHED = [
    ("bert-base-uncased", "inf2.xlarge", 1, 0.999),
    ("bert-large-uncased", "inf2.xlarge", 1, 2.694),
    ("distilbert-base-uncased", "inf2.xlarge", 1, 0.579),
    ("roberta-base", "inf2.xlarge", 1, 0.999),
    ("roberta-large", "inf2.xlarge", 1, 2.693),
    ("bert-base-uncased", "inf2.xlarge", 8, 5.974),
    ("bert-large-uncased", "inf2.xlarge", 4, 8.411),
    ("distilbert-base-uncased", "inf2.xlarge", 16, 6.011),
    ("roberta-base", "inf2.xlarge", 8, 5.424),
    ("roberta-large", "inf2.xlarge", 4, 8.310),
    ("bert-base-uncased", "trn1.2xlarge", 1, 0.943),
    ("bert-large-uncased", "trn1.2xlarge", 1, 2.669),
    ("distilbert-base-uncased", "trn1.2xlarge", 1, 0.543),
    ("roberta-base", "trn1.2xlarge", 1, 0.958),
    ("roberta-large", "trn1.2xlarge", 1, 2.670),
    ("bert-base-uncased", "trn1.2xlarge", 16, 9.345),
    ("bert-large-uncased", "trn1.2xlarge", 4, 7.241),
    ("distilbert-base-uncased", "trn1.2xlarge", 16, 5.010),
    ("roberta-base", "trn1.2xlarge", 16, 9.460),
    ("roberta-large", "trn1.2xlarge", 8, 14.230),
]


def costs(model: str, device: str) -> CostModel:
    return CostModel.of(resolve_shape(model), instance(device), 1)


def test_published_passes_are_met() -> None:
    errors = [
        costs(model, device).encode(texts, 128).elapsed_s * 1e3 / ms - 1 for model, device, texts, ms in PUBLISHED
    ]
    assert np.mean(np.abs(errors)) <= 0.10
    assert max(np.abs(errors)) <= 0.25


def test_most_published_passes_lie_in_their_bands() -> None:
    inside = 0
    for model, device, texts, ms in PUBLISHED:
        model_costs = costs(model, device)
        band = model_costs.calibration.evidence.band(model_costs.point("encode", texts, 128))
        predicted = model_costs.encode(texts, 128).elapsed_s * 1e3
        inside += band.low * predicted <= ms <= band.high * predicted
    assert inside >= 0.7 * len(PUBLISHED)


def test_scores_of_a_text_are_brought_to_the_host_faster_than_its_vectors() -> None:
    model_costs = costs("bert-base-uncased", "inf2.xlarge")
    vectors, scores = (model_costs.encode(16, 128, is_labelled=labelled) for labelled in (False, True))
    returned = 16 * (128 * 768 - 2) * 4
    assert vectors.elapsed_s - scores.elapsed_s == pytest.approx(
        returned * model_costs.calibration.coefficients["encode_output"]
    )
    assert vectors.flops == scores.flops == pytest.approx(16 * (2 * 128 * 84.9e6 + 4 * 12 * 128 * 128 * 768), rel=1e-3)


@lru_cache
def simulated(batch: int, load: float, count: int = 40_000) -> NDArray[np.float64]:
    """Return latencies, in passes, on a server that takes up to `batch` waiting texts at once."""
    arrivals = np.cumsum(np.random.default_rng(1).exponential(1 / (load * batch), count))
    now, done, found = 0.0, 0, np.empty(count)
    while done < count:
        now = max(now, float(arrivals[done]))
        upto = max(done + 1, min(int(np.searchsorted(arrivals, now, "right")), done + batch))
        now += 1.0
        found[done:upto] = now - arrivals[done:upto]
        done = upto
    return found


@pytest.mark.parametrize("batch", [1, 2, 8, 64])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.85])
def test_latency_is_that_of_a_simulated_replica(batch: int, load: float) -> None:
    times, found = TextTimes(1.0, batch, load), simulated(batch, load)
    assert times.latency_s == pytest.approx(float(found.mean()), rel=0.07)
    for share in (0.5, 0.95, 0.99):
        assert times.quantile_s(share) == pytest.approx(float(np.quantile(found, share)), rel=0.1)


@given(st.integers(1, 256), st.floats(0.01, 0.9), st.floats(1e-4, 1.0))
def test_quantiles_rise_and_lie_around_the_mean(batch: int, load: float, pass_s: float) -> None:
    times = TextTimes(pass_s, batch, load)
    assert pass_s <= times.quantile_s(0.5) <= times.quantile_s(0.95) <= times.quantile_s(0.99)
    assert times.quantile_s(0.01) <= times.latency_s <= times.quantile_s(0.999)


def test_limits_bound_the_load() -> None:
    mean, tail = Limit("TTFT", 1.5), Limit("TTFT", 1.9, 0.99)
    assert load_within(1.0, 8, (Limit("TTFT", 100.0),)) == MAX_LOAD
    assert load_within(1.0, 8, ()) == MAX_LOAD
    assert load_within(1.0, 8, (Limit("TTFT", 0.9),)) == 0.0
    load = load_within(1.0, 8, (mean,))
    assert TextTimes(1.0, 8, load).latency_s <= 1.5 < TextTimes(1.0, 8, load + 1e-3).latency_s
    both = load_within(1.0, 8, (mean, tail))
    assert both < load
    assert TextTimes(1.0, 8, both).quantile_s(0.99) == pytest.approx(1.9, rel=1e-3)


def find(options: PlanOptions, device: str, tp: int, batch: int) -> EncoderRow:
    rows = plan_encoder(options).rows
    (found,) = [r for r in rows if (r.device, r.tp, r.dtype, r.batch) == (device, tp, "bfloat16", batch)]
    return found


def test_figures_follow_from_the_pass() -> None:
    row = find(replace(MINI, request_rate=30_000.0), "inf2.xlarge", 1, 8)
    assert row.pass_s == costs(MINI.model, "inf2.xlarge").encode(8, 256).elapsed_s
    assert row.saturated_texts_s == pytest.approx(2 * 8 / row.pass_s)
    assert row.extrapolated
    sure = row.saturated_texts_s / row.band.high  # no pass of 256 tokens was measured: sized at the 90th percentile
    assert (row.instances - 1) * MAX_LOAD * sure < 30_000 <= row.instances * sure
    price = row.at_rate["on_demand"]
    assert price is not None
    assert price.hourly_usd == pytest.approx(row.instances * 0.7582)
    assert price.texts_usd == pytest.approx(price.hourly_usd / 3600 / 30_000 * 1e6)
    assert price.tokens_usd == pytest.approx(price.texts_usd / 256)


def test_a_core_has_a_copy_of_its_own_unless_degrees_are_asked_for() -> None:
    assert {row.tp for row in plan_encoder(MINI).rows} == {1}
    assert {row.tp for row in plan_encoder(replace(MINI, tensor_parallel_sizes=(2,))).rows} == {2}


def test_benchmarks_of_an_instance_are_published_ones() -> None:
    """Rows of inf1.xlarge: 4 models, 2 workers, batch 8 of bert-base-cased: 1,095 texts/s, 58.3 ms, 65.0 ms (2.20)."""
    options = PlanOptions("bert-base-cased", 128, request_rate=100.0, devices=("inf1.xlarge",))
    one, every, queued = find(options, "inf1.xlarge", 1, 8).forms
    assert (one.models, every.models, queued.models) == (1, 4, 4)
    assert every.texts_s == queued.texts_s == pytest.approx(4 * one.texts_s)
    assert queued.latency_p50_s == pytest.approx(2 * every.latency_p50_s)
    assert queued.texts_s == pytest.approx(1095, rel=0.2)
    assert queued.latency_p50_s == pytest.approx(58.3e-3, rel=0.2)
    assert queued.latency_p99_s == pytest.approx(65.0e-3, rel=0.25)


def test_rows_without_measurements_win_only_if_their_slow_end_does() -> None:
    rows = plan_encoder(PlanOptions("bge-base-en-v1.5", 128, request_rate=500.0)).rows
    assert {row.sized_at for row in rows if row.extrapolated} == {0.9}
    assert {row.sized_at for row in rows if not row.extrapolated} == {0.5}
    prices = [row.at_rate["on_demand"] for row in rows if row.meets_slo]
    hourly = [inf if price is None else price.hourly_usd for price in prices]
    assert hourly == sorted(hourly)
    assert (rows[0].device, rows[0].dtype) == ("inf1.xlarge", "bfloat16")  # measured, and as cheap as with int8


def test_confidence_buys_instances_for_slow_passes() -> None:
    options = PlanOptions("bge-base-en-v1.5", 128, request_rate=20_000.0, devices=("inf2.xlarge",))
    usual, sure = (find(each, "inf2.xlarge", 1, 8) for each in (options, replace(options, confidence=0.9)))
    assert usual.instances <= sure.instances == usual.instances_band[1]
    assert sure.pass_s == usual.pass_s


def test_a_plan_of_rerankers_on_inf1_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    limits = "--request-rate", "200", "--ttft-p99-ms", "150"
    argv = "plan", "bge-base-en-v1.5", "--input-len", "128", "--device", "inf1.xlarge", "--task", "rerank"
    assert main([*argv, *limits, "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "Take 1 x inf1.xlarge, each 4 x TP1" in shown
    assert "closed loops" in shown
    assert "Inferentia1, under SDK" in shown
    assert "latency p99 at most 150 ms" in " ".join(shown.split())
    assert main([*argv, "--ttft-ms", "0.001"]) == 1
    row = json.loads(file.read_text())["candidates"][0]
    assert row["latency_p50_s"] <= row["latency_s"] * 1.5 <= row["latency_p99_s"] * 1.5
    assert row["latency_p99_s"] <= 0.150
    assert [form["models"] for form in row["forms"]] == [1, 4, 4]
    assert row["known"]["provenance"] in ("measured", "interpolated")
    assert main(["plan", "llama-8b", "--task", "rerank"]) != 0
    assert "--task is rerank: llama-8b is no encoder" in " ".join(capsys.readouterr().err.split())


def test_texts_are_padded_to_a_bucket_and_to_no_more_than_the_positions() -> None:
    assert plan_encoder(replace(MINI, input_tokens=130)).bucket == 256
    assert plan_encoder(replace(MINI, model="roberta-base", input_tokens=500)).bucket == 512


def test_memory_is_weights_activations_and_runtime_without_a_cache() -> None:
    model = resolve_shape("bert-large-uncased")
    bf16, int8 = WeightFormats("bfloat16"), WeightFormats("bfloat16", "int8")
    one, many = (encoder_bytes(model, 1, bf16, (texts, 512)) for texts in (1, 256))
    assert 0.335e9 * 2 < one < many
    assert encoder_bytes(model, 1, int8, (1, 512)) < one


def test_rows_hold_the_limits_or_say_which_they_miss() -> None:
    rows = plan_encoder(replace(MINI, ttft_s=0.002, usd_per_hour=5.0)).rows
    assert rows[0].meets_slo
    for row in rows:
        if row.meets_slo:
            assert row.latency_s <= 0.002
            assert row.instances_band[0] is not None
        else:
            assert all("the limit is" in miss for miss in row.misses)


def test_what_has_no_answer_is_refused() -> None:
    with pytest.raises(SettingsError, match="model 'llama-8b' is no encoder"):
        plan_encoder(replace(MINI, model="llama-8b"))
    with pytest.raises(SettingsError, match="input_tokens is 600: bert-base-uncased has 512 positions"):
        plan_encoder(replace(MINI, model="bert-base-uncased", input_tokens=600))
    with pytest.raises(DeviceMemoryError, match="fits on no considered instance"):
        plan_encoder(replace(MINI, model="bert-large-uncased", device_memory_utilization=0.01))


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_table_fits_and_cuts_nothing(width: int) -> None:
    report = plan_encoder(replace(MINI, ttft_s=0.05))
    out = StringIO()
    Console(width=width, file=out).print(render(report, width), crop=False)
    text = [line.rstrip() for line in out.getvalue().splitlines()]
    assert text[0].startswith(f"Take {report.rows[0].instances} x {report.rows[0].device}")
    assert all(len(line) <= width or "https://" in line for line in text)
    assert not any("\u2026" in line for line in text)
    head = next(line for line in text if line.startswith("device ")).split()
    assert {"latency", "pass", "count"} <= set(" ".join(text).split()) | set(head)


def test_json_has_bands_and_only_options_of_encoders() -> None:
    answer = json.loads(json.dumps(plan_encoder(MINI).as_json(), allow_nan=False))
    assert "output_tokens" not in answer["options"]
    row = answer["candidates"][0]
    assert row["known"]["pass_s"]["p10"] <= row["pass_s"] <= row["known"]["pass_s"]["p90"]
    assert row["known"]["provenance"] == "formula"


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["bge-base-en-v1.5", "distilbert-base-uncased", "all-MiniLM-L6-v2", "bge-m3"]),
    st.integers(1, 256),
    st.floats(1.0, 30_000.0),
    st.sampled_from([0.005, 0.02, 0.1, 0.5]),
)
def test_more_demand_costs_no_less(model: str, tokens: int, rate: float, limit_s: float) -> None:
    def usd(options: PlanOptions) -> float:
        row = plan_encoder(options).rows[0]
        price = row.at_rate["on_demand"]
        return inf if price is None or not row.meets_slo else price.hourly_usd

    asked = PlanOptions(model, tokens, request_rate=rate, ttft_s=limit_s)
    more: list[dict[str, Any]] = [
        *({"request_rate": 1.3 * rate}, {"ttft_s": 0.7 * limit_s}, {"ttft_p99_s": 2 * limit_s}),
        *({"input_tokens": 2 * tokens}, {"confidence": 0.95}),
    ]
    for each in more:
        assert usd(asked) <= usd(replace(asked, **each)) * (1 + 1e-9), each
