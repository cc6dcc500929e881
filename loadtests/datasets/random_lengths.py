"""`random` and `prefix`: random tokens of chosen lengths; prompts of one group begin with the same tokens.

With one group this is a system prompt that all share; with many, a set of documents or tenants. Groups are equally
likely. `prefix_len` comes on top of `random_input_len`, as in `vllm bench serve`.
"""

from __future__ import annotations

import numpy as np

from loadtests.datasets.lengths import uniform_lengths
from loadtests.prompts import IdPrompt, Session, single
from loadtests.specs import DatasetSpec
from loadtests.vocabulary import Vocabulary


def random_sessions(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Session]:
    """`spec.num_prompts` sessions of one turn."""
    generator = np.random.default_rng(seed)
    n = spec.num_prompts
    prefixes = [vocabulary.draw(generator, spec.prefix_len) for _ in range(spec.num_prefixes)]
    groups = generator.integers(0, spec.num_prefixes, n)
    inputs = uniform_lengths(generator, spec.random_input_len, spec.random_range_ratio, n)
    outputs = uniform_lengths(generator, spec.random_output_len, spec.random_range_ratio, n)
    return [
        single(IdPrompt((prefixes[group], vocabulary.draw(generator, input_len))), output_len)
        for group, input_len, output_len in zip(groups, inputs, outputs, strict=True)
    ]
