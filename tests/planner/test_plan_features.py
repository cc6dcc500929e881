"""Options of a step: draft models, adapters, and models of every kind at the default options."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from neuronserve import cli
from neuronserve.planner.emit.deployment import deployment_of
from neuronserve.planner.model_names import resolve_decoder
from neuronserve.planner.plan.check import simulation_of
from neuronserve.planner.plan.memory import Beside, Memory
from neuronserve.planner.plan.options import Buckets, PlanOptions
from neuronserve.planner.plan.queueing import Replica
from neuronserve.planner.plan.report import Candidate
from neuronserve.planner.plan.search import plan
from neuronserve.server.cost.pipeline import PipelineModel
from neuronserve.server.cost.speculation import Speculation
from neuronserve.server.cost.work import Runtime, StepWork
from neuronserve.server.device.catalog import instance
from neuronserve.server.errors import DeviceError, SettingsError
from neuronserve.server.placement.core_share import core_lora_weights, lora_bytes

TUTORIAL = PlanOptions(  # aws-neuron-sdk, trn2-llama3.3-70b-tutorial.rst: one slot, 10,000 tokens in, 1,500 out
    *("llama-3.3-70b", 10_000, 1_500, 0.005),
    devices=("trn2.48xlarge",),
    tensor_parallel_sizes=(64,),
    dtypes=("bfloat16",),
    max_batch=1,
    max_model_len=12_800,
)
DRAFTED = replace(TUTORIAL, speculative_model="llama-3.2-1b", num_speculative_tokens=6, acceptance_rate=0.9)
ADAPTED = replace(TUTORIAL, max_loras=4)
EAGLE3 = replace(TUTORIAL, speculative_method="eagle3", num_speculative_tokens=3, acceptance_rate=0.8)
FP8_CACHE = replace(TUTORIAL, kv_cache_dtype="fp8")


def only(options: PlanOptions) -> Candidate:
    [row] = plan(options).candidates
    return row


# -- speculative decoding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "acceptance", "expected"), [(1, 0.5, 1.5), (3, 0.0, 1.0), (6, 1.0, 7.0), (6, 0.9, 5.217031)]
)
def test_tokens_of_a_step_are_the_guesses_that_hold_and_one(
    num_tokens: int, acceptance: float, expected: float
) -> None:
    assert Speculation(num_tokens, acceptance).tokens_per_step == pytest.approx(expected)


def test_a_step_checks_all_guesses_and_gives_several_tokens() -> None:
    plain, drafted = only(TUTORIAL), only(DRAFTED)
    assert drafted.decode_s > plain.decode_s
    assert drafted.tpot_s == pytest.approx(drafted.decode_s / drafted.tokens_per_step, rel=0.02)
    assert drafted.tpot_s < 0.5 * plain.tpot_s
    assert drafted.saturated_output_tokens_s > 2 * plain.saturated_output_tokens_s
    assert drafted.prefill_s > plain.prefill_s
    assert drafted.known.provenance == "formula"
    assert "speculative decoding" in drafted.extrapolated


def test_guesses_from_the_text_need_no_memory_and_no_time_of_their_own() -> None:
    lookup = replace(TUTORIAL, speculative_method="ngram", num_speculative_tokens=6, acceptance_rate=0.9)
    plain, found, drafted = only(TUTORIAL), only(lookup), only(DRAFTED)
    assert plain.decode_s < found.decode_s < drafted.decode_s
    assert found.prefill_s == plain.prefill_s < drafted.prefill_s
    assert found.tokens_per_step == drafted.tokens_per_step


def test_the_published_speed_lies_between_guesses_that_often_and_always_hold() -> None:
    """19.6 ms a token without and 5.3 ms with the draft: the acceptance rate is not published."""
    often, always = (only(replace(DRAFTED, acceptance_rate=rate)).tpot_s for rate in (0.8, 1.0))
    assert always < 5.3e-3 < often


def test_a_head_guesses_faster_than_a_model() -> None:
    plain, head, model = only(TUTORIAL), only(EAGLE3), only(replace(DRAFTED, num_speculative_tokens=3))
    assert plain.decode_s < head.decode_s < model.decode_s
    assert plain.memory_bytes < head.memory_bytes


def test_the_band_of_speculation_is_wider_than_that_of_the_step() -> None:
    plain, head = only(TUTORIAL), only(EAGLE3)
    assert head.known.decode.low < plain.known.decode.low
    assert head.known.decode.high > plain.known.decode.high
    assert head.known.decode.nearest.endswith("with and without eagle3")


def test_rows_on_a_chip_without_published_speculation_are_less_sure() -> None:
    asked = replace(
        EAGLE3, model="llama-3.1-8b", tensor_parallel_sizes=(8,), devices=("trn1.32xlarge", "inf2.48xlarge")
    )
    known = {row.device: row.known.decode for row in plan(asked).candidates}
    assert known["trn1.32xlarge"].high > known["inf2.48xlarge"].high
    assert known["trn1.32xlarge"].low < known["inf2.48xlarge"].low


def test_an_8_bit_cache_takes_half_the_memory_and_may_save_no_time() -> None:
    plain, narrow = (
        only(replace(options, model="llama-3.1-8b", devices=("inf2.48xlarge",), tensor_parallel_sizes=(8,)))
        for options in (TUTORIAL, FP8_CACHE)
    )
    cache = 12_800 * 32 * 2 * 128 * 2  # positions, layers, K and V of the one KV head of a core, bytes
    assert plain.memory_bytes - narrow.memory_bytes == pytest.approx(cache / 2, rel=0.05)
    assert narrow.tpot_s < plain.tpot_s
    assert narrow.known.tpot_s[1] == pytest.approx(plain.known.tpot_s[1])
    assert narrow.known.provenance == "formula"


def test_the_command_line_prices_a_head(tmp_path: Path) -> None:
    report = tmp_path / "plan.json"
    words = "plan llama-3.1-8b --input-len 500 --output-len 100 --device trn2.48xlarge --tensor-parallel-size 8"
    more = "--speculative-method eagle3 --num-speculative-tokens 3 --acceptance-rate 0.81 --quantization bfloat16"
    assert cli.main([*words.split(), *more.split(), "--json", str(report)]) == 0
    row = json.loads(report.read_text())["candidates"][0]
    assert row["tokens_per_step"] == pytest.approx(1 + 0.81 + 0.81**2 + 0.81**3)
    assert row["known"]["decode_factor"]["p10"] < 0.7
    assert row["known"]["decode_factor"]["p90"] > 1.5
    assert "priced by formula, with the band of published pairs" in row["extrapolated"]


def test_guesses_that_never_hold_cost_more_than_none() -> None:
    assert only(replace(DRAFTED, acceptance_rate=0.0)).tpot_s > only(TUTORIAL).tpot_s


def test_the_draft_needs_memory_for_its_weights_and_its_cache() -> None:
    model, draft = resolve_decoder("llama-3.3-70b"), resolve_decoder("llama-3.2-1b")
    buckets = Buckets(prefill=4096, decode=8192)
    alone, both = Memory(model, buckets), Memory(model, buckets, Beside(draft))
    added = both.needed_bytes(8, "bfloat16", 4) - alone.needed_bytes(8, "bfloat16", 4)
    weights = 2 * 1.5e9 / 8  # tied: the core has embedding and output layer
    cache = 4 * 8192 * 16 * 2 * 64 * 2  # slots, positions, layers, K and V of the one KV head of a core, bytes
    assert added == pytest.approx(weights + cache, rel=0.03)


def test_a_replica_takes_fewer_steps_of_the_same_length() -> None:
    plain, drafted = Replica(0.1, 0.02, 4, 201), Replica(0.1, 0.02, 4, 201, tokens_per_step=4.0)
    assert drafted.steps == 50
    assert drafted.at(0).tpot_s == pytest.approx(0.005)
    assert drafted.saturation > plain.saturation
    assert drafted.at(0.5).tpot_s < plain.at(0.5).tpot_s / 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"acceptance_rate": None}, "speculative decoding needs all of them"),
        ({"speculative_model": None}, "speculative decoding needs all of them"),
        ({"speculative_method": "eagle3"}, "speculative_model is 'llama-3.2-1b': eagle3 has a head of the sizes of"),
        (
            {"speculative_method": "eagle3", "speculative_model": None, "acceptance_rate": None},
            "num_speculative_tokens, acceptance_rate: speculative decoding needs all of them",
        ),
        (
            {"speculative_method": "medusa"},
            "speculative_method is 'medusa': one of draft_model, eagle3, p_eagle, ngram",
        ),
        ({"speculative_method": "ngram"}, "speculative_model is 'llama-3.2-1b': ngram has no model"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype is 'int8': one of bfloat16, fp8"),
        ({"acceptance_rate": 1.5}, "acceptance_rate is 1.5: from 0 to 1"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0: from 1 to 64"),
        ({"max_loras": -1}, "max_loras is -1: from 0 to"),
        ({"max_lora_rank": 0}, "max_lora_rank is 0: from 1 to"),
    ],
)
def test_options_that_make_no_sense_are_refused(change: dict[str, float | None], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        replace(DRAFTED, **change)  # type: ignore[arg-type]


def test_a_draft_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"speculative_model llama-2-7b has 32000 tokens, llama-3.3-70b 128256"):
        plan(replace(DRAFTED, speculative_model="llama-2-7b"))


def test_more_stages_than_a_draft_has_layers_cannot_be_had() -> None:
    report = plan(replace(DRAFTED, tensor_parallel_sizes=(2, 64), pipeline_parallel_sizes=(1, 20)))
    assert "20 stages are more than the 16 layers of LlamaForCausalLM" in {entry.reason for entry in report.excluded}


@pytest.mark.parametrize("options", [DRAFTED, ADAPTED, EAGLE3, FP8_CACHE])
def test_what_is_planned_so_is_neither_simulated_nor_written(options: PlanOptions) -> None:
    report = plan(options)
    [feature] = options.features
    with pytest.raises(DeviceError, match=f"a simulation has no {feature}"):
        simulation_of(report, report.candidates[0])
    with pytest.raises(SettingsError, match=f"nothing that is written has {feature}"):
        deployment_of(report, report.candidates[0])


def test_4_bit_weights_are_planned_where_they_are_asked_for_and_not_written() -> None:
    asked = PlanOptions("llama-1b", 500, 100, 1.0, devices=("inf2.xlarge",), dtypes=("bfloat16", "int4"), max_batch=1)
    report = plan(asked)
    row = next(each for each in report.candidates if each.dtype == "int4")
    wide = next(each for each in report.candidates if (each.dtype, each.tp) == ("bfloat16", row.tp))
    assert "4-bit weights" in row.extrapolated
    assert row.memory_bytes < wide.memory_bytes
    with pytest.raises(SettingsError, match="nothing that is written takes int4 weights"):
        deployment_of(report, row)


# -- adapters ------------------------------------------------------------------------------------------------------


def test_an_adapter_of_a_published_size() -> None:
    """Feature guide of NxD Inference: rank 16 on Llama-3.3-70B takes about 830 MB, which is 4 bytes for each weight."""
    assert 4 * core_lora_weights(resolve_decoder("llama-3.3-70b"), 1, 16) == pytest.approx(830e6, rel=0.01)


def test_stored_adapters_are_divided_and_those_in_use_are_not_wholly() -> None:
    model = resolve_decoder("llama-3.1-8b")
    whole, core = (core_lora_weights(model, tp, 8) for tp in (1, 8))
    assert whole / 8 < core < whole
    assert lora_bytes(model, 8, 8, stored=10, slots=0) == pytest.approx(10 * 2 * whole / 8)
    assert lora_bytes(model, 8, 8, stored=0, slots=4) == 4 * 2 * core


def test_each_slot_reads_an_adapter_in_each_step() -> None:
    model, part = resolve_decoder("llama-3.1-8b"), instance("inf2.48xlarge")
    plain, adapted = (StepWork(model, part, 8, Runtime(lora_rank=rank)) for rank in (0, 16))
    for batch in (1, 16):
        read = adapted.decode(batch, 2048)["weights"] - plain.decode(batch, 2048)["weights"]
        assert read == pytest.approx(batch * 2 * core_lora_weights(model, 8, 16) * adapted.byte_s)
    slow, fast = (PipelineModel.of(model, part, 8, 1, Runtime(lora_rank=rank)) for rank in (256, 0))
    assert slow.decode(16, 2048).elapsed_s > fast.decode(16, 2048).elapsed_s
    assert slow.prefill(1024, 1024).elapsed_s > fast.prefill(1024, 1024).elapsed_s


def test_rows_with_adapters_take_memory_and_are_marked() -> None:
    plain, adapted = only(TUTORIAL), only(ADAPTED)
    model = resolve_decoder("llama-3.3-70b")
    assert adapted.memory_bytes - plain.memory_bytes == lora_bytes(model, 64, 16, stored=4, slots=1)
    assert adapted.known.provenance == "formula"
    assert "LoRA" in adapted.extrapolated
    assert adapted.known.decode.high > plain.known.decode.high


# -- models of every kind ------------------------------------------------------------------------------------------

PUBLIC = (
    *("llama-3.1-8b", "llama-3.1-405b", "llama-3.2-1b", "qwen2.5-7b", "qwen3-32b", "gemma-3-27b", "phi-4"),
    *("qwen3-30b-a3b", "mixtral-8x7b", "dbrx", "gpt-oss-20b", "gpt-oss-120b", "qwen3-235b-a22b"),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
)


@pytest.mark.parametrize("model", PUBLIC)
def test_public_models_get_rows_with_sane_figures(model: str) -> None:
    report = plan(PlanOptions(model, 1000, 100, devices=("inf2.48xlarge", "trn2.48xlarge"), max_batch=8))
    assert report.candidates
    for row in report.candidates:
        assert 0.5e-3 < row.tpot_s < 2
        assert 1e-3 < row.ttft_s < 60
        assert 0 < row.saturated_output_tokens_s < 1e5
        assert row.memory_bytes <= row.memory_budget_bytes
        assert row.known.provenance in {"measured", "interpolated", "formula"}


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"])
def test_a_mixture_of_experts_is_never_faster_than_what_it_reads_for_one_token(model: str) -> None:
    report = plan(PlanOptions(model, 1000, 100, devices=("trn2.48xlarge",), dtypes=("bfloat16",), max_batch=1))
    part = instance("trn2.48xlarge")
    for row in report.candidates:
        work = StepWork(resolve_decoder(model), part, row.tp, Runtime())
        assert row.decode_s > work.weights_read(1) * 2 * work.byte_s
