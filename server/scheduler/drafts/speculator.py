"""Drafts of all sequences of one scheduler: made, placed, and compared with the tokens that come.

A draft is scored by each token that follows it, whether a step verified it or plain decoding came to the same token.
So a sequence that gets no drafts is still watched. Where searches are in vain or their drafts wrong, a sequence is
looked at once in a few steps, all of them in the same one: the steps between cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...config import SchedulerConfig
from ...config.speculation import SpeculationConfig
from ...types import SamplingParams
from ..sequence import Sequence as OpenSequence
from .depth import Record, StepCosts, best_depths
from .drafters import DRAFTERS
from .text_index import TextIndex

NO_PASSES = 0, 0, 0.0  # of a draft model in a step: sequences, passes over them, seconds of all
_LOOKS_AHEAD = 4  # tokens of a draft that are compared with one that came in place of another
_MOST_UNPAID = 4  # drafts in a row that were not worth their rows, each of which doubles the pause
_MOST_WRONG = 3  # drafts in a row, after right ones, until the rest is dropped


class _Drafting:
    """State of one sequence: its index, its record, and the draft that follows its last token."""

    __slots__ = ("at", "draft", "ends", "index", "num_known", "num_unpaid", "num_wrong", "record", "wakes")

    def __init__(self, seq: OpenSequence, width: int, record: Record) -> None:
        sampling = seq.request.sampling
        self.index, self.record = TextIndex(width), record
        self.ends = sampling.stop_token_ids + (() if sampling.ignore_eos else sampling.eos_token_ids)
        self.draft: Sequence[int] = ()
        self.at = 0  # the draft's first token that has not come yet
        self.num_known = len(seq.token_ids)  # tokens that were compared
        self.num_wrong = 0  # drafts in a row, after right ones
        self.num_unpaid = 0  # looks in a row at drafts that were not worth their rows
        self.wakes = 0  # step in which the sequence is looked at again

    def take(self, draft: Sequence[int]) -> None:
        """Go on with a draft that a search has found."""
        self.draft, self.at = draft, 0
        if not self.record.run:
            self.record.is_resumed, self.num_wrong = False, 0

    def sleep(self, step_id: int, pause: int) -> None:
        """Put off the next look from step `step_id` to the next multiple of `pause`, at which others wake too."""
        self.wakes = (step_id // pause + 1) * pause

    @property
    def num_left(self) -> int:
        """Tokens of the draft that have not come yet."""
        return len(self.draft) - self.at

    def compare(self, tokens: Sequence[int]) -> None:
        """Compare the draft with tokens that have come.

        After a token that differs the draft goes on: behind the same token if it follows soon, else with its next one.
        """
        self.num_known += len(tokens)
        for token in tokens:
            if self.at >= len(self.draft):
                return
            run, is_right = self.record.run, self.draft[self.at] == token
            self.record.add(is_right)
            self.at += 1
            if is_right:
                continue
            self.num_wrong = 1 if run > 1 else self.num_wrong + 1 if self.num_wrong else _MOST_WRONG
            self.record.is_resumed = self.num_wrong < _MOST_WRONG
            if not self.record.is_resumed:
                self.at, self.num_wrong = len(self.draft), 0
            elif token in (near := self.draft[self.at : self.at + _LOOKS_AHEAD]):
                self.at += near.index(token) + 1


class Speculator:
    """Decides on drafts. Pure: reads no clock, and the tokens of a request never depend on it."""

    def __init__(self, config: SpeculationConfig, limits: SchedulerConfig) -> None:
        self._rate, self._max_model_len = config.acceptance_rate, limits.max_model_len
        self._most = min(config.num_speculative_tokens, limits.max_chunk - 1)  # of one sequence
        self._most_drafts = config.most_drafts(limits.max_num_seqs)  # of a step
        self._drafter = DRAFTERS[config.method](config)
        self._usual = Record(self._rate)  # what is known of sequences without history
        self._costs_of = StepCosts(), StepCosts()  # the second of steps with rows that cost the host more
        self._costs = self._costs_of[0]  # of the present steps
        self._expected = 1.0  # tokens of the latest step with drafts
        self._of: dict[OpenSequence, _Drafting] = {}  # of open sequences that have decoded
        self.wakes = 0  # step before which there are no drafts

    def drafts(self, seqs: Sequence[OpenSequence], budget: int, step_id: int) -> dict[OpenSequence, tuple[int, ...]]:
        """Return the drafts of `seqs`, which all decode in step `step_id`: as many as are worth their rows.

        At most `budget` drafts are returned.
        """
        for seq in seqs:
            if seq not in self._of:
                self._of[seq] = _Drafting(seq, self._drafter.width, Record(self._rate, self._usual))
        self._costs = self._costs_of[any([_is_costly(seq.request.sampling) for seq in seqs])]
        found: list[tuple[OpenSequence, Sequence[int]]] = []
        known: list[tuple[Record, int]] = []
        least = self._costs.least_chance(len(seqs)) if seqs else 1.0
        for seq in seqs:
            drafting = self._of[seq]
            if drafting.wakes > step_id:
                continue
            self._look(seq, drafting)
            is_drafted = drafting.num_left > 0 and drafting.record.chance >= least
            if is_drafted and (left := self._usable(seq, drafting)):
                found.append((seq, left))
                known.append((drafting.record, len(left)))
            drafting.sleep(step_id, drafting.record.pause)
        depths = best_depths(known, len(seqs), max(0, min(budget, self._most_drafts)), self._costs)
        self._expected = len(seqs) + sum(sum(each.chances(n)) for (each, _), n in zip(known, depths, strict=True))
        for (seq, _), depth in zip(found, depths, strict=True):
            drafting = self._of[seq]
            drafting.num_unpaid = 0 if depth else min(drafting.num_unpaid + 1, _MOST_UNPAID)
            drafting.sleep(step_id, int(2**drafting.num_unpaid))
        self.wakes = min([drafting.wakes for drafting in self._of.values()], default=0)
        return {seq: tuple(left[:depth]) for (seq, left), depth in zip(found, depths, strict=True) if depth}

    def observe(
        self, num_rows: int, num_tokens: int | None, seconds: float, passes: tuple[int, int, float] = NO_PASSES
    ) -> None:
        """Learn what a step of `num_rows` rows cost, and of `num_tokens` what it brought; None: it had no drafts."""
        del passes
        if num_tokens is None:
            self._costs.forgive()
        else:
            self._costs.compare(num_tokens, self._expected, num_rows, seconds)
        self._costs.observe(num_rows, seconds)

    def count(self, seq: OpenSequence, num_verified: int, num_accepted: int) -> None:
        """Learn nothing from drafts that a step verified: every token is compared with its draft."""

    def close(self, seq: OpenSequence) -> None:
        """Learn from a sequence that has ended, and forget it."""
        if (drafting := self._of.pop(seq, None)) is not None:
            self._usual.learn(drafting.record)
            self._drafter.close(seq)

    def _usable(self, seq: OpenSequence, drafting: _Drafting) -> Sequence[int]:
        """Return the drafts after the last token of `seq` that may be computed, none behind a token that ends it."""
        room = min(seq.most_tokens, self._max_model_len) - len(seq.token_ids) - 1
        draft = drafting.draft[drafting.at : drafting.at + min(self._most, max(0, room))]
        if not drafting.ends:
            return draft
        return next((draft[:i] for i, token in enumerate(draft) if token in drafting.ends), draft)

    def _look(self, seq: OpenSequence, drafting: _Drafting) -> None:
        """Compare the draft of `seq` with the tokens that have come, and search for another one where it is short."""
        text = seq.token_ids
        drafting.compare(text[drafting.num_known :])
        if 2 * drafting.num_left >= self._most:
            return
        if self._rate is not None:
            drafting.draft, drafting.at = [text[-1]] * self._most, 0
            return
        drafting.index.extend(text, len(text) - 1)
        # So long that some is left behind a token that is not in the earlier text.
        draft = self._drafter.propose(seq, drafting.index, 2 * self._most + 1)
        if draft:
            drafting.take(draft)
        elif not drafting.num_left:
            drafting.record.miss()


def _is_costly(sampling: SamplingParams) -> bool:
    """Return whether the host does more for a row than to sample it."""
    return bool(sampling.grammar) or sampling.logprobs is not None or sampling.repetition_penalty != 1.0
