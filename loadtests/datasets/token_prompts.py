"""Prompts of random tokens: one request a session with the lengths and prefixes of a workload, or conversations.

A conversation sends each turn with all turns and responses before it, after a time to think. `num_prompts` counts
requests, so the last session may be shorter. `random_input_len` is what each turn adds; the `prefix_len` tokens of a
system prompt come before the first.
"""

from __future__ import annotations

import numpy as np

from ...workload.lengths import LengthRange
from ...workload.synthetic import random_stream
from ...workload.workload import Workload
from ..prompts import IdPrompt, Ids, Session, Turn, single
from ..specs import DatasetSpec
from ..vocabulary import Vocabulary


def workload_sessions(
    workload: Workload, vocabulary: Vocabulary, seed: int, has_arrivals: bool = False
) -> list[Session]:
    """Return a session of one turn for each request; `has_arrivals` keeps the workload's arrival times."""
    prefixes = PrefixTokens(vocabulary, seed, workload.prefix_block)
    random = random_stream(seed, "tokens")
    names = workload.prefixes or ((),) * len(workload)
    requests = zip(workload.input_len.tolist(), workload.output_len.tolist(), workload.arrival_s.tolist(), strict=True)
    sessions = []
    for (input_len, output_len, arrival_s), prefix in zip(requests, names, strict=True):
        shared = prefixes.parts(prefix, input_len)
        own = vocabulary.draw(random, input_len - sum(map(len, shared)))
        prompt = IdPrompt(tuple(part for part in (*shared, own) if part))
        sessions.append(single(prompt, output_len, arrival_s if has_arrivals else None))
    return sessions


class PrefixTokens:
    """Tokens of named blocks; each is drawn once and shared by all prompts that begin with it."""

    def __init__(self, vocabulary: Vocabulary, seed: int, block_len: int) -> None:
        self._vocabulary, self._seed, self._block_len = vocabulary, seed, block_len
        self._known: dict[int, Ids] = {}

    def parts(self, names: tuple[int, ...], most: int) -> list[Ids]:
        """Return the blocks in order, cut to `most` tokens."""
        blocks = [self._block(name) for name in names]
        return [block[: max(0, most - i * self._block_len)] for i, block in enumerate(blocks)]

    def _block(self, name: int) -> Ids:
        if name not in self._known:
            random = random_stream(self._seed, "prefix_tokens", name)
            self._known[name] = self._vocabulary.draw(random, self._block_len)
        return self._known[name]


def multi_turn_sessions(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Session]:
    """Return sessions of `spec.num_turns` turns, with `spec.num_prompts` turns in total."""
    starts = range(0, spec.num_prompts, spec.num_turns)
    turns = _turns(spec, vocabulary, seed)
    prefixes = PrefixTokens(vocabulary, seed, spec.prefix_len)
    names = random_stream(seed, "prefix").integers(spec.num_prefixes, size=len(starts)).tolist()
    sessions = []
    for start, name in zip(starts, names, strict=True):
        first, *others = turns[start : start + spec.num_turns]
        shared = prefixes.parts((name,), spec.prefix_len) if spec.prefix_len else []
        assert isinstance(first.prompt, IdPrompt)
        opening = Turn(IdPrompt((*shared, *first.prompt.parts)), first.output_len)
        sessions.append(Session((opening, *others)))
    return sessions


def _turns(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Turn]:
    """Return the new prompt of each turn, without the prefix of the first."""
    n, ratio = spec.num_prompts, spec.random_range_ratio
    inputs = LengthRange.around(spec.random_input_len, ratio).draw(random_stream(seed, "input_len"), n).tolist()
    outputs = LengthRange.around(spec.random_output_len, ratio).draw(random_stream(seed, "output_len"), n).tolist()
    thinks_s = random_stream(seed, "think_time").exponential(spec.think_time_s, n) if spec.think_time_s else np.zeros(n)
    random = random_stream(seed, "tokens")
    return [
        Turn(IdPrompt((vocabulary.draw(random, input_len),)), output_len, think_s)
        for input_len, output_len, think_s in zip(inputs, outputs, thinks_s.tolist(), strict=True)
    ]
