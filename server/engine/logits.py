"""Changes that a request makes to its logits before sampling, and log-probabilities. Rare, so one row at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..types import SamplingParams, ScheduledSeq, TokenLogprobs
from .transcript_rules import apply_rules

Row = npt.NDArray[np.float32]


def num_generated(seq: ScheduledSeq) -> int:
    """Number of tokens that the sequence has generated so far."""
    return len(seq.history) - seq.num_prompt_tokens


def changes_logits(s: SamplingParams) -> bool:
    """True when `adjust` may change a row of such a sequence."""
    has_penalty = s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1.0
    return bool(s.logit_bias or has_penalty or s.min_tokens or s.transcript)


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
    if s.transcript is not None:
        apply_rules(row, s.transcript, seq.history[seq.num_prompt_tokens :], s.eos_token_ids)
    if _bans_ends(seq):
        row[list(s.eos_token_ids + s.stop_token_ids)] = -math.inf


def _bans_ends(seq: ScheduledSeq) -> bool:
    """True when the sequence may not end yet. With a grammar the mask does this (`grammar_masks.py`)."""
    return num_generated(seq) < seq.sampling.min_tokens and not seq.sampling.grammar


class RawLogprobs:
    """Log-probabilities of one row, changed by its grammar alone; made before the token is sampled."""

    def __init__(self, row: Row, num_top: int, token_ids: Sequence[int] = ()) -> None:
        """Prepare for the `num_top` best tokens, best first, or for `token_ids` in their order."""
        self._is_named = bool(token_ids)
        self._raw = row.astype(np.float64)
        peak = self._raw.max()
        self._log_total = peak + math.log(np.exp(self._raw - peak).sum())
        self._shown = np.array(token_ids, np.int64) if token_ids else best_of(self._raw, min(num_top, len(row)))

    def of(self, token: int) -> TokenLogprobs:
        """Return the log-probabilities of `token` and of the prepared tokens; `token_ids` always include it."""
        shown = [int(t) for t in self._shown]
        if self._is_named and token not in shown:
            shown.insert(0, token)
        return TokenLogprobs(
            sampled=float(self._raw[token] - self._log_total),
            top_token_ids=tuple(shown),
            top_logprobs=tuple(float(self._raw[t] - self._log_total) for t in shown),
            rank=int(np.count_nonzero(self._raw >= self._raw[token])),
        )


def best_of(row: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.int64]:
    """Return the `count` tokens with the largest values, best first; among equals the lower token first."""
    if count == 1:
        return np.array([row.argmax()])  # the usual count of scoring clients, at a tenth of the time
    best = np.argpartition(row, -count)[-count:] if count else np.empty(0, np.int64)
    return best[np.lexsort((best, -row[best]))]


class PromptRow(NamedTuple):
    """A row of a step whose logits predict a token of the prompt."""

    row: int
    request_id: str
    token_id: int
    num_top: int


def prompt_rows(seqs: Sequence[ScheduledSeq]) -> list[PromptRow]:
    """Return the rows that give log-probabilities of prompts, in the order of the step."""
    rows: list[PromptRow] = []
    first = 0  # row of the sequence's first token
    for seq in seqs:
        num_top = seq.sampling.prompt_logprobs or 0
        rows += [
            PromptRow(first + position - 1 - seq.start, seq.request_id, seq.history[position], num_top)
            for position in seq.prompt_targets
        ]
        first += len(seq.token_ids)
    return rows


def prompt_logprobs(rows: Row, targets: Sequence[PromptRow]) -> list[TokenLogprobs]:
    """Return the log-probabilities of each target from `rows` [len(targets), vocab]; -infinity if a row is not finite.

    Exponentials are float32, their sums float64: a prompt has many rows, and an error of 1e-7 is below that of the
    float32 logits.
    """
    with np.errstate(invalid="ignore"):
        peaks = rows.max(axis=1)
        log_totals = peaks + np.log(np.exp(rows - peaks[:, None]).sum(axis=1, dtype=np.float64))
    found = []
    for row, target, log_total in zip(rows, targets, log_totals.tolist(), strict=True):
        if not math.isfinite(log_total):
            found.append(TokenLogprobs(-math.inf))
            continue
        shown = best_of(row, min(target.num_top, len(row)))
        found.append(
            TokenLogprobs(
                sampled=float(row[target.token_id]) - log_total,
                top_token_ids=tuple(shown.tolist()),
                top_logprobs=tuple((row[shown].astype(np.float64) - log_total).tolist()),
                rank=int(np.count_nonzero(row >= row[target.token_id])),
            )
        )
    return found
