"""`mooncake-trace`: arrivals, lengths and shared prefixes of Mooncake's traces (JSONL); equal hashes, equal tokens.

Format: https://github.com/kvcache-ai/Mooncake. A line has timestamp (ms), input_length, output_length and hash_ids,
one for each block of 512 input tokens; a hash stands for the block and all before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from loadtests.datasets.lengths import scaled
from loadtests.datasets.trace_file import TraceFile
from loadtests.prompts import IdPrompt, Ids, Session, single
from loadtests.specs import DatasetSpec
from loadtests.vocabulary import Vocabulary

BLOCK_TOKENS = 512


class _Row(msgspec.Struct):
    timestamp: float  # milliseconds
    input_length: int
    output_length: int
    hash_ids: list[int]


def mooncake_sessions(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Session]:
    """The first `spec.num_prompts` lines. Raises DatasetError with the line."""
    blocks = _Blocks(vocabulary, seed, scaled(BLOCK_TOKENS, spec.length_scale))
    file = TraceFile(spec.dataset_path, "mooncake-trace")
    sessions: list[Session] = []
    origin: float | None = None
    for row in _rows(file):
        origin = row.timestamp if origin is None else origin
        prompt = blocks.prompt(row.hash_ids, scaled(row.input_length, spec.length_scale))
        output_len = scaled(row.output_length, spec.length_scale)
        sessions.append(single(prompt, output_len, (row.timestamp - origin) / 1e3))
        if len(sessions) == spec.num_prompts:
            break
    file.require_any(len(sessions))
    return sessions


class _Blocks:
    """Tokens of each hash, made once and shared by all prompts that have it."""

    def __init__(self, vocabulary: Vocabulary, seed: int, size: int) -> None:
        self._vocabulary, self._seed, self._size = vocabulary, seed, size
        self._known: dict[int, Ids] = {}

    def prompt(self, hash_ids: list[int], length: int) -> IdPrompt:
        """A prompt of `length` tokens, the last block cut. Rounding of scaled blocks may ask for a few tokens more
        than the blocks hold: those are the prompt's own, from its last hash."""
        parts: list[Ids] = []
        for hash_id in hash_ids:
            block = self._block(hash_id)
            parts.append(block[: max(0, length)])
            length -= len(block)
        if length > 0:
            parts.append(self._draw(hash_ids[-1], 1, length))
        return IdPrompt(tuple(part for part in parts if part))

    def _block(self, hash_id: int) -> Ids:
        if hash_id not in self._known:
            self._known[hash_id] = self._draw(hash_id, 0, self._size)
        return self._known[hash_id]

    def _draw(self, hash_id: int, stream: int, length: int) -> Ids:
        return self._vocabulary.draw(np.random.default_rng([self._seed, stream, hash_id]), length)


def _rows(file: TraceFile) -> Iterator[_Row]:
    decoder = msgspec.json.Decoder(_Row)
    for line in file.lines():
        try:
            row = decoder.decode(line)
        except msgspec.MsgspecError as error:
            file.fail(str(error))
        if row.input_length < 1 or row.output_length < 0 or min(row.hash_ids, default=-1) < 0:
            file.fail("lengths must be positive, and there must be hash_ids of 0 or more")
        needed = -(-row.input_length // BLOCK_TOKENS)
        if len(row.hash_ids) != needed:
            file.fail(f"{len(row.hash_ids)} hash_ids for {row.input_length} tokens: {needed} are needed")
        file.require_order(row.timestamp / 1e3)
        yield row
