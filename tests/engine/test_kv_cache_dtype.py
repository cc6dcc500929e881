"""KV caches of int8 and fp8 on the default model: how far they are from the bfloat16 cache, and what is refused."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from neuronserve.server.config import EngineConfig
from neuronserve.server.config.formats import KVCacheDtype
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.text.tokenizer import load_tokenizer
from tests.engine.config import engine_config

TEXTS = (
    "What is 48 + 27? Work it out step by step, please.",
    "Spell the word garden backwards. How many letters does it have?",
    "List three animals that live in the water, and say what each of them eats.",
    "Please write a short story about a cat, a hat and a boat on the river.",
)


def config(
    kernels: str, kv_cache_dtype: KVCacheDtype | str, dtype: str = "bfloat16", block_size: int = 32
) -> EngineConfig:
    return engine_config(
        DEFAULT_MODEL,
        kernels,
        dtype=dtype,
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        block_size=block_size,
        enable_prefix_caching=False,
        num_blocks_override=512 // block_size + 1,
        kv_cache_dtype=kv_cache_dtype,
    )


@cache
def logits(kernels: str, kv_cache_dtype: str, block_size: int) -> np.ndarray:
    engine = load_engine(config(kernels, kv_cache_dtype, block_size=block_size), lambda _: None)
    assert engine.info.kv_cache_dtype == kv_cache_dtype
    tokenizer = load_tokenizer(DEFAULT_MODEL)
    try:
        return np.concatenate([engine.runner.logits(tuple(tokenizer.encode(text))) for text in TEXTS])
    finally:
        engine.runner.close()


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize(("kv_cache_dtype", "tolerance", "agreement"), [("int8", 0.02, 0.97), ("fp8", 0.05, 0.93)])
def test_logits_are_near_those_of_the_bfloat16_cache(
    pytestconfig: pytest.Config, kv_cache_dtype: str, tolerance: float, agreement: float, block_size: int
) -> None:
    kernels = str(pytestconfig.cache.mkdir("kernels"))
    want, got = logits(kernels, "bfloat16", block_size), logits(kernels, kv_cache_dtype, block_size)
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    agreeing = float(np.mean(got.argmax(-1) == want.argmax(-1)))
    print(
        f"{kv_cache_dtype}, blocks of {block_size}: error {error:.4f}, greedy agreement {agreeing:.4f} of {len(want)}"
    )
    assert 0 < error <= tolerance
    assert agreeing >= agreement


@pytest.mark.parametrize("kv_cache_dtype", ["bfloat16", "int8", "fp8"])
def test_a_float32_engine_keeps_a_float32_cache(tmp_path: object, kv_cache_dtype: str) -> None:
    with pytest.raises(
        SettingsError, match=rf"^kv_cache_dtype is {kv_cache_dtype}: with dtype float32 it must be auto$"
    ):
        load_engine(config(str(tmp_path), kv_cache_dtype, "float32"), lambda _: None)
