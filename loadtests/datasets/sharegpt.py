"""`sharegpt`: random tokens, with lengths as ShareGPT's conversations have them."""

from __future__ import annotations

import numpy as np

from loadtests.datasets.lengths import scaled
from loadtests.datasets.sharegpt_histogram import COUNTS, INPUT_EDGES, OUTPUT_EDGES
from loadtests.prompts import IdPrompt, Session, single
from loadtests.specs import DatasetSpec
from loadtests.vocabulary import Vocabulary


def sharegpt_sessions(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Session]:
    """`spec.num_prompts` sessions of one turn; lengths are multiplied by `spec.length_scale`."""
    generator = np.random.default_rng(seed)
    return [
        single(IdPrompt((vocabulary.draw(generator, scaled(a, spec.length_scale)),)), scaled(b, spec.length_scale))
        for a, b in draw_lengths(generator, spec.num_prompts)
    ]


def draw_lengths(generator: np.random.Generator, n: int) -> list[tuple[int, int]]:
    """`n` pairs of input and output length: a bin by its count, then uniform inside it."""
    counts = np.array(COUNTS, dtype=np.float64)
    bins = generator.choice(counts.size, n, p=counts.ravel() / counts.sum())
    rows, columns = np.unravel_index(bins, counts.shape)
    inputs = generator.integers(np.array(INPUT_EDGES)[rows], np.array(INPUT_EDGES)[rows + 1])
    outputs = generator.integers(np.array(OUTPUT_EDGES)[columns], np.array(OUTPUT_EDGES)[columns + 1])
    return [(int(a), int(b)) for a, b in zip(inputs, outputs, strict=True)]
