"""Configuration of speculative decoding; the keys of --speculative-config, which are vLLM's, are its fields."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from .formats import Quantization

DraftMethod = Literal["ngram", "suffix", "draft_model"]

MOST_SAMPLED = 64  # rows of a step with drafts: where so many sequences decode, drafts do not pay


def is_accepted(rate: float, seed: int, index: int) -> bool:
    """Draw whether a draft of the generated token before `index` is accepted, with the chance `rate`."""
    return random.Random(f"{seed}:{index}").random() < rate


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """How tokens are drafted, and how many of one sequence are verified in a step at most."""

    method: DraftMethod
    num_speculative_tokens: int = 15
    prompt_lookup_min: int = 3  # tokens that must be repeated before ngram drafts those that followed
    prompt_lookup_max: int = 16  # longest repetition that ngram compares
    suffix_decoding_max_tree_depth: int = 24  # longest repetition that suffix compares, its draft included
    suffix_decoding_max_cached_requests: int = 10_000  # outputs of other requests to draft from
    suffix_decoding_max_spec_factor: float = 1.0  # tokens of a draft for each repeated token
    suffix_decoding_min_token_prob: float = 0.1  # least share of the earlier occurrences that continue with the draft
    synthetic_acceptance_length: float | None = None  # mean tokens of a step with drafts; None: drafts are verified
    model: str | None = None  # of draft_model: its local directory; None for other methods
    quantization: Quantization | Literal["none"] | None = None  # of that model; None = as its files are

    def most_drafts(self, max_num_seqs: int) -> int:
        """Return the most drafts of a step of at most `max_num_seqs` sequences."""
        return min(MOST_SAMPLED - 1, max_num_seqs * self.num_speculative_tokens)

    @property
    def acceptance_rate(self) -> float | None:
        """Chance that a draft after accepted ones is accepted, whose mean length is the synthetic one; None: verified.

        A full draft of k tokens gives 1 + a + ... + a^k tokens (Leviathan et al. 2023, arXiv 2211.17192, equation 1).
        """
        if self.synthetic_acceptance_length is None:
            return None
        low, high = 0.0, 1.0
        for _ in range(40):
            rate = (low + high) / 2
            mean = sum(rate**right for right in range(self.num_speculative_tokens + 1))
            low, high = (rate, high) if mean < self.synthetic_acceptance_length else (low, rate)
        return (low + high) / 2
