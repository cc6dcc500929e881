"""Plans of encoders, compared with the Neuron SDK's published rows, which no fit has seen, and a simulated replica."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from neuronserve.planner.model_names import resolve_shape
from neuronserve.planner.plan.encoder_table import render
from neuronserve.planner.plan.encoders import EncoderRow, latency_s, load_within, plan_encoder
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.queueing import MAX_LOAD
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


def test_published_passes_are_met_in_the_mean_and_single_texts_are_overestimated() -> None:
    errors = [
        costs(model, device).encode(texts, 128).elapsed_s * 1e3 / ms - 1 for model, device, texts, ms in PUBLISHED
    ]
    batched = [error for error, row in zip(errors, PUBLISHED, strict=True) if row[2] > 1]
    assert np.mean(np.abs(batched)) <= 0.20
    assert max(np.abs(batched)) <= 0.40
    assert np.mean(np.abs(errors)) <= 0.35
    assert max(np.abs(errors)) <= 0.70


def test_most_published_passes_lie_in_their_bands() -> None:
    inside = 0
    for model, device, texts, ms in PUBLISHED:
        model_costs = costs(model, device)
        band = model_costs.calibration.evidence.band(model_costs.point("prefill", texts, 128))
        predicted = model_costs.encode(texts, 128).elapsed_s * 1e3
        inside += band.low * predicted <= ms <= band.high * predicted
    assert inside >= 0.7 * len(PUBLISHED)


def test_a_pass_has_no_server_around_it() -> None:
    model_costs = costs("bert-base-uncased", "inf2.xlarge")
    call = model_costs.calibration.coefficients["prefill_call"]
    assert model_costs.prefill(128, 128).elapsed_s == pytest.approx(model_costs.encode(1, 128).elapsed_s + call)


def simulated(batch: int, load: float, count: int = 40_000) -> float:
    """Return the mean latency, in passes, of a server that takes up to `batch` waiting texts at once."""
    arrivals = np.cumsum(np.random.default_rng(1).exponential(1 / (load * batch), count))
    now, done, total = 0.0, 0, 0.0
    while done < count:
        now = max(now, float(arrivals[done]))
        upto = max(done + 1, min(int(np.searchsorted(arrivals, now, "right")), done + batch))
        now += 1.0
        total += float((now - arrivals[done:upto]).sum())
        done = upto
    return total / count


@pytest.mark.parametrize("batch", [1, 2, 8, 64])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.85])
def test_latency_is_that_of_a_simulated_replica(batch: int, load: float) -> None:
    assert latency_s(1.0, batch, load) == pytest.approx(simulated(batch, load), rel=0.07)


def test_limits_bound_the_load() -> None:
    assert load_within(1.0, 8, 100.0) == MAX_LOAD
    assert load_within(1.0, 8, 0.9) == 0.0
    load = load_within(1.0, 8, 1.5)
    assert latency_s(1.0, 8, load) <= 1.5 < latency_s(1.0, 8, load + 1e-3)


def find(options: PlanOptions, device: str, tp: int, batch: int) -> EncoderRow:
    rows = plan_encoder(options).rows
    (found,) = [r for r in rows if (r.device, r.tp, r.dtype, r.batch) == (device, tp, "bfloat16", batch)]
    return found


def test_figures_follow_from_the_pass() -> None:
    row = find(replace(MINI, request_rate=30_000.0), "inf2.xlarge", 1, 8)
    assert row.pass_s == costs(MINI.model, "inf2.xlarge").encode(8, 256).elapsed_s
    assert row.saturated_texts_s == pytest.approx(2 * 8 / row.pass_s)
    assert (row.instances - 1) * MAX_LOAD * row.saturated_texts_s < 30_000 <= row.instances * row.saturated_texts_s
    price = row.at_rate["on_demand"]
    assert price is not None
    assert price.hourly_usd == pytest.approx(row.instances * 0.7582)
    assert price.texts_usd == pytest.approx(price.hourly_usd / 3600 / 30_000 * 1e6)
    assert price.tokens_usd == pytest.approx(price.texts_usd / 256)


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
