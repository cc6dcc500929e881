"""Latent attention against transformers, in the checkpoints that it writes: logits, and tokens by the scheduler."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.special import log_softmax

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.config import CompileConfig, EngineConfig, LoraConfig, SchedulerConfig
from neuronserve.server.config.formats import KVCacheDtype, Quantization, RequestedFormats
from neuronserve.server.engine.load.artifact_writer import compile_model
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.errors import DeviceError, SettingsError
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.placement.footprint import ServingShape, StepLimits
from neuronserve.server.placement.host_footprint import HostFootprint
from neuronserve.server.placement.shard import ShardSpec
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams, TokenEvent
from tests.api.serving import running_server
from tests.api.telemetry.scraping import scrape
from tests.depth import representative
from tests.parity.latent_models import FAMILIES, MAX_TOKENS, VOCAB, random_model, save

TOLERANCE = 1e-5  # largest error over largest logit
TOKENS = np.random.default_rng(1).integers(0, VOCAB, 150).tolist()
PROMPTS = [(*TOKENS[:45], *TOKENS[60 : 60 + n]) for n in (1, 30, 12)]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """name -> transformers' model and its checkpoint."""

    @cache
    def make(name: str) -> tuple[Any, Path]:
        model = random_model(name)
        return model, save(model, tmp_path_factory.mktemp(name) / name)

    return make


def engine_of(directory: Path, kernels: str, **options: Any) -> LoadedEngine:
    settings: dict[str, Any] = {
        "device": "inf2.48xlarge",
        "tensor_parallel_size": 1,
        "dtype": "float32",
        "max_model_len": MAX_TOKENS,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_num_queued_reqs": 4,
        "block_size": 16,
        "enable_prefix_caching": True,
        "device_memory_utilization": 0.9,
        "num_blocks_override": 40,
        "cpu_threads": 2,
        "kernel_cache_dir": kernels,
        "allow_unsupported_types": True,
    }
    return load_engine(EngineConfig(model_path=str(directory), **(settings | options)), lambda _: None)


def expected(model: Any, token_ids: list[int]) -> npt.NDArray[np.float32]:
    with torch.inference_mode():
        logits: npt.NDArray[np.float32] = model(torch.tensor([token_ids]), use_cache=False).logits[0].numpy()
    return logits


CASES = [(name, tp) for name in FAMILIES for tp in (1, 2, 4)]
OFTEN = [(name, 1 + i % 2) for i, name in enumerate(FAMILIES)] + [("deepseek-v3", 4)]


@pytest.mark.parametrize(("name", "tp"), representative(CASES, *OFTEN))
def test_logits_are_those_of_transformers(
    model_of: Callable[[str], tuple[Any, Path]], kernel_cache: str, name: str, tp: int
) -> None:
    model, directory = model_of(name)
    engine = engine_of(directory, kernel_cache, tensor_parallel_size=tp)
    try:
        got, want = engine.runner.logits(TOKENS), expected(model, TOKENS)
    finally:
        engine.runner.close()
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def run(engine: LoadedEngine, chunk: int, num_blocks: int) -> tuple[dict[str, list[TokenEvent]], KVCacheManager, int]:
    """The events of requests with a common beginning, the cache afterwards, and how often one was preempted."""
    cache = KVCacheManager(dataclasses.replace(engine.cache, num_blocks=num_blocks), copy=engine.placement.kv.copy)
    scheduler = Scheduler(SchedulerConfig(MAX_TOKENS, min(4, chunk), chunk), cache)
    sampling = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, logprobs=1)
    for i, prompt in enumerate(PROMPTS):
        scheduler.add(Request(str(i), prompt, sampling, arrival_time=float(i)))
    events: dict[str, list[TokenEvent]] = {str(i): [] for i in range(len(PROMPTS))}
    num_preempted = 0
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        num_preempted += len(plan.preempted)
        for event in scheduler.apply(plan, engine.runner.execute(plan), 0.0):
            events[event.request_id].append(event)
        assert scheduler.audit() == []
    return events, cache, num_preempted


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_what_is_generated_is_what_transformers_would(
    model_of: Callable[[str], tuple[Any, Path]], kernel_cache: str, chunk: int
) -> None:
    """Chunks of one token and of seven, prefixes found in the middle of a prompt, and requests that are preempted."""
    model, directory = model_of("deepseek-v3")
    engine = engine_of(directory, kernel_cache, tensor_parallel_size=2)
    try:
        results = [run(engine, chunk, num_blocks) for num_blocks in (40, 9)]
    finally:
        engine.runner.close()
    assert all(cache.prefix_hits % cache.config.block_size for _, cache, _ in results), "no part of a block was copied"
    assert results[1][2] > 0 or chunk == 1
    for events, _, _ in results:
        for i, prompt in enumerate(PROMPTS):
            generated = [event.token_id for event in events[str(i)]]
            logits = expected(model, [*prompt, *generated])[len(prompt) - 1 : -1]
            assert generated == logits.argmax(1).tolist()
            scores = log_softmax(logits, axis=1)[np.arange(len(generated)), generated]
            sampled = [event.logprobs.sampled for event in events[str(i)] if event.logprobs is not None]
            assert np.allclose(sampled, scores, atol=1e-4)


# Mean error over mean logit; all experts are chosen, otherwise rounding could change a choice.
QUANTIZED: dict[Quantization, float] = {"int8": 0.1, "int8-weight-only": 0.08, "fp8": 0.25}


@pytest.mark.parametrize("quantization", QUANTIZED)
def test_quantized_weights_are_near(tmp_path: Path, kernel_cache: str, quantization: Quantization) -> None:
    model = random_model("deepseek-v3", num_experts_per_tok=12, n_group=1, topk_group=1)
    directory, want = save(model, tmp_path / "model"), expected(model, TOKENS)
    for tp, is_expert_parallel in ((1, False), (2, True)):
        options = {"tensor_parallel_size": tp, "enable_expert_parallel": is_expert_parallel}
        engine = engine_of(directory, kernel_cache, dtype="bfloat16", quantization=quantization, **options)
        try:
            got = engine.runner.logits(TOKENS)
        finally:
            engine.runner.close()
        assert np.abs(got - want).mean() <= QUANTIZED[quantization] * np.abs(want).mean()


CACHES: dict[KVCacheDtype, float] = {"bfloat16": 0.03, "int8": 0.04, "fp8": 0.08}


@pytest.mark.parametrize("kv", CACHES)
def test_caches_of_fewer_bits_are_near(
    model_of: Callable[[str], tuple[Any, Path]], kernel_cache: str, kv: KVCacheDtype
) -> None:
    model, directory = model_of("minicpm3")
    engine = engine_of(directory, kernel_cache, dtype="bfloat16", kv_cache_dtype=kv)
    try:
        got, want = engine.runner.logits(TOKENS), expected(model, TOKENS)
    finally:
        engine.runner.close()
    assert np.abs(got - want).mean() <= CACHES[kv] * np.abs(want).mean()


def test_experts_may_have_a_tensor_each_and_further_layers_are_left_out(tmp_path: Path, kernel_cache: str) -> None:
    """Published files of DeepSeek have a tensor of each expert's matrices, and a layer that predicts another token."""
    model = random_model("deepseek-v3", num_nextn_predict_layers=1)
    directory, tensors = save(model, tmp_path / "model"), {}
    for name, values in load_file(directory / "model.safetensors").items():
        if name.endswith("experts.gate_up_proj"):
            for i, expert in enumerate(values):
                gate, up = expert.chunk(2)
                stem = name.replace("gate_up_proj", f"{i}.")
                tensors |= {f"{stem}gate_proj.weight": gate.contiguous(), f"{stem}up_proj.weight": up.contiguous()}
        elif name.endswith("experts.down_proj"):
            tensors |= {name.replace("down_proj", f"{i}.down_proj.weight"): each for i, each in enumerate(values)}
        else:
            tensors[name] = values
    tensors["model.layers.3.eh_proj.weight"] = torch.zeros(60, 120)
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "num_nextn_predict_layers": 1}
    (directory / "config.json").write_text(json.dumps(config))
    assert Checkpoint.open(directory, read_model_spec(directory)).surplus == ("model.layers.3.*",)
    engine = engine_of(directory, kernel_cache)
    try:
        got, want = engine.runner.logits(TOKENS), expected(model, TOKENS)
    finally:
        engine.runner.close()
    assert engine.spec.num_nextn_layers == 1
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def test_contexts_that_need_the_indexer_are_refused(
    model_of: Callable[[str], tuple[Any, Path]], kernel_cache: str
) -> None:
    _, directory = model_of("glm-5")
    with pytest.raises(SettingsError, match="takes 2 to 256 tokens; index_topk is 256: there is no indexer"):
        engine_of(directory, kernel_cache, max_model_len=257)
    engine = engine_of(directory, kernel_cache, max_model_len=None)
    engine.runner.close()
    assert engine.info.max_model_len == MAX_TOKENS


@pytest.mark.parametrize("tp", [1, 2])
def test_the_host_takes_what_its_account_says(
    model_of: Callable[[str], tuple[Any, Path]], kernel_cache: str, tp: int
) -> None:
    engine = engine_of(model_of("deepseek-v3")[1], kernel_cache, tensor_parallel_size=tp)
    engine.runner.close()
    shape = ServingShape("float32", MAX_TOKENS, 16, StepLimits(64, 4, 2))
    account = HostFootprint.of(engine.spec, ShardSpec.of(engine.spec, tp), shape)
    expected = {**account.fixed, "kv": 40 * account.kv_block}
    used = engine.info.host_memory
    exact = ("activations", "partial_sums", "workers", "tables", "kv")
    assert {use: used[use] for use in exact} == {use: expected[use] for use in exact}
    assert used["weights"] <= expected["weights"] <= 1.2 * used["weights"]
    rows = 40 * 16 * 64 * 4 * engine.spec.num_layers  # blocks, tokens, elements of a padded row, bytes: K and V at once
    assert used["kv"] == tp * rows


def test_a_compiled_model_has_the_same_logits(
    model_of: Callable[[str], tuple[Any, Path]], kernel_cache: str, tmp_path: Path
) -> None:
    model, directory = model_of("deepseek-v2")
    config = CompileConfig(str(directory), str(tmp_path / "compiled"), 2, RequestedFormats("float32"), kernel_cache)
    compile_model(config, lambda _: None)
    engine = engine_of(tmp_path / "compiled", kernel_cache, tensor_parallel_size=2)
    try:
        got, want = engine.runner.logits(TOKENS), expected(model, TOKENS)
    finally:
        engine.runner.close()
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def test_adapters_are_refused(model_of: Callable[[str], tuple[Any, Path]], kernel_cache: str) -> None:
    with pytest.raises(DeviceError, match="enable_lora: a model with latent attention"):
        engine_of(model_of("deepseek-v3")[1], kernel_cache, lora=LoraConfig(1, 8))


@pytest.mark.slow
def test_an_engine_that_follows_loads_the_latents_that_the_first_one_kept(
    model_of: Callable[[str], tuple[Any, Path]], kernel_cache: str
) -> None:
    _, directory = model_of("deepseek-v3")
    limits = "--max-num-batched-tokens", "64", "--max-num-seqs", "4", "--kernel-cache-dir", kernel_cache
    flags = *limits, "--dtype", "float32", "--block-size", "16", "--kept-kv-cache-gib", "0.1"
    body = {"model": "fake", "prompt": TOKENS[:100], "max_tokens": 120, "temperature": 0, "ignore_eos": True}
    with running_server(directory, *flags, program="neuronserve") as server:
        whole = httpx.post(f"{server.url}/v1/completions", json=body | {"return_token_ids": True}, timeout=300).json()
        httpx.post(f"{server.url}/reset_prefix_cache").raise_for_status()
        tokens, first = list[int](), server.engine_pid
        asked = body | {"stream": True, "return_token_ids": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=300) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    tokens += json.loads(line.removeprefix("data: "))["choices"][0].get("token_ids") or []
                if len(tokens) >= 5 and first:
                    os.kill(first, signal.SIGKILL)
                    first = 0
        assert not first
        assert tokens == whole["choices"][0]["token_ids"]
        assert scrape(server.url).value("vllm:kv_offload_total_bytes_total", transfer_type="CPU_to_GPU") > 0
