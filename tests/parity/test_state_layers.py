"""Models with layers that keep a state against transformers: odd heads, chunks, cores, cached prefixes, preemption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers

from neuronserve.server.config import EngineConfig
from neuronserve.server.config.formats import Quantization
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from tests.encoders import save

VOCAB, LENGTH = 97, 150
TOLERANCE = 1e-5  # of the largest logit
SMALL = {"vocab_size": VOCAB, "hidden_size": 60, "intermediate_size": 100, "max_position_embeddings": 256}

LFM2 = {
    **SMALL,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "layer_types": ["conv", "full_attention", "conv"],
}
QWEN = {
    **SMALL,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 12,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 36,
    "shared_expert_intermediate_size": 44,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("lfm2", LFM2),
    "lfm2-taps": (
        "lfm2",
        LFM2
        | {"conv_L_cache": 5, "conv_bias": True, "hidden_size": 42, "num_attention_heads": 3, "num_key_value_heads": 3},
    ),
    "lfm2-moe": (
        "lfm2_moe",
        LFM2 | {"num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 36},
    ),
    "qwen3-5": ("qwen3_5_text", QWEN),
    "qwen3-5-heads": (
        "qwen3_5_text",
        QWEN | {"linear_num_key_heads": 5, "linear_num_value_heads": 5, "linear_conv_kernel_dim": 3},
    ),
    "qwen3-5-moe": ("qwen3_5_moe_text", QWEN | EXPERTS),
    "qwen3-next": ("qwen3_next", QWEN | EXPERTS | {"mlp_only_layers": [1]}),
    "qwen3-next-heads": ("qwen3_next", QWEN | EXPERTS | {"linear_num_key_heads": 7, "linear_num_value_heads": 7}),
}


def random_model(name: str) -> Any:
    """transformers' model with random weights, none of which is neutral."""
    kind, options = MODELS[name]
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 1}
    config = transformers.AutoConfig.for_model(kind, **ids, **options)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter, values in (*model.named_parameters(), *model.named_buffers()):
            if parameter.endswith(("inv_freq", "mup_vector")):
                continue
            is_gain = values.dim() == 1 and parameter.endswith("weight")
            scale = 0.2 if values.dim() < 2 else 1.0 * values.shape[-1] ** -0.5
            values.copy_(is_gain + torch.randn_like(values) * scale)
    return model


class Case:
    """A model's checkpoint and transformers' logits of one text."""

    def __init__(self, name: str, directory: Path) -> None:
        model = random_model(name)
        self.directory = save(model, directory)
        self.tokens: list[int] = np.random.default_rng(3).integers(0, VOCAB, LENGTH).tolist()
        with torch.no_grad():
            self.logits = model(torch.tensor([self.tokens]), use_cache=False).logits[0].numpy()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    return cache(lambda name: Case(name, tmp_path_factory.mktemp(name)))


@pytest.fixture
def engine(kernel_cache: str) -> Iterator[Callable[..., LoadedEngine]]:
    """(directory, cores, chunk, quantization=None) -> a loaded engine."""
    engines: list[LoadedEngine] = []

    def load(directory: Path, tp: int = 1, chunk: int = 64, quantization: Quantization | None = None) -> LoadedEngine:
        config = EngineConfig(
            model_path=str(directory),
            device="inf2.48xlarge",
            tensor_parallel_size=tp,
            dtype="bfloat16" if quantization else "float32",
            max_model_len=192,
            max_num_seqs=min(3, chunk),
            max_num_batched_tokens=chunk,
            max_num_queued_reqs=2,
            block_size=16,
            enable_prefix_caching=True,
            device_memory_utilization=0.9,
            num_blocks_override=40,
            cpu_threads=2,
            kernel_cache_dir=kernel_cache,
            quantization=quantization,
            allow_unsupported_types=True,
        )
        engines.append(load_engine(config, lambda _: None))
        return engines[-1]

    yield load
    for each in engines:
        each.runner.close()


def worst(got: npt.NDArray[np.float32], want: npt.NDArray[np.float32]) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_logits_are_those_of_transformers(
    case: Callable[[str], Case], engine: Callable[..., LoadedEngine], name: str, tp: int
) -> None:
    known = case(name)
    got = engine(known.directory, tp).runner.logits(known.tokens)
    assert worst(got, known.logits) <= TOLERANCE


@pytest.mark.parametrize("name", ["lfm2", "qwen3-5"])
@pytest.mark.parametrize("chunk", [1, 7])
def test_a_chunk_continues_from_the_state_of_the_one_before(
    case: Callable[[str], Case], engine: Callable[..., LoadedEngine], name: str, chunk: int
) -> None:
    known = case(name)
    got = engine(known.directory, chunk=chunk).runner.logits(known.tokens)
    assert worst(got, known.logits) <= TOLERANCE
