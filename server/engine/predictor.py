"""Drafts by the layer of a model that predicts a further token (MTP).

It computes each row that the model has computed, as soon as the next token is known: the row's normed state and that
token give a guess of the token after it. Deeper drafts take the layer's own state, normed or not as the family has it,
in place of the model's. Its keys and values are in the blocks of the model's. The last row of a cached prefix has those
of the token that followed first: a worse guess for another text, and no other output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from ..types import SampledToken, ScheduledSeq, StepPlan, StepResult
from .draft_model import NO_GUESS, draft_row, goes_on, with_drafts
from .pipeline.rows import Rows
from .runner import ModelRunner

_Guess = tuple[int, SampledToken, Rows]  # length of the text before it, the draft, the layer's state of the last row
_MISSING = (0, SampledToken(NO_GUESS, error="no guess"), np.empty(0, np.float32))


class Predictor:
    """Implements neuronserve.server.engine.runner.Around."""

    def __init__(self, runner: ModelRunner, group: int, states: Rows, given: Rows, own: Rows) -> None:
        """Draft with the layer that `runner` computes from `given` states, in the blocks of table `group`.

        Its `own` states and the model's normed `states` are left by programs: all [tokens, padded hidden size].
        """
        self.runner, self._group, self._states, self._given, self._own = runner, group, states, given, own
        self._guesses: dict[str, _Guess] = {}  # of the sequences that were sampled last
        self._most = len(runner.inputs.query_start)

    def __call__(self, plan: StepPlan, compute: Callable[[StepPlan], StepResult]) -> StepResult:
        """Compute `plan` with drafts in the places that it has for them, then the layer's part of it."""
        begin = time.perf_counter()
        plan = self._propose(plan)
        proposed = time.perf_counter()
        result = compute(plan)
        computed = time.perf_counter()
        self._follow(plan, result)
        draft_s = time.perf_counter() - computed + proposed - begin
        return result._replace(seconds=result.seconds + draft_s, draft_s=draft_s)

    def _propose(self, plan: StepPlan) -> StepPlan:
        """Return `plan` with drafts in place of each sequence's `num_drafts` last tokens."""
        going, guesses = [seq for seq in plan.decode if seq.num_drafts], self._guesses
        texts = {seq.request_id: [*seq.history] for seq in going}
        while going:  # once for each draft of the longest row of drafts
            at = [(seq, texts[seq.request_id], guesses.get(seq.request_id, _MISSING)) for seq in going]
            at = [(seq, text, guess if guess[0] == len(text) else _MISSING) for seq, text, guess in at]
            at = [(seq, text, guess) for seq, text, guess in at if goes_on(seq, text, guess[1])]
            if going := [seq for seq, _, _ in at]:
                rows = [self._row(seq, text, len(text) - 2, 1) for seq, text, _ in at]
                guesses = self._compute(rows, np.stack([guess[2] for _, _, guess in at]))
        return with_drafts(plan, texts)

    def _follow(self, plan: StepPlan, result: StepResult) -> None:
        """Compute the rows of a step whose next tokens are known, and keep the first draft of each sampled sequence."""
        rows: list[ScheduledSeq] = []
        places: list[int] = []
        first = 0
        for seq in plan.seqs:
            new = _new_tokens(seq, result)
            text = [*seq.history, *new] if new else seq.history
            if (count := min(len(seq.token_ids), len(text) - 1 - seq.start)) > 0:
                places += range(first, first + count)
                rows.append(self._row(seq, text, seq.start, count)._replace(needs_sample=bool(new)))
            first += len(seq.token_ids)
        if rows:
            new_guesses = self._compute(rows, self._states[places])
            older = {key: guess for key, guess in self._guesses.items() if key not in new_guesses}
            self._guesses = dict([*older.items(), *new_guesses.items()][-self._most :])

    def _row(self, seq: ScheduledSeq, text: Sequence[int], begin: int, count: int) -> ScheduledSeq:
        """Return `count` rows from position `begin` on, each with the token after its position."""
        return draft_row(seq, self._group, text, text[begin + 1 : begin + 1 + count], begin)

    def _compute(self, rows: Sequence[ScheduledSeq], states: Rows) -> dict[str, _Guess]:
        """Return what follows the sampled ones of `rows`, given the state of each token."""
        self._given[: len(states)] = states
        sampled = self.runner.execute(StepPlan(0, (), tuple(rows))).sampled
        ends = [(row, end - 1) for row, end in zip(rows, accumulate(len(r.token_ids) for r in rows), strict=True)]
        at = ((row.request_id, len(row.history), last) for row, last in ends if row.needs_sample)
        return {key: (length, sampled[key], self._own[last].copy()) for key, length, last in at}


def _new_tokens(seq: ScheduledSeq, result: StepResult) -> list[int]:
    """Return the tokens that a step has sampled for `seq`; none after an error, which ends it."""
    first = result.sampled.get(seq.request_id)
    new = () if first is None else (first, *result.further.get(seq.request_id, ()))
    return [] if any(each.error is not None for each in new) else [each.token_id for each in new]
