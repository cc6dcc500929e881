"""Work behind a published figure: one test for each definition in use, and for each reason to skip a row."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.planner.calibrate.observation import (
    PARAMS_TOLERANCE,
    Observation,
    Setup,
    Unusable,
    bucket,
    mean_bucket,
    observe,
    shape_of,
    size_error,
)
from neuronserve.planner.calibrate.published import COLUMNS, OPTIONAL_LABELS, PublishedRow, parse_rows
from neuronserve.server.cost.evidence import Point
from neuronserve.server.cost.work import Runtime, StepWork
from neuronserve.server.device.catalog import instance
from neuronserve.server.errors import DeviceError
from neuronserve.server.models.public import known_model
from neuronserve.server.models.sizes import DecoderSizes
from tests.model_specs import network_of

SHAPE = DecoderSizes(32, 4096, 14336, 32, 8, 128, 128256).spec()
STATED = {
    "n_layers": "32",
    "hidden_size": "4096",
    "n_heads": "32",
    "n_kv_heads": "8",
    "head_dim": "128",
    "ffn_size": "14336",
    "vocab_size": "128256",
}
NEURON_DOCS = {
    **STATED,
    "model": "Some-8B",
    "params_b": "8.03",
    "arch": "dense",
    "weight_dtype": "bf16",
    "instance": "inf2.48xlarge",
    "framework": "Transformers NeuronX",
    "neuron_sdk": "2.18.0",
    "quality": "A",
    "arrival": "static batch",
    "tpot_stat": "P50, excl. first token",
    "use_decode_fit": "yes",
    "use_prefill_fit": "yes",
    "tp": "24",
    "batch_size": "4",
    "max_seq_len": "8192",
    "input_len": "128",
    "output_len": "8064",
    "tpot_ms": "7",
    "ttft_ms": "30",
}
OPTIMUM = NEURON_DOCS | {
    "framework": "optimum-neuron (transformers-neuronx)",
    "tpot_stat": "mean ITL",
    "tp": "8",
    "max_seq_len": "4096",
    "input_len": "256",
    "output_len": "256",
    "use_prefill_fit": "yes, coarse (0.1 s rounding)",
    "ttft_ms": "1100",
}


def row(base: dict[str, str], **changes: str) -> PublishedRow:
    cells = base | changes
    names = dict.fromkeys((*COLUMNS, *OPTIONAL_LABELS))
    (parsed,) = parse_rows([",".join(names), ",".join(f'"{cells.get(n, "")}"' for n in names)], "t.csv")
    return parsed


def both(base: dict[str, str], **changes: str) -> tuple[Observation, Observation]:
    (decode, prefill), reasons = observe(row(base, **changes))
    assert not reasons
    return decode, prefill


def work(tp: int, is_continuous: bool, sdk: int = 18) -> StepWork:
    return StepWork(SHAPE, instance("inf2.48xlarge"), tp, Runtime("bf16", is_continuous, sdk))


def test_a_median_is_the_step_of_the_bucket_that_holds_the_median_token() -> None:
    decode, prefill = both(NEURON_DOCS)
    assert decode.work == work(24, False).decode(4, 8192)  # token 128 + 4032
    assert decode.seconds == pytest.approx(7e-3)
    assert decode.point == Point("decode", "Inferentia2", pytest.approx(8.03, rel=0.01), 24, 4, 8192, 2, False)
    assert both(NEURON_DOCS, output_len="2000")[0].work == work(24, False).decode(4, 2048)
    prompts = work(24, False).prefill(128, 4)  # a static batch is encoded at once
    assert prefill.work == prompts | {"tnx_activation": prompts["activation"]}, "no Llama by its name"
    assert both(NEURON_DOCS, model="Llama-8B")[1].work == prompts
    assert (decode.group, prefill.group) == ("decode_dense_inf2", "prefill_dense_inf2")


def test_continuous_batching_has_one_bucket_and_encodes_one_prompt_after_the_other() -> None:
    decode, prefill = both(OPTIMUM)
    assert decode.work == work(8, True).decode(4, 4096)
    one = work(8, True).prefill(4096)
    assert prefill.work["prefill_matmul"] == pytest.approx(4 * one["prefill_matmul"])
    assert prefill.work["prefill_call"] == 1
    assert prefill.point.positions == 4096, "prompts are padded to the one bucket"


@pytest.mark.parametrize(
    ("changes", "prompts"),
    [
        ({"arrival": "static batch"}, 4),
        ({"arrival": "Static batch"}, 4),
        ({"arrival": "synchronous"}, 1),
        ({"arrival": "closed loop, c users", "use_prefill_fit": "yes (c=1)"}, 1),
        ({"arrival": "single"}, 1),
        ({"arrival": "", "batch_size": "1"}, 1),
    ],
)
@pytest.mark.parametrize("base", [NEURON_DOCS, OPTIMUM])
def test_a_first_token_waits_for_all_prompts_of_a_static_batch_and_else_for_its_own(
    base: dict[str, str], changes: dict[str, str], prompts: int
) -> None:
    one = both(base | {"arrival": "single"} | ({"batch_size": "1"} if "batch_size" in changes else {}))[1].work
    found = both(base, **changes)[1].work
    assert found["prefill_matmul"] == pytest.approx(prompts * one["prefill_matmul"], rel=0.01)
    assert found["activation"] == pytest.approx(prompts * one["activation"])
    assert found["prefill_call"] == 1
    assert both(base, **changes)[1].point.batch == prompts


def test_a_batch_without_its_arrival_could_be_one_prompt_or_all() -> None:
    _, reasons = observe(row(NEURON_DOCS, arrival=""))
    assert reasons == ["prefill: whether the 4 prompts of a batch came together is not stated"]


@pytest.mark.parametrize(("notes", "is_used"), [("std prefill, CPU sampling", False), ("on-device sampling", True)])
def test_steps_that_wait_for_the_host_to_sample_are_not_those_of_the_device(notes: str, is_used: bool) -> None:
    found, reasons = observe(row(NEURON_DOCS, notes=notes))
    assert [o.point.phase for o in found] == (["decode"] if is_used else []) + ["prefill"]
    assert reasons == ([] if is_used else ["decode: tokens were sampled on the host"])


@pytest.mark.parametrize(
    ("changes", "prompt", "step"),
    [
        ({}, 128, 8192),  # powers of two
        ({"input_len": "1000", "output_len": "24"}, 1024, 1024),
        ({"framework": "optimum-neuron (NxD backend)", "neuron_sdk": "2.22"}, 8192, 8192),
        ({"framework": "vLLM (nxd-inference)", "neuron_sdk": "2.22"}, 8192, 8192),
        ({"framework": "TGI (optimum-neuron)", "batch_size": "1"}, 128, 8192),  # buckets until the NxD backend
        ({"framework": "TGI (optimum-neuron)"}, 8192, 8192),  # and slots that come and go
        ({"framework": "TGI (optimum-neuron)", "neuron_sdk": "2.16"}, 128, 8192),  # which no older release had
        ({"output_len": "", "tpot_stat": "mean"}, 128, 8192),
    ],
)
def test_rows_of_software_with_one_bucket_are_padded_to_it(changes: dict[str, str], prompt: int, step: int) -> None:
    stated = {"n_kv_heads": "32", "params_b": ""}  # as no release spread otherwise
    decode, prefill = both(NEURON_DOCS, **stated, **changes)
    assert (prefill.point.positions, decode.point.positions) == (prompt, step)


def test_a_mean_over_a_static_batch_is_the_mean_over_buckets() -> None:
    decode, _ = both(OPTIMUM, batch_size="1", output_len="512")
    assert decode.work == work(8, False).decode(1, 768)  # half the tokens on 512, half on 1024


def test_a_time_that_includes_prefill_has_its_share_in_each_token() -> None:
    decode, _ = both(NEURON_DOCS, tpot_stat="derived: e2e/output tokens (includes prefill)", output_len="128")
    assert decode.work["prefill_call"] == pytest.approx(1 / 128)
    assert decode.work["layer_launch"] == 32
    step, prompt = work(24, False).decode(4, 256), work(24, False).prefill(128, 4)
    assert decode.work["weights"] == step["weights"]
    assert decode.work["prefill_weights"] == pytest.approx(prompt["prefill_weights"] / 128)


def test_the_time_of_a_graph_has_nothing_of_the_host() -> None:
    _, prefill = both(NEURON_DOCS, ttft_stat="device time of the context-encoding graph")
    assert prefill.work["prefill_call"] == 0


def test_a_time_that_includes_the_first_token_is_freed_of_it() -> None:
    decode, _ = both(NEURON_DOCS, tpot_stat="llmperf inter-token (includes TTFT)", output_len="100")
    assert decode.seconds == pytest.approx(7e-3 - 30e-3 / 100)


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({"instance": "trn1.32xlarge", "tp": "32"}, "decode_trn1"),
        ({"instance": "trn2.48xlarge", "tp": "32"}, "decode_dense_trn2"),
        ({"instance": "trn1n.32xlarge", "tp": "32"}, "decode_trn1"),
        ({"arch": "moe", "n_experts": "8", "experts_per_token": "2", "params_b": "46.7"}, "decode_moe_inf2"),
    ],
)
def test_groups_are_named_by_kind_architecture_and_part(changes: dict[str, str], group: str) -> None:
    assert both(NEURON_DOCS, **changes)[0].group == group


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"use_decode_fit": "no"}, "decode: use_decode_fit is 'no'"),
        ({"use_prefill_fit": "coarse"}, "prefill: use_prefill_fit is 'coarse'"),
        ({"use_prefill_fit": "yes, coarse", "ttft_ms": "900"}, "prefill: 900 ms rounded to 0.1 s"),
        ({"quality": "C"}, "decode: quality is C"),
        ({"tpot_ms": ""}, "decode: no tpot_ms"),
        ({"ttft_ms": "-7"}, "prefill: no ttft_ms"),
        ({"tp": ""}, "decode: the tensor-parallel degree is not stated"),
        ({"tp": "48"}, "decode: tensor_parallel_size is 48: inf2.48xlarge has 24 NeuronCores"),
        ({"instance": "p5.48xlarge"}, "decode: there is no device 'p5.48xlarge'"),
        ({"weight_dtype": "int3"}, "decode: weight dtype 'int3'"),
        ({"arch": "encoder-decoder"}, "decode: architecture encoder-decoder is not modelled"),
        ({"n_layers": ""}, "decode: the shape is not stated and the model is not a known one"),
        ({"n_kv_heads": "5"}, "decode: 32 heads cannot share 5 KV heads"),
        ({"max_seq_len": "", "input_len": "", "output_len": ""}, "decode: no length is stated"),
        ({"input_len": ""}, "prefill: no input_len"),
        ({"neuron_sdk": "2.17"}, "decode: SDK 2.17 spread grouped queries over cores as no later release does"),
        ({"n_experts": "8"}, "decode: only one of n_experts and experts_per_token is stated"),
        ({"tpot_stat": "includes TTFT", "ttft_ms": "90000"}, "decode: ttft_ms leaves no time for the other tokens"),
    ],
)
def test_what_cannot_be_compared_is_skipped_with_a_reason(changes: dict[str, str], reason: str) -> None:
    _, reasons = observe(row(NEURON_DOCS, **changes))
    assert any(r.startswith(reason) for r in reasons), reasons


def test_a_missing_shape_is_that_of_the_known_model_of_that_name() -> None:
    blank = dict.fromkeys(STATED, "")
    assert shape_of(row(NEURON_DOCS | blank, model="meta-llama/Llama-3.1-8B-Instruct")) == SHAPE
    assert shape_of(row(NEURON_DOCS, head_dim="")) == SHAPE
    with pytest.raises(Unusable, match="not a known one"):
        shape_of(row(NEURON_DOCS | blank, model="Llama-3-8B", params_b="70"))


def test_plain_and_gated_feed_forward_are_told_apart_by_the_stated_size() -> None:
    opt = {"n_layers": "40", "hidden_size": "5120", "n_heads": "40", "n_kv_heads": "40", "ffn_size": "20480"}
    assert network_of(shape_of(row(NEURON_DOCS | opt, vocab_size="50272", params_b="12.85"))).is_gated is False
    assert network_of(shape_of(row(NEURON_DOCS))).is_gated is True
    assert network_of(shape_of(row(NEURON_DOCS, params_b=""))).is_gated is True


@pytest.mark.parametrize(
    ("name", "params_b"),
    [
        ("Llama-2-7b", 6.74),
        ("Llama-2-70B-chat", 68.98),
        ("Llama-3.2-1B", 1.24),
        ("Llama-3.3-70B-Instruct", 70.55),
        ("mistralai/Mistral-7B-Instruct-v0.2", 7.24),
        ("Mistral-Small-3.1-24B", 23.6),
        ("Mistral-Small-Instruct-2409", 22.2),
        ("Mixtral-8x7B-v0.1", 46.7),
        ("CodeLlama-13b", 13.02),
        ("Qwen2.5-0.5B", 0.49),
        ("Qwen2.5-7B-Instruct", 7.62),
        ("DeepSeek-R1-Distill-Qwen-32B", 32.8),
        ("Qwen3-0.6B", 0.6),
        ("Qwen3-30B-A3B", 30.5),
        ("granite-3.1-8b-instruct", 8.17),
        ("SmolLM3-3B", 3.08),
        ("TinyLlama-1.1B", 1.1),
        ("phi-4", 14.7),
        ("opt-66b", 66.0),
        ("gpt-neox-20b", 20.6),
        ("bloom-7b1", 7.07),
    ],
)
def test_known_shapes_have_the_size_that_is_published_of_them(name: str, params_b: float) -> None:
    known = known_model(name)
    assert known is not None
    assert size_error(known, params_b) <= PARAMS_TOLERANCE


def test_unknown_names_have_no_shape() -> None:
    assert known_model("phi-5-mini") is None
    assert known_model("grok-1") is None


@given(st.integers(1, 5000), st.integers(1, 3000), st.sampled_from([1024, 4096, 16384]))
def test_the_mean_bucket_is_that_of_the_tokens_one_by_one(prompt: int, output: int, longest: int) -> None:
    sizes = [min(bucket(prompt + i + 1), longest) for i in range(output)]
    assert mean_bucket(prompt, output, longest) == pytest.approx(sum(sizes) / output, abs=0.51)


def test_buckets_are_powers_of_two_from_128() -> None:
    assert [bucket(n) for n in (1, 128, 129, 4096, 4097)] == [128, 128, 256, 4096, 8192]
    assert all(a <= b for a, b in pairwise(bucket(n) for n in range(1, 600)))


@pytest.mark.parametrize(("notes", "cores"), [("LNC 1 (8 physical cores)", 8), ("LNC 2", 4), ("", 4)])
def test_a_row_that_names_its_logical_cores_has_as_many(notes: str, cores: int) -> None:
    named = row(OPTIMUM, instance="trn2.3xlarge", tp=str(cores), notes=notes)
    assert Setup.of(named).part.num_cores == cores


def test_more_cores_than_the_default_grouping_has_need_the_note() -> None:
    with pytest.raises(DeviceError, match=r"tensor_parallel_size is 8: trn2.3xlarge has 4 NeuronCores"):
        Setup.of(row(OPTIMUM, instance="trn2.3xlarge", tp="8"))
