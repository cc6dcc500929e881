"""Drafts by the layer of a model that predicts a further token (MTP).

It computes each row that the model has computed, as soon as the next token is known: the row's normed state and that
token give a guess of the token after it. Deeper drafts take the layer's own state in place of the model's. Its keys and
values are in the blocks of the model's. The last row of a cached prefix has those of the token that followed first: a
worse guess for another text, and no other output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ..types import SampledToken, ScheduledSeq, StepPlan, StepResult
from .draft_model import NO_GUESS, draft_row, goes_on, with_drafts
from .pipeline.rows import Rows
from .runner import ModelRunner


class StateBuffers(NamedTuple):
    """Rows of states, [tokens, padded hidden size], in the memory of programs."""

    of_model: Rows  # normed
    given: Rows
    own: Rows


class _Guess(NamedTuple):
    """The first draft of a sequence, and the layer's state from which it follows."""

    length: int  # of the text before it
    token: SampledToken
    state: Rows  # [padded hidden size]


class Predictor:
    """Implements neuronserve.server.engine.runner.Around."""

    def __init__(self, runner: ModelRunner, group: int, states: StateBuffers) -> None:
        """Draft with the layer that `runner` computes, in the blocks of table `group` of each sequence."""
        self.runner, self._group, self._states = runner, group, states
        self._guesses: dict[str, _Guess] = {}  # of sequences that were sampled last
        self._most = len(runner.inputs.query_start) - 1

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
        texts = {seq.request_id: [*seq.history] for seq in plan.decode if seq.num_drafts}
        going: list[tuple[ScheduledSeq, Rows]] = []
        for seq in (each for each in plan.decode if each.num_drafts):
            text, guess = texts[seq.request_id], self._guesses.get(seq.request_id)
            if guess is None or guess.length != len(text):  # many other sequences were sampled since
                text += [NO_GUESS] * seq.num_drafts
            elif goes_on(seq, text, guess.token):
                going.append((seq, guess.state))
        while going:  # once for each further draft of the longest row of drafts
            rows = [self._row(seq, text := texts[seq.request_id], len(text) - 2, 1) for seq, _ in going]
            sampled = self._compute(rows, [state for _, state in going])
            states = self._states.own[: len(rows)].copy()
            going = [
                (seq, state)
                for (seq, _), state in zip(going, states, strict=True)
                if goes_on(seq, texts[seq.request_id], sampled[seq.request_id])
            ]
        return with_drafts(plan, texts)

    def _follow(self, plan: StepPlan, result: StepResult) -> None:
        """Compute the rows of a step whose next tokens are known, and keep the first draft of each sampled sequence."""
        rows: list[ScheduledSeq] = []
        places: list[int] = []
        ends = accumulate(len(seq.token_ids) for seq in plan.seqs)
        for seq, end in zip(plan.seqs, ends, strict=True):
            new = _new_tokens(seq, result)
            text = [*seq.history, *new] if new else seq.history
            if (count := min(len(seq.token_ids), len(text) - 1 - seq.start)) > 0:
                first = end - len(seq.token_ids)
                places += range(first, first + count)
                rows.append(self._row(seq, text, seq.start, count)._replace(needs_sample=bool(new)))
        if not rows:
            return
        sampled = self._compute(rows, self._states.of_model[places])
        for row, end in zip(rows, accumulate(len(row.token_ids) for row in rows), strict=True):
            self._guesses.pop(row.request_id, None)
            if row.needs_sample:
                state = self._states.own[end - 1].copy()
                self._guesses[row.request_id] = _Guess(len(row.history), sampled[row.request_id], state)
        for request_id in list(self._guesses)[: -self._most]:
            del self._guesses[request_id]

    def _row(self, seq: ScheduledSeq, text: Sequence[int], begin: int, count: int) -> ScheduledSeq:
        """Return `count` rows from position `begin` on, each with the token after its position."""
        return draft_row(seq, self._group, text, text[begin + 1 : begin + 1 + count], begin)

    def _compute(self, rows: Sequence[ScheduledSeq], states: Iterable[Rows] | Rows) -> dict[str, SampledToken]:
        """Return the tokens that follow sampled rows, given the state of each token."""
        given = np.asarray(states)
        self._states.given[: len(given)] = given
        return self.runner.execute(StepPlan(0, (), tuple(rows))).sampled


def _new_tokens(seq: ScheduledSeq, result: StepResult) -> list[int]:
    """Return the tokens that a step has sampled for `seq`; none after an error, which ends it."""
    first = result.sampled.get(seq.request_id)
    new = () if first is None else (first, *result.further.get(seq.request_id, ()))
    return [] if any(each.error is not None for each in new) else [each.token_id for each in new]
