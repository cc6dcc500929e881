"""`multi-turn`: conversations. Each turn is sent with all turns and answers before it, after a time to think.

`num_prompts` counts requests, so the last session may be shorter. `random_input_len` is what each turn adds; the
`prefix_len` tokens of a system prompt come before the first.
"""

from __future__ import annotations

import numpy as np

from loadtests.datasets.lengths import uniform_lengths
from loadtests.prompts import IdPrompt, Ids, Session, Turn
from loadtests.specs import DatasetSpec
from loadtests.vocabulary import Vocabulary


def multi_turn_sessions(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Session]:
    """Sessions of `spec.num_turns` turns, `spec.num_prompts` turns in all."""
    generator = np.random.default_rng(seed)
    prefixes = [vocabulary.draw(generator, spec.prefix_len) for _ in range(spec.num_prefixes)]
    sessions = []
    for start in range(0, spec.num_prompts, spec.num_turns):
        prefix = prefixes[int(generator.integers(len(prefixes)))]
        num_turns = min(spec.num_turns, spec.num_prompts - start)
        sessions.append(_session(spec, vocabulary, generator, (prefix, num_turns)))
    return sessions


def _session(
    spec: DatasetSpec, vocabulary: Vocabulary, generator: np.random.Generator, shape: tuple[Ids, int]
) -> Session:
    prefix, n = shape
    inputs = uniform_lengths(generator, spec.random_input_len, spec.random_range_ratio, n)
    outputs = uniform_lengths(generator, spec.random_output_len, spec.random_range_ratio, n)
    thinks = generator.exponential(spec.think_time_s, n) if spec.think_time_s else np.zeros(n)
    turns = []
    for i, (input_len, output_len) in enumerate(zip(inputs, outputs, strict=True)):
        new = vocabulary.draw(generator, input_len)
        prompt = IdPrompt((prefix, new) if i == 0 else (new,))
        turns.append(Turn(prompt, output_len, float(thinks[i]) if i else 0.0))
    return Session(tuple(turns))
