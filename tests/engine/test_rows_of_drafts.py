"""A row of several tokens of a sequence that decodes gives the logits of one token at a time, to the last bit.

Rows have tokens that are rejected at their end, whose keys are written again and whose states are dropped.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neuronserve.server.config import LoraConfig, LoraModule
from neuronserve.server.device.attention_layout import PARTITION
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.types import SamplingParams, ScheduledSeq
from tests.depth import thorough
from tests.engine.config import engine_config
from tests.parity.latent_models import random_model, save
from tools.random_checkpoint.adapter import adapter_tensors, write_adapter
from tools.random_checkpoint.shapes import TINY
from tools.random_checkpoint.writer import Options, write_checkpoint

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
PROMPT = 21
# Accepted and rejected tokens of each row, and of the rows of a second sequence in the same steps.
ROWS = [(1, 4), (5, 0), (3, 1), (8, 0), (1, 0), (2, 6), (7, 0)]
BESIDE = [(2, 0), (1, 0), (1, 3), (4, 4), (1, 0), (1, 1), (5, 0)]


class Decoding:
    """One sequence of known tokens over a runner, without a scheduler."""

    def __init__(self, cache: KVCacheManager, tokens: Sequence[int], lora: str) -> None:
        self._cache, self.tokens, self._lora = cache, tokens, lora
        self.blocks, self.end, self._accepted = cache.open(""), 0, 0

    def row(self, accepted: int, rejected: int = 0) -> ScheduledSeq:
        """Return a row of the next tokens and of others in place of those that follow."""
        wrong = [(token + 1) % 100 for token in self.tokens[self.end + accepted :]][:rejected]
        row, states = (*self.tokens[self.end : self.end + accepted], *wrong), self._cache.states
        assert len(row) == accepted + rejected
        assert self._cache.allocate(self.blocks, self.end + len(row))
        state = (0, 0) if states is None else states.place_row(self.blocks.state, self.end, len(row), 1)
        known, self._accepted = [*self.tokens[: self.end], *row], accepted
        return ScheduledSeq("", row, self.end, self.blocks.tables, True, GREEDY, known, 1, self._lora, state=state)

    def accept(self) -> None:
        if self._cache.states is not None:
            self._cache.states.accept(self.blocks.state, self.end, self._accepted)
        self.end += self._accepted
        self._cache.drop(self.blocks, self.end)


def step(engine: LoadedEngine, seqs: Sequence[ScheduledSeq]) -> list[npt.NDArray[np.float32]]:
    """Return the logits of every token of each sequence."""
    runner, sizes = engine.runner, [len(seq.token_ids) for seq in seqs]
    program = runner._programs.of(runner.inputs.fill(seqs))
    rows = range(sum(sizes))[-runner._sampler.num_rows :]
    runner.inputs.sample(rows)
    runner.pool.run(program, runner.inputs.address)
    return np.split(runner._sampler.logits[: len(rows)].copy(), np.cumsum(sizes)[:-1])


Rows = Sequence[tuple[int, int]]


def decode(engine: LoadedEngine, prompt: int, *each: tuple[Sequence[int], Rows]) -> list[npt.NDArray[np.float32]]:
    """Return the logits of each sequence's tokens after its first `prompt`, in steps of a row of each."""
    cache = KVCacheManager(dataclasses.replace(engine.cache, enable_prefix_caching=False))
    lora = next((adapter.digest for adapter in engine.info.adapters), "")
    seqs = [Decoding(cache, tokens, lora) for tokens, _ in each]
    for seq in seqs:
        step(engine, [seq.row(prompt)])
        seq.accept()
    logits: list[list[npt.NDArray[np.float32]]] = [[] for _ in each]
    for rows in zip(*(rows for _, rows in each), strict=True):
        found = step(engine, [seq.row(*row) for seq, row in zip(seqs, rows, strict=True)])
        for seq, row, own, values in zip(seqs, rows, logits, found, strict=True):
            own.append(values[: row[0]])
            seq.accept()
    return [np.concatenate(own) for own in logits]


def assert_rows_change_nothing(engine: LoadedEngine, prompt: int = PROMPT) -> None:
    count = sum(accepted for accepted, _ in ROWS)
    first, second = np.random.default_rng(1).integers(0, 100, (2, prompt + count)).tolist()
    single = [decode(engine, prompt, (tokens, [(1, 0)] * count))[0] for tokens in (first, second)]
    got = decode(engine, prompt, (first, ROWS), (second, BESIDE))
    for rows, alone in zip(got, single, strict=True):
        np.testing.assert_array_equal(rows, alone[: len(rows)])


# Of each kind of layer and form of weights and cache; the last ones are nearly all other shapes.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("tiny-qwen3", {"block_size": 32}),
    ("tiny-gemma2", {"quantization": "int8", "kv_cache_dtype": "int8"}),
    ("tiny-gpt-oss", {"kv_cache_dtype": "fp8"}),
    ("tiny-qwen3-next", {"tensor_parallel_size": 2}),
    ("tiny-falcon-h1", {"quantization": "int4", "dtype": "bfloat16"}),
    ("tiny-lfm2-moe", {"dtype": "float32"}),
]
THOROUGH = [
    (shape, changes)
    for shape in TINY
    for changes in (
        {},
        {"dtype": "float32", "tensor_parallel_size": 2},
        {"quantization": "int8", "block_size": 32, "kv_cache_dtype": "int8"},
        {"quantization": "fp8"},
    )
    if (shape, changes) not in CASES
]
FEW = {"max_num_seqs": 32, "num_blocks_override": 128, "allow_unsupported_types": True}  # the sampler has 32 rows


@pytest.mark.parametrize(("shape", "changes"), [*CASES, *(thorough(*each) for each in THOROUGH)])
def test_rows_change_no_bit(tmp_path: Path, kernel_cache: str, shape: str, changes: dict[str, Any]) -> None:
    write_checkpoint(shape, tmp_path / shape, Options())
    check(load_engine(engine_config(tmp_path / shape, kernel_cache, **FEW, **changes), lambda _: None))


@pytest.mark.parametrize("name", ["deepseek-v3", "minicpm3"])
def test_rows_of_latent_attention_change_no_bit(tmp_path: Path, kernel_cache: str, name: str) -> None:
    directory = save(random_model(name), tmp_path / name)
    changes = {"device": "inf2.48xlarge", "tensor_parallel_size": 2, "kv_cache_dtype": "int8"}
    check(load_engine(engine_config(directory, kernel_cache, **FEW, **changes), lambda _: None))


@pytest.mark.parametrize("shape", ["tiny-qwen3", "tiny-qwen3-next"])
def test_rows_with_an_adapter_change_no_bit(tmp_path: Path, kernel_cache: str, shape: str) -> None:
    model, adapter = tmp_path / "model", tmp_path / "adapter"
    write_checkpoint(shape, model, Options())
    write_adapter(adapter, adapter_tensors(model, 5))
    lora = LoraConfig(1, 8, (LoraModule("adapter", str(adapter)),))
    check(load_engine(engine_config(model, kernel_cache, lora=lora, **FEW), lambda _: None))


def test_rows_whose_keys_are_not_divided_as_those_of_a_token_change_no_bit(tmp_path: Path, kernel_cache: str) -> None:
    """Contexts of more than one partition: workers divide the keys of a single token, and the tokens of a row."""
    model = tmp_path / "model"
    write_checkpoint("tiny-gpt-oss", model, Options())
    options = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 2048}
    (model / "config.json").write_text(json.dumps(options))
    limits = {"max_model_len": 1100, "max_num_batched_tokens": 1100, **FEW, "num_blocks_override": 320}
    check(load_engine(engine_config(model, kernel_cache, **limits), lambda _: None), 2 * PARTITION + 11)


def check(engine: LoadedEngine, prompt: int = PROMPT) -> None:
    try:
        assert_rows_change_nothing(engine, prompt)
    finally:
        engine.runner.close()
