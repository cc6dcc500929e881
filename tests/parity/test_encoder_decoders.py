"""Encoder-decoders against transformers, live: logits at every position, for each family and tensor-parallel size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronserve.server.api.pipeline.sources import text_item
from neuronserve.server.config import EngineConfig
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.types import Request, SamplingParams
from tests.depth import representative
from tests.encoder_decoders import KINDS, engine_logits, logits, random_model
from tests.encoders import VOCAB, save

FLOAT32_TOLERANCE = 1e-5  # largest error over largest value
CASES = [(name, size) for name in KINDS for size in (1, 2, 4)]
LENGTHS = [(1, 1), (2, 40), (33, 7), (64, 1), (150, 99)]  # of the encoder's text, and of the decoder's


@contextmanager
def engine(directory: Path, kernels: str, size: int, **options: Any) -> Iterator[Any]:
    config = EngineConfig(
        **{
            "model_path": str(directory),
            "device": "inf2.48xlarge",
            "tensor_parallel_size": size,
            "dtype": "float32",
            "max_model_len": 128,
            "max_num_seqs": 3,
            "max_num_batched_tokens": 32,
            "max_num_queued_reqs": 8,
            "block_size": 16,
            "enable_prefix_caching": True,
            "device_memory_utilization": 0.9,
            "num_blocks_override": 80,
            "cpu_threads": 2,
            "kernel_cache_dir": kernels,
        }
        | options
    )
    found = load_engine(config, lambda _: None)
    try:
        yield found
    finally:
        found.runner.close()


def texts() -> list[tuple[list[int], list[int]]]:
    rng = np.random.default_rng(5)
    return [tuple(rng.integers(4, VOCAB, length).tolist() for length in each) for each in LENGTHS]  # type: ignore[misc]


@pytest.mark.parametrize(("name", "size"), representative(CASES, *[(name, 1) for name in KINDS], ("t5", 4)))
def test_float32_logits_are_those_of_transformers(tmp_path: Path, kernel_cache: str, name: str, size: int) -> None:
    model = random_model(name)
    with engine(save(model, tmp_path / name), kernel_cache, size) as found:
        for source, decoder in texts():
            want = logits(model, source, decoder)
            got = engine_logits(found, source, decoder)
            assert np.abs(got - want).max() <= FLOAT32_TOLERANCE * np.abs(want).max(), (len(source), len(decoder))


NARROW: dict[
    str, tuple[dict[str, str], float]
] = {  # options, and mean error over mean logit; scores of T5 have no scale
    "bfloat16": ({}, 0.06),
    "int8 weights": ({"quantization": "int8"}, 0.15),
    "int8 cache": ({"kv_cache_dtype": "int8"}, 0.06),
    "fp8 cache": ({"kv_cache_dtype": "fp8"}, 0.15),
}


@pytest.mark.parametrize("name", representative(tuple(KINDS), "flan-t5"))
def test_narrow_weights_and_caches_are_near_float32(tmp_path: Path, kernel_cache: str, name: str) -> None:
    model, (source, decoder) = random_model(name), texts()[2]
    directory, want = save(model, tmp_path / name), logits(model, source, decoder)
    for form, (options, tolerance) in NARROW.items():
        with engine(directory, kernel_cache, 2, dtype="bfloat16", **options) as found:
            got = engine_logits(found, source, decoder)
        error = np.abs(got - want).mean() / np.abs(want).mean()
        assert error <= tolerance, form


def test_what_the_encoder_cannot_read_is_refused(tmp_path: Path, kernel_cache: str) -> None:
    whole = text_item([5, 6, 7])
    with engine(save(random_model("t5-one-layer"), tmp_path / "t5"), kernel_cache, 1) as found:
        for media in ((), (whole, whole), (text_item([]),), (replace(whole, num_tokens=2),), (text_item([5] * 257),)):
            request = Request("a", (0,), SamplingParams(1), 0.0, media=media)
            assert "one text of up to 256 tokens" in found.runner.encoder.refusal(request)
        assert found.runner.encoder.refusal(replace(request, media=(whole,))) is None
