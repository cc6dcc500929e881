"""Simulations: options, reports, and the laws that figures obey."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from neuronserve.planner.model_names import NAMED
from neuronserve.planner.simulate.load_bands import LOAD_FIGURES, load_band
from neuronserve.planner.simulate.options import SimulationOptions
from neuronserve.planner.simulate.simulator import run_simulation
from neuronserve.planner.simulate.statistics import Spread
from neuronserve.planner.simulate.table import render
from neuronserve.server.config.formats import StackName
from neuronserve.server.config.speculation import SpeculationConfig
from neuronserve.server.cost.calibration import default_calibration
from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.pricer import StepPricer
from neuronserve.server.cost.speculation import Speculation
from neuronserve.server.cost.stacks import STACKS, Stack
from neuronserve.server.cost.work import Runtime
from neuronserve.server.device.catalog import instance
from neuronserve.server.errors import DeviceError, DeviceMemoryError, SettingsError
from neuronserve.server.models.families import model_spec_of
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.scheduler.batching import POLICIES
from neuronserve.workload.arrivals import Arrivals
from neuronserve.workload.lengths import LengthRange
from neuronserve.workload.slo import Slo
from neuronserve.workload.synthetic import SyntheticWorkload
from neuronserve.workload.workload import Workload
from tools.random_checkpoint.shapes import SHAPES

MODEL = DecoderSizes(16, 2048, 8192, 32, 8, 64, 128_256).spec("LlamaForCausalLM", 131_072)
COST = CostModel.of(MODEL, instance("inf2.xlarge"), 2)
CHAT = SyntheticWorkload(120, Arrivals(4.0), LengthRange(50, 600), LengthRange(1, 80), seed=5)
BASE = SimulationOptions(MODEL, "inf2.xlarge", CHAT.generate(), 2, max_model_len=1024, max_num_seqs=8, stack="ideal")


def workload(*requests: tuple[float, int, int], **fields: Any) -> Workload:
    """Return a workload of (seconds, input, output)."""
    times, inputs, outputs = zip(*requests, strict=True)
    arrival = np.rint(np.array(times) * 1e9).astype(np.int64)
    return Workload("by hand", arrival, np.array(inputs), np.array(outputs), **fields)


def text(options: SimulationOptions) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(render(run_simulation(options)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_one_request_alone_takes_its_prefill_and_its_decode_steps() -> None:
    report = run_simulation(replace(BASE, workload=workload((0.0, 300, 11))))
    prefill_ms, decode_ms = COST.prefill(300, 512).elapsed_s * 1e3, COST.decode(8, 1024).elapsed_s * 1e3
    figures = report.as_json()
    assert figures["mean_ttft_ms"] == pytest.approx(prefill_ms, abs=1e-5)
    assert [figures["mean_tpot_ms"], figures["p99_itl_ms"]] == pytest.approx([decode_ms] * 2, abs=1e-5)
    assert figures["mean_e2el_ms"] == pytest.approx(prefill_ms + 10 * decode_ms, abs=1e-4)
    assert figures["mean_queue_ms"] == figures["idle_usd"] == 0
    assert figures["total_usd"] == pytest.approx(figures["mean_e2el_ms"] / 3.6e6 * 0.7582)


def test_two_prompts_follow_each_other_and_never_share_a_charge_with_decode() -> None:
    report = run_simulation(replace(BASE, workload=workload((0.0, 100, 3), (0.0, 100, 3))))
    prefill_ms, decode_ms = COST.prefill(100, 128).elapsed_s * 1e3, COST.decode(8, 1024).elapsed_s * 1e3
    # They share a step, and a server gives out what a step made at its end.
    assert report.ttft_ms == pytest.approx([2 * prefill_ms] * 2, abs=1e-5)
    assert report.e2el_ms == pytest.approx([2 * (prefill_ms + decode_ms)] * 2, abs=1e-4)
    assert max(report.records.gaps) / 1e6 == pytest.approx(decode_ms, abs=1e-5)


@pytest.mark.parametrize("length", [2.5, 4.0])
def test_drafts_bring_the_tokens_that_a_plan_expects_of_a_step_that_verifies_them(length: float) -> None:
    drafts = SpeculationConfig("ngram", 4, synthetic_acceptance_length=length)
    options = replace(BASE, workload=workload((0.0, 100, 900)), speculation=drafts)
    report = run_simulation(options)
    checked_ms = COST.checking(drafts).decode(8, 1024).elapsed_s * 1e3
    assert drafts.acceptance_rate is not None
    assert Speculation(4, drafts.acceptance_rate).tokens_per_step == pytest.approx(length)
    assert report.tpot_ms[0] == pytest.approx(checked_ms / length, rel=0.1)
    assert report.records.num_output[0] == report.records.gaps.total() + 1 == 900
    assert "formula" in text(options)


def test_drafts_need_an_acceptance() -> None:
    with pytest.raises(SettingsError, match="synthetic_acceptance_length"):
        run_simulation(replace(BASE, speculation=SpeculationConfig("ngram")))


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_one_request_alone_under_each_stack(stack: Stack) -> None:
    """Return the time of the host's work, the padded prompt, and the padded steps with the host's share."""
    options = replace(BASE, workload=workload((0.0, 300, 11)), stack=stack.name)
    report, host = run_simulation(options), default_calibration().host(stack.host)
    cost = CostModel.of(MODEL, instance("inf2.xlarge"), 2, Runtime(is_continuous=stack.is_continuous))
    prompt, context = (1024 if fill == "model length" else 512 for fill in (stack.prompts_fill, stack.steps_read))
    slots = 1 if stack.pads_slots else 8
    ttft_ms = 1e3 * (host.request_s + cost.prefill(300, prompt).elapsed_s)
    sampled = 0 if stack.samples_on_device else MODEL.vocab_size
    step_ms = 1e3 * (cost.decode(slots, context).elapsed_s + host.step_s(1, slots, sampled))
    assert report.ttft_ms[0] == pytest.approx(ttft_ms, abs=1e-5)
    assert report.tpot_ms[0] == pytest.approx(step_ms, abs=1e-5)
    assert report.queue_ms[0] == pytest.approx(1e3 * host.request_s, abs=1e-5)


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_prompts_that_come_together_are_encoded_as_the_stack_does(stack: Stack) -> None:
    report = run_simulation(replace(BASE, workload=workload((0.0, 100, 3), (0.0, 100, 3)), stack=stack.name))
    first, second = report.ttft_ms - 1e3 * default_calibration().host(stack.host).request_s
    goes_alone = POLICIES[stack.batching].max_prompts == 1
    assert second == pytest.approx(2 * first if goes_alone else first, abs=1e-5)


def test_decode_is_charged_for_the_bucket_of_the_longest_context() -> None:
    options = replace(BASE, workload=workload((0.0, 127, 4)), decode_buckets=(128,))
    report = run_simulation(options)
    short, long = (round(COST.decode(8, bucket).elapsed_s * 1e9) for bucket in (128, 1024))
    assert short < long
    assert dict(report.records.gaps) == {short: 1, long: 2}


def test_same_options_same_report() -> None:
    first, again = (json.dumps(run_simulation(BASE).as_json()) for _ in range(2))
    assert first == again


def test_step_by_step_gives_the_same_report() -> None:
    options = replace(BASE, replicas=2, decode_buckets=(128, 256), max_num_batched_tokens=100, num_blocks=60)
    assert run_simulation(options).as_json() == run_simulation(replace(options, step_by_step=True)).as_json()


@given(
    seed=st.integers(0, 1000),
    rate=st.sampled_from([0.2, 3.0, 60.0, float("inf")]),
    replicas=st.integers(1, 3),
    groups=st.integers(1, 2),
    clients=st.sampled_from([None, 1, 5]),
)
def test_attributed_and_idle_dollars_are_the_total(
    seed: int, rate: float, replicas: int, groups: int, clients: int | None
) -> None:
    chat = replace(CHAT, seed=seed, arrivals=Arrivals(rate), num_requests=40).generate()
    options = replace(BASE, workload=chat, replicas=replicas, tensor_parallel_size=1, data_parallel_size=groups)
    report = run_simulation(replace(options, max_concurrency=clients))
    cost = report.cost
    assert cost.total_usd == pytest.approx(replicas * 0.7582 * report.duration_s / 3600, rel=1e-12)
    assert cost.conservation_error <= 1e-9
    assert sum(report.request_usd()) == pytest.approx(cost.attributed_usd, rel=1e-9)
    assert 0 <= report.utilization <= 1


def test_the_keys_are_those_of_the_load_test() -> None:
    figures = run_simulation(replace(BASE, slo=Slo(ttft_ms=500))).as_json()
    times = {f"{of}_{time}_ms" for of in ("mean", "median", "std", "p99") for time in ("ttft", "tpot", "itl", "e2el")}
    tokens = {"total_input_tokens", "total_output_tokens", "output_throughput", "total_token_throughput"}
    assert times | tokens | {"completed", "failed", "duration", "request_throughput", "request_goodput"} <= {*figures}
    assert figures["completed"] == len(BASE.workload)
    assert figures["total_output_tokens"] == int(BASE.workload.output_len.sum())
    json.dumps(figures, allow_nan=False)


def test_goodput_counts_requests_that_meet_every_limit() -> None:
    ttft = np.sort(run_simulation(BASE).ttft_ms)
    report = run_simulation(replace(BASE, slo=Slo(ttft_ms=float(ttft[59]))))
    assert report.request_goodput == pytest.approx(60 / report.duration_s)
    assert run_simulation(replace(BASE, slo=Slo(ttft_ms=1e9, e2el_ms=1e-6))).request_goodput == 0
    assert run_simulation(BASE).request_goodput is None


def test_more_replicas_wait_less_and_cost_more_idle() -> None:
    busy = replace(BASE, workload=replace(CHAT, arrivals=Arrivals(40.0)).generate())
    one, four = run_simulation(busy), run_simulation(replace(busy, replicas=4))
    assert four.queue_ms.mean() < one.queue_ms.mean()
    assert four.utilization < one.utilization


def test_an_arrival_goes_to_the_engine_with_the_fewest_open_requests() -> None:
    report = run_simulation(replace(BASE, workload=workload(*[(0.0, 100, 5)] * 4), replicas=4))
    assert len(set(report.e2el_ms)) == 1
    assert [engine.num_decode_steps for engine in report.engines] == [4] * 4


def test_a_closed_loop_never_has_more_open_than_its_clients() -> None:
    report = run_simulation(replace(BASE, workload=workload(*[(0.0, 100, 9)] * 12), max_concurrency=3))
    sent, done = report.records.sent_ns, report.records.finish_ns
    for now in sent:
        assert sum(a <= now < b for a, b in zip(sent, done, strict=True)) <= 3
    assert report.e2el_ms.max() < run_simulation(replace(BASE, workload=report.options.workload)).e2el_ms.max()


@pytest.mark.parametrize("clients", [None, 1, 3])
def test_the_host_works_on_a_request_between_its_sending_and_the_queue(clients: int | None) -> None:
    options = replace(BASE, workload=workload(*[(0.0, 100, 9)] * 12), max_concurrency=clients, stack="tgi")
    records, request_ns = run_simulation(options).records, default_calibration().host("tgi").request_s * 1e9
    assert min(np.array(records.scheduled_ns) - records.sent_ns) == pytest.approx(request_ns, abs=1)
    begun = [records.sent_ns[0]] * (clients or 12)
    assert sorted(records.sent_ns) == sorted([*begun, *sorted(records.finish_ns)][:12])  # when a client is free again


def test_a_refusal_lets_its_client_send_the_next() -> None:
    requests = workload(*[(0.0, 1024, 1)] * 3, (0.0, 5, 5), (9.0, 5, 5))
    report = run_simulation(replace(BASE, workload=requests, max_concurrency=1, stack="tgi"))
    request_ns = round(default_calibration().host("tgi").request_s * 1e9)
    assert list(report.records.sent_ns) == [-1, -1, -1, 3 * request_ns, 9 * 10**9]


def test_a_shared_prefix_is_computed_once() -> None:
    requests = workload((0.0, 600, 2), (1.0, 600, 2), (2.0, 600, 2), prefixes=((5,), (5,), (6,)))
    report = run_simulation(replace(BASE, workload=requests))
    assert list(report.records.num_cached) == [0, 512, 0]
    assert report.ttft_ms[1] < report.ttft_ms[0] == report.ttft_ms[2]
    assert any("cached" in reason for reason in report.extrapolated)
    uncached = run_simulation(replace(BASE, workload=requests, enable_prefix_caching=False))
    assert list(uncached.records.num_cached) == [0, 0, 0]
    assert not any("cached" in reason for reason in uncached.extrapolated)


def test_a_prefix_of_a_model_with_states_is_found_where_the_server_keeps_a_snapshot() -> None:
    """Snapshots: at each 32 blocks, and at the last whole block of a prompt."""
    config = SHAPES["tiny-qwen3-next"].config("bfloat16") | {"max_position_embeddings": 4096}
    requests = workload(*((float(i), 1100, 2) for i in range(4)), prefixes=((5, 6), (5, 6), (5, 7), (8,)))
    options = replace(BASE, model=model_spec_of(config), workload=requests, max_model_len=2048)
    assert options.resolve_cache().num_states == 1 + 2 * options.max_num_seqs
    assert list(run_simulation(options).records.num_cached) == [0, 1024, 0, 0]


def test_work_behind_a_prefix_costs_more_than_the_same_tokens_alone_and_less_than_all() -> None:
    pricer = StepPricer(COST, 8, (128, 1024), (1024,))
    assert pricer.prefill_ns(0, 128) < pricer.prefill_ns(896, 128) < pricer.prefill_ns(0, 1024)


def test_what_the_server_would_refuse_is_counted_and_costs_nothing() -> None:
    requests = workload((0.0, 1024, 1), (0.0, 5, 5), (0.0, 5, 5), (0.0, 5, 5))
    report = run_simulation(replace(BASE, workload=requests, max_num_queued_reqs=2))
    assert report.as_json()["refused"] == {"context_length_exceeded": 1, "queue_full": 1}
    assert list(report.request_usd() > 0) == [False, True, True, False]


def test_a_workload_that_is_refused_as_a_whole_has_figures() -> None:
    report = run_simulation(replace(BASE, workload=workload((0.0, 5000, 1))))
    figures = report.as_json()
    assert (figures["completed"], figures["failed"], figures["total_usd"]) == (0, 1, 0)
    assert figures["usd_per_million_output_tokens"] is None


def test_a_part_without_measurements_is_marked() -> None:
    known = replace(BASE, model=NAMED["llama-8b"], instance="inf2.48xlarge", tensor_parallel_size=8)
    options = replace(known, instance="trn3-gen1", usd_per_hour=10.0)
    assert run_simulation(options).as_json()["is_extrapolated"]
    assert "EXTRAPOLATED" in text(options)
    assert "EXTRAPOLATED" not in text(known)


def test_a_model_smaller_than_all_measured_ones_is_marked() -> None:
    assert any("B parameters: measured are" in reason for reason in run_simulation(BASE).extrapolated)
    assert "EXTRAPOLATED" in text(BASE)


def test_the_table_shows_the_figures() -> None:
    shown, figures = text(replace(BASE, slo=Slo(ttft_ms=500))), run_simulation(BASE).as_json()
    throughput, p99_ms, used = (figures[key] for key in ("output_throughput", "p99_ttft_ms", "utilization"))
    for figure in (f"{throughput:,.1f} /s", f"{p99_ms:,.2f}", f"{used:.1%}"):
        assert figure in shown
    assert "within the limits" in shown


def test_figures_stand_in_bands_that_measured_load_tests_give() -> None:
    known = replace(BASE, model=NAMED["llama-8b"], instance="inf2.48xlarge", tensor_parallel_size=8, stack="tgi")
    figures = run_simulation(replace(known, max_concurrency=4)).as_json()
    assert figures["bands"].keys() == {"output_throughput", "mean_ttft_ms", "mean_tpot_ms"}
    for name, band in figures["bands"].items():
        assert 0.4 * figures[name] < band["p10"] < figures[name] < band["p90"] < 2.5 * figures[name]
    assert figures["band_factors"].keys() == {"throughput", "ttft", "itl"}
    band = figures["bands"]["mean_ttft_ms"]
    assert f"{band['p10']:,.2f}-{band['p90']:,.2f}" in " ".join(text(replace(known, max_concurrency=4)).split())


def test_answers_do_not_outrun_the_arrivals_of_an_open_workload() -> None:
    arrivals = workload(*((float(second), 100, 10) for second in range(20)))
    report = run_simulation(replace(BASE, workload=arrivals))
    assert report.bands["output_throughput"][1] == pytest.approx(200 / 19)
    closed = run_simulation(replace(BASE, workload=arrivals, max_concurrency=1))
    assert closed.bands["output_throughput"][1] > 200 / 19


def test_a_stack_without_load_tests_has_wider_bands() -> None:
    model = CostModel.of(NAMED["llama-8b"], instance("inf2.48xlarge"), 8)
    for figure in LOAD_FIGURES:
        known, unknown = (load_band(figure, model, STACKS[name], 8, 1024) for name in ("tgi", "ideal"))
        assert unknown.low < known.low < 1 < known.high < unknown.high
        assert unknown.provenance == "formula"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"instance": "inf9.xlarge"}, DeviceError, "no device 'inf9.xlarge'"),
        ({"tensor_parallel_size": 3}, DeviceError, "needs 3 NeuronCores"),
        ({"instance": "inf2.48xlarge", "tensor_parallel_size": 3}, DeviceError, "tensor_parallel_size is 3"),
        ({"data_parallel_size": 2}, DeviceError, "needs 4 NeuronCores: inf2.xlarge has 2"),
        ({"instance": "inf1.xlarge", "tensor_parallel_size": 1}, DeviceMemoryError, "NRT_RESOURCE"),
        ({"instance": "trn2.48xlarge"}, DeviceError, "no on_demand price of trn2.48xlarge"),
        ({"usd_per_hour": -1.0}, SettingsError, "usd_per_hour is -1"),
        ({"replicas": 0}, SettingsError, "replicas is 0"),
        ({"replicas": 10_001}, SettingsError, "replicas is 10001: a simulation holds at most 10000"),
        ({"max_num_seqs": 0}, SettingsError, "max_num_seqs is 0"),
        ({"max_concurrency": 0}, SettingsError, "max_concurrency is 0"),
        ({"max_num_batched_tokens": 7}, SettingsError, "max_num_batched_tokens is 7.* max_num_seqs 8"),
        ({"max_model_len": 200_000}, SettingsError, "max_model_len is 200000: this model takes 131072"),
        ({"max_model_len": 1}, SettingsError, "max_model_len is 1"),
        ({"num_blocks": 10**9}, SettingsError, "num_blocks is 1000000000: this deployment holds 2 to"),
        ({"decode_buckets": (2048,)}, SettingsError, "decode_buckets are .* max_model_len 1024"),
        ({"device_memory_utilization": 0.0}, SettingsError, "device_memory_utilization is 0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        run_simulation(replace(BASE, **change))


@given(st.dictionaries(st.integers(0, 10**6), st.integers(1, 50), min_size=1, max_size=20))
def test_counted_percentiles_are_those_of_the_values_written_out(counts: dict[int, int]) -> None:
    plain = Spread.of(np.repeat(np.array(list(counts), dtype=np.float64), list(counts.values())))
    counted = Spread.of_counts(counts, 1.0)
    for field in ("mean", "median", "std", "p90", "p95", "p99"):
        assert getattr(counted, field) == pytest.approx(getattr(plain, field), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_serves_all_and_conserves_cost(stack: StackName) -> None:
    report = run_simulation(replace(BASE, stack=stack))
    assert report.completed == len(BASE.workload)
    assert report.total_output_tokens == int(BASE.workload.output_len.sum())
    assert report.cost.conservation_error < 1e-9


def test_the_stack_is_what_one_would_run_on_the_part() -> None:
    assert replace(BASE, stack=None).serving_stack.name == "nxdi-vllm"
    assert replace(BASE, stack=None, instance="trn2.48xlarge").serving_stack.name == "vllm-neuron"
