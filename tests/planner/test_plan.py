"""`plan`: figures computed by hand from two step times, the order, refusals, and scaling."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neuronserve.planner.model_names import NAMED
from neuronserve.planner.plan.options import Buckets, PlanOptions
from neuronserve.planner.plan.queueing import MAX_LOAD
from neuronserve.planner.plan.report import Candidate, PlanReport, TokenPrice
from neuronserve.planner.plan.search import plan, plan_model
from neuronserve.planner.simulate.load_bands import load_band
from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.stacks import STACKS
from neuronserve.server.cost.work import Runtime
from neuronserve.server.device.catalog import INSTANCES, Instance, instance
from neuronserve.server.device.prices import PRICE_BASES, Price, Prices
from neuronserve.server.errors import DeviceError, DeviceMemoryError, SettingsError
from neuronserve.server.models.sizes import DecoderSizes

XLARGE = instance("inf2.xlarge")
CHAT = PlanOptions("llama-8b", input_tokens=1000, output_tokens=201, request_rate=2.0, ttft_s=1.0, tpot_s=0.05)
SMALL = PlanOptions("llama-1b", 500, 101, 3.0, devices=("inf2.xlarge",), dtypes=("bfloat16",), max_batch=16)
IDEAL = replace(SMALL, stack="ideal")  # no host, prompts beside decodes: figures can be worked by hand


def find(report: PlanReport, device: str, tp: int, dtype: str, batch: int) -> Candidate:
    (found,) = [c for c in report.candidates if (c.device, c.tp, c.dtype, c.batch) == (device, tp, dtype, batch)]
    return found


@pytest.fixture(scope="module")
def chat() -> PlanReport:
    return plan(CHAT)


def test_throughput_count_and_prices_follow_from_the_two_step_times() -> None:
    report = plan(replace(IDEAL, request_rate=30.0))
    model = CostModel.of(NAMED["llama-1b"], XLARGE, 1, Runtime("bfloat16"))
    prefill, decode = model.prefill(500, 512).elapsed_s, model.decode(4, 1024).elapsed_s
    found = find(report, "inf2.xlarge", 1, "bfloat16", 4)
    saturation = 4 / (4 * prefill + 101 * decode)  # of a replica, others decode beside the prompt; there are 2
    assert found.sized_at == 0.9  # no model of this size was measured
    slow = 4 / (4 * prefill * found.known.prefill.high + 101 * decode * found.known.decode.high)
    count = ceil(30 / (2 * MAX_LOAD * slow))
    assert (found.dp, found.instances) == (2, count)
    assert (found.prefill_s, found.decode_s) == (prefill, decode)
    assert found.saturated_output_tokens_s == pytest.approx(2 * saturation * 101)
    assert found.output_tokens_s == pytest.approx(30 * 101 / count)
    assert found.load == pytest.approx(30 / (2 * count * saturation))
    price = found.at_rate["on_demand"]
    assert price is not None
    assert price.hourly_usd == pytest.approx(count * 0.7582)
    dollars_a_request = count * 0.7582 / 3600 / 30
    assert price.total_usd == pytest.approx(dollars_a_request / 601 * 1e6)
    assert price.input_usd == pytest.approx(dollars_a_request * prefill * saturation / 500 * 1e6)
    full = TokenPrice.of(0.328, 2 * MAX_LOAD * slow, prefill * saturation, report.demand)
    assert found.at_capacity["reserved"] is not None
    assert found.at_capacity["reserved"].total_usd == pytest.approx(full.total_usd)


def test_input_and_output_dollars_add_up_to_what_is_paid(chat: PlanReport) -> None:
    for candidate in chat.candidates:
        price = candidate.at_rate["on_demand"]
        if price is not None:
            hour = 3600 * CHAT.request_rate * (1000 * price.input_usd + 201 * price.output_usd) / 1e6
            assert hour == pytest.approx(price.hourly_usd, rel=1e-9)


def test_what_meets_the_limits_comes_first_then_what_runs_and_the_cheapest(chat: PlanReport) -> None:
    assert [c.meets_slo for c in chat.candidates] == sorted((c.meets_slo for c in chat.candidates), reverse=True)
    costs = [(c.running.rank, hourly(c)) for c in chat.candidates if c.meets_slo and c.at_rate["on_demand"]]
    assert len(costs) > 20
    assert costs == sorted(costs)
    assert chat.best is chat.candidates[0]


def test_the_cheaper_row_comes_first_and_of_equals_the_surer_one() -> None:
    report = plan(replace(CHAT, tensor_parallel_sizes=(8,), devices=("inf2.48xlarge",), max_batch=1))
    known = report.candidates[0].known
    row = replace(report.candidates[0], known=replace(known, instances=(1, 1)))
    cheap = replace(row, at_rate=dict.fromkeys(row.at_rate, TokenPrice(1.0, 1.0, 1.0, 1.0)), instances=1)
    dear = replace(cheap, at_rate=dict.fromkeys(row.at_rate, TokenPrice(2.0, 2.0, 2.0, 2.0)))
    doubtful = replace(cheap, known=replace(cheap.known, instances=(1, 3)))
    endless = replace(cheap, known=replace(cheap.known, instances=(1, None)))
    ordered = sorted((endless, doubtful, dear, cheap), key=lambda one: one.order("on_demand"))
    assert ordered == [cheap, doubtful, endless, dear]


def test_a_row_without_measurements_is_sized_at_the_slow_end_of_its_band_and_8_bit_weights_always_are() -> None:
    rows = plan(replace(CHAT, devices=("inf2.48xlarge", "trn1.32xlarge"), request_rate=100.0)).candidates
    assert {c.sized_at for c in rows if not c.extrapolated and c.dtype == "bfloat16"} == {0.5}
    unknown = [c for c in rows if c.extrapolated or c.dtype != "bfloat16"]
    assert {c.sized_at for c in unknown} == {0.9}
    assert all(c.instances == c.known.instances[1] for c in unknown if c.meets_slo)
    assert any("at P90 of the step times" in miss for c in unknown for miss in c.misses)


def test_more_confidence_never_buys_less() -> None:
    costs = []
    for confidence in (0.5, 0.7, 0.9, 0.95):
        report = plan(replace(CHAT, confidence=confidence, devices=("inf2.48xlarge",), request_rate=60.0))
        assert report.best is not None
        assert report.best.sized_at >= confidence
        costs.append(hourly(report.best))
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]


def test_an_instance_as_full_as_the_limits_allow_never_costs_more_than_one_at_the_rate(chat: PlanReport) -> None:
    for row in chat.candidates:
        at_rate, full = row.at_rate["on_demand"], row.at_capacity["on_demand"]
        assert at_rate is None or full is None or full.total_usd <= at_rate.total_usd * (1 + 1e-9)


def test_every_row_that_meets_the_limits_holds_them_and_every_other_names_the_limit(chat: PlanReport) -> None:
    for candidate in chat.candidates:
        if candidate.meets_slo:
            assert candidate.ttft_s <= 1.0
            assert candidate.tpot_s <= 0.05
        else:
            assert all("the limit is" in miss for miss in candidate.misses)
            assert candidate.ttft_s > 1.0 or candidate.tpot_s > 0.05 or candidate.sized_at > 0.5


def test_batches_are_powers_of_two_as_long_as_memory_lasts(chat: PlanReport) -> None:
    batches = sorted(c.batch for c in chat.candidates if (c.device, c.tp, c.dtype) == ("inf2.xlarge", 2, "bfloat16"))
    assert batches == [2**n for n in range(len(batches))]
    largest = find(chat, "inf2.xlarge", 2, "bfloat16", batches[-1])
    cache = (
        2 * 32 * 4 * 128 * 2 * 2048 * batches[-1]
    )  # K and V, layers, KV heads per core, dimensions, bytes, positions
    assert largest.memory_bytes <= largest.memory_budget_bytes < largest.memory_bytes + cache


def test_dp_fills_the_instance_with_whole_groups(chat: PlanReport) -> None:
    assert find(chat, "inf2.48xlarge", 8, "int8", 1).dp == 3
    assert find(chat, "inf2.24xlarge", 8, "int8", 1).dp == 1


def test_every_instance_is_answered_for(chat: PlanReport) -> None:
    told = {c.device for c in chat.candidates} | {e.device for e in chat.excluded}
    assert told == {part.name for part in INSTANCES}


def test_what_does_not_fit_says_how_much_is_lacking(chat: PlanReport) -> None:
    (entry,) = [e for e in chat.excluded if (e.device, e.tp, e.dtype) == ("inf2.xlarge", 1, "bfloat16")]
    assert entry.lacks_bytes is not None
    assert f"one slot of 2048 positions lacks {entry.lacks_bytes / 2**30:.2f} GiB on each core" in entry.reason


def test_a_part_without_8_bit_floats_is_not_planned_with_them(chat: PlanReport) -> None:
    assert not [c for c in chat.candidates if c.device.startswith("inf1") and c.dtype == "fp8"]
    assert any(e.reason == "Inferentia1 has no 8-bit float type" for e in chat.excluded)


def test_only_parts_without_measurements_are_extrapolated_and_say_why() -> None:
    report = plan(replace(SMALL, model="llama-8b", devices=(), tensor_parallel_sizes=(8,)))
    by_part = {c.device.split(".")[0]: c for c in report.candidates}
    assert by_part["inf2"].extrapolated == ""
    assert "no decode of an LLM on Trainium3 is among the measurements" in by_part["trn3-gen1"].extrapolated
    for candidate in report.candidates:
        assert bool(candidate.extrapolated) >= (candidate.known.provenance == "formula")


def test_a_model_smaller_than_all_measured_ones_is_extrapolated_on_every_part() -> None:
    for candidate in plan(SMALL).candidates:
        assert "B parameters: measured are 6.74 to" in candidate.extrapolated
        assert candidate.known.provenance == "formula"


def test_a_measured_configuration_names_its_measurements() -> None:
    report = plan(replace(CHAT, devices=("inf2.48xlarge",), tensor_parallel_sizes=(8,), dtypes=("bfloat16",)))
    measured = [c.known.decode for c in report.candidates if c.known.decode.provenance == "measured"]
    assert measured
    for decode in measured:
        assert decode.num_rows > 0
        assert "TP8 batch" in decode.nearest


def test_figures_lie_within_their_bands(chat: PlanReport) -> None:
    for candidate in chat.candidates:
        for value, (low, high) in (
            (candidate.ttft_s, candidate.known.ttft_s),
            (candidate.tpot_s, candidate.known.tpot_s),
            (candidate.instances, candidate.known.instances if candidate.meets_slo else (None, None)),
        ):
            assert low is None or low <= value * (1 + 1e-9)
            assert high is None or value <= high * (1 + 1e-9)


def test_a_limit_that_more_requests_keep_is_the_tighter_one() -> None:
    changes = (replace(SMALL, ttft_s=0.4), replace(SMALL, ttft_p95_s=0.4), replace(SMALL, ttft_p99_s=0.4))
    mean, p95, p99 = (find(plan(options), "inf2.xlarge", 2, "bfloat16", 8) for options in changes)
    assert p95.quantiles_s["TTFT p95"] <= 0.4
    assert p99.quantiles_s["TTFT p99"] <= 0.4
    assert mean.slo_request_rate > p95.slo_request_rate > p99.slo_request_rate > 0


def test_a_budget_turns_away_what_costs_more() -> None:
    report = plan(replace(CHAT, usd_per_hour=10.0))
    within = [c for c in report.candidates if c.meets_slo]
    assert within
    assert all((price := c.at_rate["on_demand"]) is not None and price.hourly_usd <= 10 for c in within)
    unpriced = next(c for c in report.candidates if c.device == "trn2.48xlarge")
    assert "no on_demand price is known: the limit is $10.00 an hour" in unpriced.misses
    assert any(f"${hourly(c):.2f} an hour: the limit is $10.00" in c.misses for c in report.candidates if c.misses)


def test_an_unknown_price_gives_no_figure_and_says_so(chat: PlanReport) -> None:
    trn2 = [c for c in chat.candidates if c.device == "trn2.48xlarge"]
    assert trn2
    assert all(c.at_rate == dict.fromkeys(PRICE_BASES) == c.at_capacity for c in trn2)
    missing = "trn2.48xlarge: no on_demand and no reserved price in us-east-1 is known, nor a cost by it"
    assert f"{missing}; on_demand is known in us-east-2" in chat.notes


def test_energy_is_absent_and_said_to_be(chat: PlanReport) -> None:
    answer = chat.as_json()
    assert {candidate["tokens_per_joule"] for candidate in answer["candidates"]} == {None}
    assert any("no power figure is published" in note for note in answer["notes"])


def test_the_report_is_json_without_infinities(chat: PlanReport) -> None:
    text = json.dumps(plan(replace(SMALL, ttft_s=1e-6)).as_json(), allow_nan=False)
    assert json.loads(text)["candidates"][0]["meets_slo"] is False
    answer = json.loads(json.dumps(chat.as_json(), allow_nan=False))
    assert answer["buckets"] == {"prefill": 2048, "decode": 2048}
    assert len(answer["candidates"]) == len(chat.candidates)


def test_reserved_prices_can_decide_the_order() -> None:
    report = plan(replace(CHAT, price_basis="reserved"))
    held = [c for c in report.candidates if c.meets_slo]
    prices = [(c.running.rank, price.hourly_usd) for c in held if (price := c.at_rate["reserved"])]
    assert prices == sorted(prices)
    assert all(c.at_rate["reserved"] is None for c in report.candidates if c.device == "trn1n.32xlarge")


def test_limits_that_nothing_holds_are_said_in_the_notes() -> None:
    report = plan(replace(SMALL, tpot_s=1e-4))
    assert report.best is None
    assert "no configuration holds the limits; their rows say which they miss" in report.notes
    assert "TPOT is" in report.candidates[0].misses[0]
    assert "without any load: the limit is 0.1 ms" in report.candidates[0].misses[0]


def test_a_single_output_token_has_no_time_per_token() -> None:
    best = plan(replace(SMALL, output_tokens=1)).candidates[0]
    assert best.tpot_s == 0
    price = best.at_rate["on_demand"]
    assert price is not None
    assert price.output_usd == pytest.approx(0, abs=1e-12)


def test_buckets_are_powers_of_two_that_end_at_the_compiled_length() -> None:
    model, chat = NAMED["llama-8b"], replace(CHAT, stack="vllm-neuron")
    assert Buckets.of(replace(chat, input_tokens=3, output_tokens=4), model) == Buckets(128, 128)
    assert Buckets.of(replace(chat, input_tokens=4000, output_tokens=4000), model) == Buckets(8192, 8192)
    assert Buckets.of(replace(chat, input_tokens=1100, max_model_len=1500), model) == Buckets(1500, 1500)
    assert Buckets.of(replace(chat, stack="tgi"), model) == Buckets(2048, 2048)


def test_a_stack_with_buckets_pays_for_that_of_the_longest_context_and_not_for_the_full_length() -> None:
    wide = replace(SMALL, input_tokens=100, output_tokens=101, max_model_len=2048)
    full, bucketed = (plan(replace(wide, stack=stack)) for stack in ("tgi", "nxd-static"))
    for batch in (1, 4, 16):
        one, other = (find(report, "inf2.xlarge", 2, "bfloat16", batch) for report in (full, bucketed))
        assert other.tpot_s < one.tpot_s
        assert other.saturated_output_tokens_s > one.saturated_output_tokens_s


def test_each_part_has_the_stack_of_today_unless_one_is_named(chat: PlanReport) -> None:
    stacks = {c.device.split(".")[0]: c.stack for c in chat.candidates}
    assert (stacks["inf2"], stacks["trn1"], stacks["trn2"]) == ("nxdi-vllm", "nxdi-vllm", "vllm-neuron")
    assert {c.stack for c in plan(replace(CHAT, stack="tgi")).candidates} == {"tgi"}


def test_a_stack_that_pads_prompts_to_the_compiled_length_is_slower() -> None:
    bucketed, padded = (plan(replace(SMALL, stack=stack)) for stack in ("nxdi-vllm", "optimum-vllm"))
    for batch in (1, 16):
        fast, slow = (find(report, "inf2.xlarge", 2, "bfloat16", batch) for report in (bucketed, padded))
        assert slow.prefill_s > fast.prefill_s
        assert slow.saturated_output_tokens_s < fast.saturated_output_tokens_s


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"request_rate": -1.0}, "request_rate is -1.0: from 1e-06 to 1e"),
        ({"request_rate": float("nan")}, "request_rate is nan"),
        ({"input_tokens": 0}, "input_tokens is 0: from 1 to"),
        ({"output_tokens": -5}, "output_tokens is -5"),
        ({"ttft_s": 0.0}, "ttft_s is 0.0: a finite number above 0"),
        ({"tpot_s": float("inf")}, "tpot_s is inf"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"device_memory_utilization": 1.5}, "device_memory_utilization is 1.5"),
        ({"dtypes": ("int3",)}, "dtypes is int3: some of bfloat16, int8, fp8, int4, mxfp4"),
        ({"dtypes": ()}, "dtypes is empty"),
        ({"stack": "static"}, "stack is 'static': one of nxdi-vllm"),
        ({"ttft_p99_s": 0.0}, "ttft_p99_s is 0.0: a finite number above 0"),
        ({"usd_per_hour": -1.0}, "usd_per_hour is -1.0: a finite number above 0"),
        ({"confidence": 0.4}, "confidence is 0.4: from 0.5 to 0.95 is possible"),
        ({"grid_g_per_kwh": 380.0}, "grid_g_per_kwh is 380.0: it needs chip_watts, which is not given"),
        (
            {"price_basis": "retail"},
            "price_basis is 'retail': one of on_demand, reserved_1y, reserved, capacity_block, spot",
        ),
        ({"max_model_len": 1200}, "max_model_len is 1200: input_tokens + output_tokens is 1201"),
    ],
)
def test_options_without_an_answer_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        replace(CHAT, **change)  # type: ignore[arg-type]
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"devices": ("inf2.48xlarg",)}, DeviceError, "there is no device 'inf2.48xlarg'. Did you mean inf2.48xlarge"),
        (
            {"devices": ("inf2.xlarge",), "tensor_parallel_sizes": (8,)},
            DeviceError,
            "tensor_parallel_size is 8: no considered instance allows it: inf2.xlarge has 2 NeuronCores and allows 1, ",
        ),
        ({"tensor_parallel_sizes": (7,)}, DeviceError, "tensor_parallel_size is 7"),
        ({"input_tokens": 8000}, SettingsError, "input_tokens + output_tokens is 8201: llama-8b has 8192 positions"),
        ({"max_model_len": 16384}, SettingsError, "max_model_len is 16384: llama-8b has 8192 positions"),
        ({"model": "lama-8b"}, SettingsError, "Did you mean llama-8b"),
        ({"devices": ("inf1.xlarge",), "dtypes": ("fp8",)}, DeviceError, "Inferentia1 has no 8-bit float type"),
        (
            {"devices": ("inf2.xlarge",), "dtypes": ("mxfp4",)},
            DeviceError,
            "Inferentia2 of inf2.xlarge does not have the type",
        ),
    ],
)
def test_impossible_questions_name_the_value_and_what_is_possible(
    change: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as refusal:
        plan(replace(CHAT, **change))  # type: ignore[arg-type]
    assert said in str(refusal.value)


def test_a_degree_that_some_parts_allow_is_planned_there_and_explained_elsewhere() -> None:
    report = plan(replace(CHAT, tensor_parallel_sizes=(24,)))
    assert {c.device for c in report.candidates if c.running.runs != "no"} == {"inf2.48xlarge"}
    assert any(e.device == "inf2.xlarge" and "allows 1, 2" in e.reason for e in report.excluded)


def test_a_model_larger_than_any_instance_is_refused_with_the_nearest() -> None:
    huge = DecoderSizes(1000, 16_384, 1 << 22, 64, 8, 128, 32_000).spec("LlamaForCausalLM", 131_072)
    with pytest.raises(DeviceMemoryError) as refusal:
        plan_model(huge, CHAT, INSTANCES)
    assert "fits on no considered instance. Nearest is 16 x trn3-gen1 with tensor_parallel_size 64" in str(
        refusal.value
    )
    assert "GiB on each core" in str(refusal.value)


# -- how answers scale ---------------------------------------------------------------------------------------------

FEW = settings(max_examples=20)
CENTS = st.integers(1, 10_000).map(lambda cents: cents / 100)


def priced(name: str, usd: float) -> Instance:
    return replace(XLARGE, name=name, prices=Prices("us-east-1", on_demand=Price(usd, "a test", "2026-01-01")))


def order_of(report: PlanReport, device: str) -> int:
    return next(i for i, c in enumerate(report.candidates) if c.device == device)


@FEW
@given(CENTS, CENTS, st.floats(0.1, 200))
def test_the_cheaper_of_two_equal_parts_never_ranks_worse(one: float, other: float, rate: float) -> None:
    parts = (priced("a", one), priced("b", other))
    report = plan_model(NAMED["llama-1b"], replace(SMALL, devices=(), request_rate=rate), parts)
    if one != other:
        assert (order_of(report, "a") < order_of(report, "b")) == (one < other)


@FEW
@given(st.floats(0.05, 5), st.floats(0.005, 0.1), st.floats(0.2, 1), st.floats(0.2, 1), st.floats(0.1, 200))
@example(ttft_s=1.0, tpot_s=0.0078125, ttft_share=1.0, tpot_share=0.875, rate=2.0)  # one row is cheaper, not surely
def test_tighter_limits_never_make_a_cheaper_plan(
    ttft_s: float, tpot_s: float, ttft_share: float, tpot_share: float, rate: float
) -> None:
    loose = plan(replace(SMALL, ttft_s=ttft_s, tpot_s=tpot_s, request_rate=rate)).best
    tight = plan(replace(SMALL, ttft_s=ttft_s * ttft_share, tpot_s=tpot_s * tpot_share, request_rate=rate)).best
    if tight is not None:
        assert loose is not None
        assert hourly(loose) <= hourly(tight)


def hourly(candidate: Candidate) -> float:
    price = candidate.at_rate["on_demand"]
    assert price is not None
    return price.hourly_usd


def configurations(part: Instance, options: PlanOptions) -> set[tuple[int, str, int]]:
    try:
        report = plan_model(NAMED["llama-8b"], options, (part,))
    except DeviceMemoryError:
        return set()
    return {(c.tp, c.dtype, c.batch) for c in report.candidates}


@FEW
@given(st.integers(4, 96), st.integers(0, 64))
def test_more_memory_never_fits_less(gib: int, more: int) -> None:
    small = replace(XLARGE, chip=replace(XLARGE.chip, memory_gib=gib))
    large = replace(XLARGE, chip=replace(XLARGE.chip, memory_gib=gib + more))
    assert configurations(small, CHAT) <= configurations(large, CHAT)


@FEW
@given(st.floats(0.1, 100), st.floats(1, 10))
def test_more_requests_never_cost_less(rate: float, times: float) -> None:
    few, many = (plan(replace(SMALL, request_rate=r, tpot_s=0.03)).best for r in (rate, rate * times))
    assert few is not None
    assert many is not None
    assert hourly(few) <= hourly(many)


def test_the_published_vllm_server_is_not_promised_twice_its_throughput() -> None:
    """Llama-3.1-8B on inf2.48xlarge, 3 x TP8 x 32 slots of 4,096: 1,226 tokens/s at most, 71 ms a token at 5.33/s."""
    options = PlanOptions(
        "meta-llama/Llama-3.1-8B",
        1500,
        237,
        5.33,
        devices=("inf2.48xlarge",),
        tensor_parallel_sizes=(8,),
        max_model_len=4096,
        dtypes=("bfloat16",),
        tpot_s=0.05,
        stack="optimum-vllm",
    )
    row = next(row for row in plan(options).candidates if row.batch == 32)
    low, high = row.known.saturated_output_tokens_s
    assert low <= 1226 <= high
    assert row.instances > 1  # one would give a token in 71 ms


def test_bands_of_a_row_hold_those_of_published_load_tests(chat: PlanReport) -> None:
    row = next(row for row in chat.candidates if row.pp == 1 and row.stack == "nxdi-vllm")
    model = CostModel.of(NAMED["llama-8b"], instance(row.device), row.tp, Runtime(row.dtype))
    band = load_band("itl", model, STACKS[row.stack], row.batch, chat.buckets.decode)
    low, high = row.known.tpot_s
    assert low is not None
    assert low <= row.tpot_s * band.low * 1.001
    assert high is None or high >= row.tpot_s * band.high * 0.999
    assert row.known.saturated_output_tokens_s[0] < row.saturated_output_tokens_s
