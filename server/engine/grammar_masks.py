"""Masks of the tokens that a grammar allows next: a matcher for each sequence, a row of bits for each sample.

A matcher's state follows from the sequence's tokens alone. It is kept from one sample to the next only to save time,
so preemption, recomputation and a dropped matcher change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from ..host.address_map import ADDRESSES
from ..text.grammar import GrammarError, reason
from ..types import ScheduledSeq
from .grammar_store import GrammarStore
from .logits import num_generated

Words = npt.NDArray[np.uint32]

OFF_GRAMMAR = "a draft that the grammar does not allow precedes this row"


@dataclass(slots=True)
class _MatcherState:
    matcher: LLMatcher
    history: Sequence[int]  # the list object of its sequence
    num_consumed: int = 0
    num_guessed: int = 0  # tokens consumed after these, to be taken back

    def guess(self, token_id: int) -> bool:
        """Consume a draft; return False when the grammar does not allow it, or has come to its end."""
        if self.matcher.is_stopped() or self.matcher.validate_tokens([token_id]) < 1:
            return False
        self.num_guessed += self.matcher.try_consume_tokens([token_id])
        return True

    def take_back(self) -> None:
        """Return to the state before the drafts."""
        if self.num_guessed and not self.matcher.rollback(self.num_guessed):
            raise GrammarError(reason(self.matcher))
        self.num_guessed = 0


class GrammarMasks:
    """Masks of one step's samples. Bit `t` of row `r` is set when sample `r` may be token `t`."""

    def __init__(self, grammars: GrammarStore | None, num_rows: int, vocab_size: int) -> None:
        self._grammars = grammars
        self._masks: Words = np.zeros((num_rows, _num_words(vocab_size)), np.uint32)
        first, stride = self._masks.ctypes.data, self._masks.strides[0]
        self._of_rows = range(first, first + num_rows * stride, stride)  # addresses
        self._vocab_size = vocab_size
        self.addresses: npt.NDArray[np.int64] = np.zeros(num_rows, np.int64)  # of each row's bits; 0 = no grammar
        ADDRESSES.register("grammar masks", self._masks, is_indirect=True)
        ADDRESSES.register("addresses of grammar masks", self.addresses)
        self._states: dict[str, _MatcherState] = {}

    def fill(self, seqs: Sequence[ScheduledSeq]) -> dict[int, str]:
        """Set the mask of each of `seqs`. Returns the rows whose sequences must end, each with the reason.

        Rows after drafts (`draft_rows`) follow the row of their sequence. Where the grammar does not allow the draft,
        the reason is OFF_GRAMMAR: the row before cannot sample the draft.
        """
        states: dict[str, _MatcherState] = {}
        faults: dict[int, str] = {}
        self.addresses[: len(seqs)] = 0
        for row, seq in enumerate(seqs):
            if not seq.sampling.grammar:
                continue
            try:
                if not seq.num_drafts:
                    states[seq.request_id] = self._state(seq)
                elif row - 1 in faults or not states[seq.request_id].guess(seq.token_ids[-1]):
                    faults[row] = OFF_GRAMMAR
                    continue
                self._fill_row(row, states[seq.request_id].matcher, seq)
                self.addresses[row] = self._of_rows[row]
            except GrammarError as error:
                faults[row] = f"the grammar: {error}"
        for state in states.values():
            state.take_back()
        self._states = states  # other sequences have ended, or are replayed when they are sampled again
        return faults

    def forbid(self, row: int, logits: npt.NDArray[np.float32]) -> None:
        """Set the logits [vocab] that `row`'s mask forbids to -infinity, if it has one."""
        if self.addresses[row]:
            bits = np.unpackbits(self._masks[row].view(np.uint8), count=self._vocab_size, bitorder="little")
            logits[bits == 0] = -np.inf

    def _state(self, seq: ScheduledSeq) -> _MatcherState:
        """Return the sequence's matcher, in its state after all tokens."""
        state = self._states.get(seq.request_id)
        if state is None or state.history is not seq.history:
            if self._grammars is None:
                raise GrammarError("this engine has no tokenizer for grammars")
            state = _MatcherState(self._grammars.matcher(seq.sampling.grammar), seq.history)
        new = list(seq.history[seq.num_prompt_tokens + state.num_consumed :])
        matcher = state.matcher
        # Past its end a matcher accepts nothing; only end tokens come then, with ignore_eos or min_tokens.
        if new and matcher.try_consume_tokens(new) < len(new) and (matcher.is_error() or not matcher.is_stopped()):
            raise GrammarError(reason(matcher))
        state.num_consumed += len(new)
        return state

    def _fill_row(self, row: int, matcher: LLMatcher, seq: ScheduledSeq) -> None:
        """Set the bits of the tokens that the matcher allows, except ids that only pad the vocabulary.

        Raises GrammarError when none is left, or when finding them exceeds the limits.
        """
        words, num_known = self._masks[row], self._grammars.vocab_size if self._grammars else 0
        size = _num_words(num_known)
        if size <= len(words):  # in place, which takes half the time; the words after `size` are always 0
            matcher.unsafe_compute_mask_ptr(self._of_rows[row], size * words.itemsize)
        else:
            words[:] = np.frombuffer(matcher.compute_bitmask(), np.uint32)[: len(words)]
        if matcher.is_error():
            raise GrammarError(reason(matcher))
        if num_known > self._vocab_size:
            _clear_from(words, self._vocab_size)
            if not words.any():
                raise GrammarError("it allows no token of this model's vocabulary")
        if num_generated(seq) < seq.sampling.min_tokens:
            _clear_ends(words, seq)


def _num_words(num_tokens: int) -> int:
    """Words of a mask of `num_tokens` tokens."""
    return -(-num_tokens // 32)


def _clear_from(words: Words, token: int) -> None:
    """Forbid `token` and all tokens after it."""
    word, bit = divmod(token, 32)
    if word < len(words):
        words[word] &= np.uint32((1 << bit) - 1)
        words[word + 1 :] = 0


def _clear_ends(words: Words, seq: ScheduledSeq) -> None:
    """Forbid end tokens before min_tokens, unless the grammar allows nothing else."""
    kept = words.copy()
    for token in seq.sampling.eos_token_ids + seq.sampling.stop_token_ids:
        kept[token // 32] &= ~np.uint32(1 << token % 32)
    if kept.any():
        words[:] = kept
