"""Layers that read other layers' keys and values, through the real scheduler: chunks, prefix hits and preemption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neuronserve.server.config import EngineConfig
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from tests.parity.test_family_parity import FAMILIES, TOKENS, random_model
from tests.parity.test_state_layers import Server

NAMES = ["gemma3n", "gemma4-inputs"]  # windows of 21 tokens; the last two of five layers have no keys of their own
COUNT = 30
PROMPTS = [70, 33, 5]  # tokens


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """Family -> the directory of a checkpoint, and transformers' model."""

    @cache
    def write(name: str) -> tuple[Path, Any]:
        model, directory = random_model(FAMILIES[name]), tmp_path_factory.mktemp(name)
        model.save_pretrained(directory)
        return directory, model

    return write


@pytest.fixture
def engine(kernel_cache: str) -> Iterator[Callable[[Path, int], LoadedEngine]]:
    """(directory, tokens of a step) -> a loaded engine."""
    engines: list[LoadedEngine] = []

    def load(directory: Path, chunk: int) -> LoadedEngine:
        config = EngineConfig(
            model_path=str(directory),
            device="inf2.48xlarge",
            tensor_parallel_size=1,
            dtype="float32",
            max_model_len=192,
            max_num_seqs=min(3, chunk),
            max_num_batched_tokens=chunk,
            max_num_queued_reqs=4,
            block_size=16,
            enable_prefix_caching=True,
            device_memory_utilization=0.9,
            num_blocks_override=64,
            cpu_threads=2,
            kernel_cache_dir=kernel_cache,
        )
        engines.append(load_engine(config, lambda _: None))
        return engines[-1]

    yield load
    for each in engines:
        each.runner.close()


def is_best(model: Any, prompt: list[int], tokens: list[int]) -> bool:
    """True when each token has the largest of transformers' logits after those before, but for rounding."""
    with torch.inference_mode():
        known = torch.tensor([[*prompt, *tokens]])
        logits = model(known, use_cache=False, output_hidden_states=True).logits[0, len(prompt) - 1 : -1].numpy()
    return bool((logits.max(1) - logits[np.arange(len(tokens)), tokens] <= 1e-4 * np.abs(logits).max()).all())


@pytest.mark.parametrize("name", NAMES)
def test_only_layers_of_their_own_keys_have_a_place_in_the_cache(
    written: Callable[[str], tuple[Path, Any]], engine: Callable[[Path, int], LoadedEngine], name: str
) -> None:
    loaded = engine(written(name)[0], 64)
    places = loaded.placement.kv.places
    assert places[3] == places[2]  # the last sliding layer before
    assert places[4] == places[1]  # the last of all tokens
    assert len(set(places[:3])) == 3


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_the_same_whatever_the_chunk_and_the_prefix(
    written: Callable[[str], tuple[Path, Any]], engine: Callable[[Path, int], LoadedEngine], name: str
) -> None:
    directory, model = written(name)
    found: list[dict[str, list[int]]] = []
    for chunk in (1, 7, 64):
        server = Server(engine(directory, chunk))
        for size in PROMPTS:
            server.add(str(size), TOKENS[:size], COUNT)
            server.step()  # so that some decode while others are prompts
        server.finish()
        server.add("again", TOKENS[:70], COUNT)
        found.append(dict(server.finish()))
        assert server.cached["again"] == 64  # blocks of 16 tokens
    assert found[0] == found[1] == found[2]
    assert found[0]["again"] == found[0]["70"]
    for size in PROMPTS:
        assert is_best(model, TOKENS[:size], found[0][str(size)])


@pytest.mark.parametrize("name", NAMES)
def test_a_preempted_sequence_is_computed_again(
    written: Callable[[str], tuple[Path, Any]], engine: Callable[[Path, int], LoadedEngine], name: str
) -> None:
    directory, model = written(name)
    loaded = engine(directory, 64)
    server = Server(loaded, num_blocks=loaded.cache.blocks_of(100) + 3, enable_prefix_caching=False)
    for begin in (0, 40):
        server.add(str(begin), TOKENS[begin : begin + 60], COUNT)
    tokens = server.finish()
    assert server.preempted > 0
    assert all(is_best(model, TOKENS[begin : begin + 60], tokens[str(begin)]) for begin in (0, 40))
