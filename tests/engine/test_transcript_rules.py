"""Limits of transcripts against transformers' processors of Whisper's logits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from neuronserve.server.engine.transcript_rules import apply_rules
from neuronserve.server.types import TranscriptRules

END, FIRST, VOCAB = 20, 26, 40  # text, then the end and other marks, then times
PROMPT = [21, 22]


@given(
    st.lists(st.one_of(st.integers(0, END - 1), st.integers(FIRST, VOCAB - 1)), max_size=6),
    st.integers(0, 2**32 - 1),
    st.one_of(st.none(), st.integers(0, 5)),
    st.booleans(),
)
def test_the_same_tokens_are_forbidden(written: list[int], seed: int, most: int | None, has_times: bool) -> None:
    rules = TranscriptRules((1, 2), (3, END), FIRST if has_times else None, most)
    row = np.random.default_rng(seed).normal(size=VOCAB).astype(np.float32) * 3
    config = SimpleNamespace(
        no_timestamps_token_id=FIRST - 1, eos_token_id=END, bos_token_id=END, max_initial_timestamp_index=most
    )
    ids = torch.tensor([PROMPT + written])
    want = torch.tensor(row[None].copy())
    begin = SuppressTokensAtBeginLogitsProcessor(list(rules.begin_suppressed), len(PROMPT))
    for processor in (
        begin,
        SuppressTokensLogitsProcessor(list(rules.suppressed)),
        *([WhisperTimeStampLogitsProcessor(config, len(PROMPT))] if has_times else []),
    ):
        want = processor(ids, want)
    apply_rules(row, rules, written, (END,))
    np.testing.assert_array_equal(row, want[0].numpy())
