"""Drafts of all sequences of one scheduler: made, placed, and compared with the tokens that come.

A draft is scored by each token that follows it, whether a step verified it or plain decoding came to the same token.
So a sequence that gets no drafts is still watched, at the price of a look-up.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...config import SchedulerConfig
from ...config.speculation import SpeculationConfig
from ...types import StepPlan, StepResult
from ..sequence import Sequence as OpenSequence
from .depth import Record, StepCosts, best_depths
from .drafters import DRAFTERS
from .text_index import TextIndex

_LONGEST_PAUSE = 8  # tokens without a search, of a sequence whose drafts have long been wrong


class _Drafting:
    """State of one sequence: its index, its record, and the draft that follows its last token."""

    __slots__ = ("at", "draft", "index", "num_accepted", "num_verified", "pause", "record")

    def __init__(self, width: int, acceptance_rate: float | None) -> None:
        self.index, self.record = TextIndex(width), Record(acceptance_rate)
        self.draft: Sequence[int] = ()
        self.at = 0  # the draft's first token that has not come yet
        self.pause = 0  # tokens until the next search
        self.num_verified = self.num_accepted = 0

    def score(self, token_id: int) -> None:
        """Compare the draft with the next token of the sequence."""
        if self.at < len(self.draft):
            is_right = self.draft[self.at] == token_id
            self.at = self.at + 1 if is_right else len(self.draft)
            self.record.add(is_right)


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
        most = min(budget, self._most_drafts)
        if most <= 0:
            return {}
        found = [(seq, left) for seq in seqs if (left := self._remaining(seq))]
        if not found:
            return {}
        known = [(self._of[seq].record, len(left)) for seq, left in found]
        depths = best_depths(known, len(seqs), most, self._costs)
        return {seq: tuple(left[:depth]) for (seq, left), depth in zip(found, depths, strict=True) if depth}

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Learn what a step cost: on the modelled accelerator if it paces steps, else on the host."""
        if plan.prefill or not plan.decode:
            return
        device = result.device
        is_paced = device is not None and device.late_ns is not None
        time = device.busy_ns if device is not None and is_paced else result.seconds
        self._costs.observe(sum(len(seq.token_ids) for seq in plan.decode), time)

    def add(self, seq: OpenSequence, token_id: int) -> None:
        """Compare the next token of `seq` with its draft."""
        if (drafting := self._of.get(seq)) is not None:
            drafting.score(token_id)

    def count(self, seq: OpenSequence, num_verified: int, num_accepted: int) -> None:
        """Count drafts that a step verified."""
        drafting = self._of[seq]
        drafting.num_verified += num_verified
        drafting.num_accepted += num_accepted

    def counts(self, seq: OpenSequence) -> tuple[int, int]:
        """Return the drafts of `seq` that were verified, and those that were accepted."""
        drafting = self._of.get(seq)
        return (0, 0) if drafting is None else (drafting.num_verified, drafting.num_accepted)

    def close(self, seq: OpenSequence) -> None:
        """Learn from a sequence that has ended, and forget it."""
        if self._of.pop(seq, None) is not None:
            self._drafter.close(seq)

    def _remaining(self, seq: OpenSequence) -> Sequence[int]:
        """Return the drafts that follow the last token of `seq`, up to the most that it may still use."""
        drafting = self._of.get(seq)
        if drafting is None:
            drafting = self._of[seq] = _Drafting(self._drafter.width, self._rate)
        if len(drafting.draft) - drafting.at < self._most:
            self._refresh(seq, drafting)
        room = min(seq.most_tokens, self._max_model_len) - len(seq.token_ids) - 1  # the last token needs no draft
        end = drafting.at + min(self._most, max(0, room))
        return _up_to_an_end(seq, drafting.draft[drafting.at : end])

    def _refresh(self, seq: OpenSequence, drafting: _Drafting) -> None:
        """Search for a longer draft, more rarely the longer drafts have been wrong or there were none."""
        record, text = drafting.record, seq.token_ids
        if drafting.pause:
            drafting.pause -= 1
            return
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
        drafting.pause = min(record.num_idle // 2, _LONGEST_PAUSE)


def _up_to_an_end(seq: OpenSequence, draft: Sequence[int]) -> Sequence[int]:
    """Return the drafts before one that would end the sequence: there is nothing to compute behind it."""
    sampling = seq.request.sampling
    ends = sampling.stop_token_ids if sampling.ignore_eos else sampling.eos_token_ids + sampling.stop_token_ids
    return next((draft[:i] for i, token in enumerate(draft) if token in ends), draft)
