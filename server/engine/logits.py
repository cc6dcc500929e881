"""Changes of a request to its logits before sampling, and its log-probabilities: rare, so one row at a time."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from server.types import ScheduledSeq, TokenLogprobs

Row = npt.NDArray[np.float32]


def num_generated(seq: ScheduledSeq) -> int:
    """Number of tokens that the sequence has generated so far."""
    return len(seq.history) - seq.num_prompt_tokens


def changes_logits(seq: ScheduledSeq) -> bool:
    """True when `adjust` would change the row."""
    s = seq.sampling
    return bool(
        s.logit_bias or s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1.0 or _bans_ends(seq)
    )


def adjust(row: Row, seq: ScheduledSeq) -> None:
    """Apply bias, penalties and min_tokens to `row` [vocab], in place.

    Repetition penalty (Keskar et al. 2019) counts prompt and output; presence and frequency, as OpenAI's API defines
    them, count the output only.
    """
    s = seq.sampling
    for token, bias in s.logit_bias:
        row[token] += bias
    if s.repetition_penalty != 1.0:
        seen = np.unique(np.fromiter(seq.history, np.int64, len(seq.history)))
        row[seen] = np.where(row[seen] > 0, row[seen] / s.repetition_penalty, row[seen] * s.repetition_penalty)
    if s.presence_penalty or s.frequency_penalty:
        drawn, counts = np.unique(np.array(seq.history[seq.num_prompt_tokens :], np.int64), return_counts=True)
        row[drawn] -= s.presence_penalty + s.frequency_penalty * counts
    if _bans_ends(seq):
        row[list(s.eos_token_ids + s.stop_token_ids)] = -math.inf


def _bans_ends(seq: ScheduledSeq) -> bool:
    """True when the sequence may not end yet. With a grammar the mask does this (`grammar_masks.py`)."""
    return num_generated(seq) < seq.sampling.min_tokens and not seq.sampling.grammar


class RawLogprobs:
    """Log-probabilities of one row before any change but its grammar's; made before the token is sampled."""

    def __init__(self, row: Row, num_top: int) -> None:
        self._raw = row.astype(np.float64)
        peak = self._raw.max()
        self._log_total = peak + math.log(np.exp(self._raw - peak).sum())
        best = np.argpartition(self._raw, -num_top)[-num_top:] if num_top else np.empty(0, np.int64)
        self._best = best[np.lexsort((best, -self._raw[best]))]

    def of(self, token: int) -> TokenLogprobs:
        """The sampled token's and the best tokens' log-probabilities, best first."""
        return TokenLogprobs(
            sampled=float(self._raw[token] - self._log_total),
            top_token_ids=tuple(int(t) for t in self._best),
            top_logprobs=tuple(float(self._raw[t] - self._log_total) for t in self._best),
        )
