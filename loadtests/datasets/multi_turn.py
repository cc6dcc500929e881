"""`multi-turn`: conversations. Each turn is sent with all turns and responses before it, after a time to think.

`num_prompts` counts requests, so the last session may be shorter. `random_input_len` is what each turn adds; the
`prefix_len` tokens of a system prompt come before the first.
"""

from __future__ import annotations

import numpy as np

from neuronserve.loadtests.datasets.token_prompts import PrefixTokens
from neuronserve.loadtests.prompts import IdPrompt, Session, Turn
from neuronserve.loadtests.specs import DatasetSpec
from neuronserve.loadtests.vocabulary import Vocabulary
from neuronserve.server.workload.lengths import LengthRange
from neuronserve.server.workload.synthetic import random_stream


def multi_turn_sessions(spec: DatasetSpec, vocabulary: Vocabulary, seed: int) -> list[Session]:
    """Sessions of `spec.num_turns` turns, `spec.num_prompts` turns in all."""
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
    """Prompts that each turn adds, without the prefix of the first."""
    n, ratio = spec.num_prompts, spec.random_range_ratio
    inputs = LengthRange.around(spec.random_input_len, ratio).draw(random_stream(seed, "input_len"), n).tolist()
    outputs = LengthRange.around(spec.random_output_len, ratio).draw(random_stream(seed, "output_len"), n).tolist()
    thinks_s = random_stream(seed, "think_time").exponential(spec.think_time_s, n) if spec.think_time_s else np.zeros(n)
    random = random_stream(seed, "tokens")
    return [
        Turn(IdPrompt((vocabulary.draw(random, input_len),)), output_len, think_s)
        for input_len, output_len, think_s in zip(inputs, outputs, thinks_s.tolist(), strict=True)
    ]
