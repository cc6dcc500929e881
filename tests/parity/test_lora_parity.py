"""Adapters against transformers with their weights merged: W + scale * B A, worked out in float64."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuronserve.server.config import EngineConfig, LoraConfig, LoraModule
from neuronserve.server.config.formats import Dtype
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.settings.sources import load_settings
from neuronserve.server.types import Request, SamplingParams
from tests.depth import representative
from tests.engine.test_engine_invariance import generate
from tools.golden.oracle import Oracle
from tools.random_checkpoint.adapter import adapter_tensors, write_adapter
from tools.random_checkpoint.shapes import SHAPES

# What is written, with the rank and the scale of each module.
ADAPTERS: dict[str, dict[str, Any]] = {
    "every module": {"targets": None, "rank": 8},
    "two modules": {"targets": ("q_proj", "v_proj"), "rank": 3, "config": {"use_rslora": True, "lora_alpha": 2}},
    "ranks of their own": {
        "targets": ("k_proj", "o_proj", "up_proj", "down_proj"),
        "rank": 16,
        "ranks": {"up_proj": 5, "o_proj": 1},
        "config": {"rank_pattern": {"up_proj": 5, ".*o_proj": 1}, "alpha_pattern": {"layers.1.mlp.down_proj": 40}},
    },
}
MAX_RANK = 20
Checkpoints = Callable[[str], Path]


def write(model: Path, directory: Path, name: str, seed: int) -> Path:
    case = ADAPTERS[name]
    tensors = adapter_tensors(model, case["rank"], case["targets"], seed, case.get("ranks"))
    return write_adapter(directory, tensors, **({"r": case["rank"]} | case.get("config", {})))


def scale_of(config: dict[str, Any], module: str, rank: int) -> float:
    """Return the scale by PEFT's formula."""
    patterns = config.get("alpha_pattern", {}).items()
    alpha = next((value for key, value in patterns if module.endswith(key)), config["lora_alpha"])
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def merge(model: Path, adapter: Path, directory: Path) -> Path:
    """The checkpoint that the adapter makes of a model."""
    shutil.copytree(model, directory)
    weights, lora = load_file(model / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    for name in (name for name in lora if ".lora_A." in name):
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        a, b = lora[name].astype(float), lora[name.replace("lora_A", "lora_B")].astype(float)
        weight, change = weights[f"{module}.weight"], scale_of(config, module, len(a)) * b @ a
        change = change.T if config.get("fan_in_fan_out") else change
        weights[f"{module}.weight"] = (weight + change).astype(weight.dtype)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


def engine(model: Path, dtype: Dtype, tp: int, adapters: dict[str, Path], cache: str, **more: Any) -> LoadedEngine:
    modules = tuple(LoraModule(name, str(path)) for name, path in adapters.items())
    config = EngineConfig(
        model_path=str(model),
        device="inf2.48xlarge",
        tensor_parallel_size=tp,
        dtype=dtype,
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=128,
        max_num_queued_reqs=2,
        block_size=32,
        enable_prefix_caching=False,
        device_memory_utilization=0.9,
        num_blocks_override=None,
        cpu_threads=2,
        kernel_cache_dir=cache,
        lora=LoraConfig(len(modules), MAX_RANK, modules),
        kernel_checks=load_settings(EngineSettings, ()).kernel_checks,  # NEURONSERVE_KERNEL_CHECKS
        **more,
    )
    return load_engine(config, lambda _: None)


SIZES = [(shape, tp) for shape in ("tiny-llama", "tiny-odd", "tiny-qwen2", "tiny-gemma3") for tp in (1, 2, 4)]
SOME = ("tiny-llama", 1), ("tiny-qwen2", 2), ("tiny-odd", 4), ("tiny-gemma3", 2)


def token_ids(shape: str) -> list[int]:
    ids: list[int] = np.random.default_rng(3).integers(0, SHAPES[shape].vocab, 150).tolist()
    return ids


@pytest.mark.parametrize(("shape", "tp"), representative(SIZES, *SOME))
def test_float32_logits_are_those_of_the_merged_checkpoint(
    checkpoint_of: Checkpoints, kernel_cache: str, tmp_path: Path, shape: str, tp: int
) -> None:
    model, ids = checkpoint_of(shape), token_ids(shape)
    adapters = {name: write(model, tmp_path / name, name, seed) for seed, name in enumerate(ADAPTERS)}
    loaded = engine(model, "float32", tp, adapters, kernel_cache)
    plain = Oracle(model).logits(ids)
    for adapter in loaded.info.adapters:
        expected = Oracle(merge(model, adapters[adapter.name], tmp_path / f"{adapter.name} merged")).logits(ids)
        got, largest = loaded.runner.logits(ids, adapter.digest), np.abs(expected).max()
        assert np.abs(got - expected).max() <= 1e-5 * largest
        chosen = np.take_along_axis(expected, got.argmax(1)[:, None], 1)[:, 0]
        assert (chosen >= expected.max(1) - 1e-5 * largest).all()
        assert np.abs(plain - expected).max() > 0.1 * largest  # it matters
    assert np.abs(loaded.runner.logits(ids) - plain).max() <= 1e-5 * np.abs(plain).max()
    loaded.runner.close()


@pytest.mark.parametrize("tp", [1, 2])
def test_greedy_tokens_in_one_batch_are_those_of_the_merged_checkpoints(
    checkpoint_of: Checkpoints, kernel_cache: str, tmp_path: Path, tp: int
) -> None:
    """Two prompts with each adapter and without one, all at once, by the scheduler, in chunks, with a prefix cache."""
    model, rng = checkpoint_of("tiny-llama"), np.random.default_rng(11)
    adapters = {name: write(model, tmp_path / name, name, seed) for seed, name in enumerate(ADAPTERS)}
    loaded = engine(model, "float32", tp, adapters, kernel_cache)
    oracles = {"": Oracle(model)} | {
        adapter.digest: Oracle(merge(model, adapters[adapter.name], tmp_path / f"{adapter.name} merged"))
        for adapter in loaded.info.adapters
    }
    prompts = [tuple(rng.integers(0, SHAPES["tiny-llama"].vocab, length).tolist()) for length in (33, 70)]
    sampling = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
    some = [
        Request(f"{digest}{i}", prompt, sampling, arrival_time=float(i), lora=digest)
        for digest in oracles
        for i, prompt in enumerate(prompts)
    ]
    tokens = generate(loaded, some, budget=48, caching=True).tokens
    for request in some:
        known = list(request.prompt_token_ids)
        for _ in range(16):
            known.append(int(oracles[request.lora].logits(known)[-1].argmax()))
        assert tokens[request.request_id] == known[len(request.prompt_token_ids) :]
    assert len({tuple(tokens[request.request_id]) for request in some}) == len(some)
    loaded.runner.close()


FUSED = {
    "tiny-gpt2": True,
    "tiny-neox": False,
    "tiny-phi3": False,
    "tiny-opt": False,
    "tiny-granite4": False,
    "tiny-qwen3-next": False,
    "tiny-qwen3-5": False,
    "tiny-falcon-h1": False,
    "tiny-nemotron-h": False,
    "tiny-lfm2": False,
}  # stored transposed


@pytest.mark.parametrize(
    ("shape", "tp"), representative([(shape, tp) for shape in FUSED for tp in (1, 2)], *((shape, 2) for shape in FUSED))
)
def test_modules_that_are_one_or_transposed_in_the_checkpoint(
    checkpoint_of: Checkpoints, kernel_cache: str, tmp_path: Path, shape: str, tp: int
) -> None:
    model, ids = checkpoint_of(shape), token_ids(shape)
    tensors = adapter_tensors(model, 6, seed=5)
    path = write_adapter(tmp_path / "adapter", tensors, fan_in_fan_out=FUSED[shape])
    loaded = engine(model, "float32", tp, {"adapter": path}, kernel_cache)
    expected = Oracle(merge(model, path, tmp_path / "merged")).logits(ids)
    got = loaded.runner.logits(ids, loaded.info.adapters[0].digest)
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    assert np.abs(got - loaded.runner.logits(ids)).max() > 0.1 * np.abs(expected).max()
    loaded.runner.close()


# Mean error over mean logit, and the share of positions whose most likely token is the merged checkpoint's.
NEAR: dict[str, tuple[float, float]] = {"none": (0.02, 0.97), "int8": (0.06, 0.9), "fp8": (0.1, 0.84)}


@pytest.mark.parametrize("quantization", NEAR)
@pytest.mark.parametrize(("shape", "tp"), representative(SIZES[:3], ("tiny-llama", 2)))
def test_adapters_of_rounded_weights_are_near_the_merged_checkpoint(
    checkpoint_of: Checkpoints, kernel_cache: str, tmp_path: Path, shape: str, tp: int, quantization: Any
) -> None:
    """The error is that of the model itself without an adapter."""
    model, ids = checkpoint_of(shape), token_ids(shape)
    adapters = {name: write(model, tmp_path / name, name, seed) for seed, name in enumerate(ADAPTERS)}
    loaded = engine(model, "bfloat16", tp, adapters, kernel_cache, quantization=quantization)
    for adapter in loaded.info.adapters:
        expected = Oracle(merge(model, adapters[adapter.name], tmp_path / f"{adapter.name} merged")).logits(ids)
        got = loaded.runner.logits(ids, adapter.digest)
        error, top = NEAR[quantization]
        assert np.abs(got - expected).mean() <= error * np.abs(expected).mean()
        assert (got.argmax(1) == expected.argmax(1)).mean() >= top
    loaded.runner.close()
