"""Drafts of all sequences of one scheduler: made, placed, and compared with the tokens that come.

A draft is scored by each token that follows it, whether a step verified it or plain decoding came to the same token.
So a sequence that gets no drafts is still watched, at the price of a look-up.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...config import SchedulerConfig
from ...config.speculation import SpeculationConfig
from ...types import StepPlan
from ..sequence import Sequence as OpenSequence
from .depth import Record, StepCosts, best_depths
from .drafters import DRAFTERS
from .text_index import TextIndex

NO_DRAFTS = (0, 0)
_FREE_SEARCHES = 4  # in vain, or whose draft is wrong, before a sequence makes pauses
_LONGEST_PAUSE = 8  # tokens without a search


class _Drafting:
    """State of one sequence: its index, its record, and the draft that follows its last token."""

    __slots__ = ("at", "counts", "draft", "ends", "index", "pause", "record")

    def __init__(self, seq: OpenSequence, width: int, acceptance_rate: float | None) -> None:
        sampling = seq.request.sampling
        self.index, self.record = TextIndex(width), Record(acceptance_rate)
        self.ends = sampling.stop_token_ids + (() if sampling.ignore_eos else sampling.eos_token_ids)
        self.draft: Sequence[int] = ()
        self.at = 0  # the draft's first token that has not come yet
        self.pause = 0  # tokens until the next search
        self.counts = NO_DRAFTS  # drafts that were verified, and accepted


class Speculator:
    """Decides on drafts. Pure: reads no clock, and the tokens of a request never depend on it."""

    def __init__(self, config: SpeculationConfig, limits: SchedulerConfig) -> None:
        self._rate, self._max_model_len = config.acceptance_rate, limits.max_model_len
        self._most = min(config.num_speculative_tokens, limits.max_chunk - 1)  # of one sequence
        self._most_drafts = config.most_drafts(limits.max_num_seqs)  # of a step
        self._drafter = DRAFTERS[config.method](config)
        self._costs = StepCosts()
        self._of: dict[OpenSequence, _Drafting] = {}  # of open sequences that have decoded

    def drafts(self, seqs: Sequence[OpenSequence], budget: int) -> dict[OpenSequence, tuple[int, ...]]:
        """Return the drafts of `seqs`, which all decode in the next step: as many as are worth their rows.

        At most `budget` drafts are returned.
        """
        found: list[tuple[OpenSequence, Sequence[int]]] = []
        known: list[tuple[Record, int]] = []
        least = self._costs.least_chance(len(seqs)) if seqs else 1.0
        for seq in seqs:
            drafting = self._of.get(seq)
            if drafting is None:
                drafting = self._of[seq] = _Drafting(seq, self._drafter.width, self._rate)
            if 2 * (len(drafting.draft) - drafting.at) < self._most:
                self._refresh(seq, drafting)
            is_drafted = drafting.at < len(drafting.draft) and drafting.record.chance >= least
            if is_drafted and (left := self._usable(seq, drafting)):
                found.append((seq, left))
                known.append((drafting.record, len(left)))
        most = min(budget, self._most_drafts)
        if not found or most <= 0:
            return {}
        depths = best_depths(known, len(seqs), most, self._costs)
        return {seq: tuple(left[:depth]) for (seq, left), depth in zip(found, depths, strict=True) if depth}

    def observe(self, plan: StepPlan, num_rows: int, seconds: float, draft_s: float) -> None:
        """Learn what a step of `num_rows` rows cost."""
        del draft_s
        if plan.prefill or not plan.decode:
            return
        self._costs.observe(num_rows, seconds)

    def add(self, seq: OpenSequence, token_id: int) -> tuple[int, int]:
        """Compare the next token of `seq` with its draft; return the drafts that were verified, and accepted."""
        drafting = self._of.get(seq)
        if drafting is None:
            return NO_DRAFTS
        if drafting.at < len(drafting.draft):
            is_right = drafting.draft[drafting.at] == token_id
            drafting.at = drafting.at + 1 if is_right else len(drafting.draft)
            drafting.record.add(is_right)
        return drafting.counts

    def count(self, seq: OpenSequence, num_verified: int, num_accepted: int) -> None:
        """Count drafts that a step verified."""
        verified, accepted = self._of[seq].counts
        self._of[seq].counts = verified + num_verified, accepted + num_accepted

    def close(self, seq: OpenSequence) -> None:
        """Learn from a sequence that has ended, and forget it."""
        if self._of.pop(seq, None) is not None:
            self._drafter.close(seq)

    def _usable(self, seq: OpenSequence, drafting: _Drafting) -> Sequence[int]:
        """Return the drafts after the last token of `seq` that may be computed, none behind a token that ends it."""
        room = min(seq.most_tokens, self._max_model_len) - len(seq.token_ids) - 1
        draft = drafting.draft[drafting.at : drafting.at + min(self._most, max(0, room))]
        if not drafting.ends:
            return draft
        return next((draft[:i] for i, token in enumerate(draft) if token in drafting.ends), draft)

    def _refresh(self, seq: OpenSequence, drafting: _Drafting) -> None:
        """Search for a longer draft, more rarely the longer drafts have been wrong or there were none."""
        if drafting.pause:
            drafting.pause -= 1
            return
        record, text = drafting.record, seq.token_ids
        if self._rate is not None:
            drafting.draft, drafting.at = [text[-1]] * self._most, 0
            return
        drafting.index.extend(text, len(text) - 1)
        # One more than can be verified, because the token after them is compared with it.
        draft = self._drafter.propose(seq, drafting.index, self._most + 1)
        if draft:
            drafting.draft, drafting.at = draft, 0
        else:
            record.num_idle += 1
        drafting.pause = min(max(0, record.num_idle - _FREE_SEARCHES), _LONGEST_PAUSE)
