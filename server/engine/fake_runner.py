"""A runner without a model, whose tokens depend on every KV slot, so that no mistake stays hidden. For tests.

Each slot of its KV stores a value that depends on the whole prefix, and each sampled token depends on every slot that
the block tables name, in each group as far as it looks back. A wrong block, a stale cache hit, a lost recompute or a
write to a shared block changes the tokens; `expected_tokens` computes the right ones without a cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..config import AttentionSpan, CacheConfig
from ..kv_cache.state_slots import states_after
from ..types import SampledToken, ScheduledSeq, StepPlan, StepResult, TokenLogprobs
from .drafted import accepted_tokens, draft_rows
from .loop import Pending

_MASK = (1 << 64) - 1
_LOG_HALF = -0.6931471805599453


def _mix(x: int) -> int:
    """Map 64-bit integers one to one so that each bit depends on all bits (the finalizer of SplitMix64)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _key(previous: int, token_id: int) -> int:
    """Key stored at a position: a chain over the tokens up to this one."""
    return _mix((previous * 31 + token_id + 1) & _MASK)


def _value(key: int, position: int, group: int) -> int:
    """Term that a position adds to the logits in a group of layers."""
    return _mix(key ^ _mix(position + 1 + (group << 32)))


def expected_tokens(
    prompt: Sequence[int], n: int, vocab_size: int, groups: Sequence[AttentionSpan] = (AttentionSpan(),)
) -> list[int]:
    """Return the first `n` tokens generated after `prompt` when nothing ends the sequence."""
    known, keys = list(prompt), [0]
    sums: list[list[int]] = [[0] for _ in groups]  # over the first positions
    for position in range(len(prompt) + n - 1):
        keys.append(_key(keys[-1], known[position]))
        for group, total in enumerate(sums):
            total.append(total[-1] + _value(keys[-1], position, group))
        if position >= len(prompt) - 1:
            seen = sum(total[-1] - total[span.num_behind(position)] for total, span in zip(sums, groups, strict=True))
            known.append(_mix(seen & _MASK) % vocab_size)
    return known[len(prompt) :]


def prompt_logprob(key: int) -> TokenLogprobs:
    """Log-probabilities of the prompt token that follows a position with this key."""
    return TokenLogprobs(-(key % 4096) / 1024, rank=1 + key % 7)


def expected_prompt_logprobs(prompt: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    """Log-probabilities of all tokens of a prompt but the first."""
    return tuple(prompt_logprob(key) for key in itertools.accumulate(prompt[:-1], _key, initial=0))[1:]


class FakeRunner:
    """Executes plans over a KV of one integer a slot. Ignores sampling parameters but those about logprobs.

    Each key follows from the one before, which a group must still hold: a group that looks back two tokens at least, or
    past its chunk. Raises LookupError when a plan reads a slot that was never written, and AssertionError when it reads
    or writes the null block.
    """

    def __init__(self, cache: CacheConfig, vocab_size: int) -> None:
        self._block_size, self._groups = cache.block_size, cache.groups
        self._vocab_size = vocab_size
        self._has_states = cache.num_states > 0
        self._states = [0] * cache.num_states
        self._slots: list[int | None] = [None] * (cache.num_blocks * cache.block_size)

    def submit(self, plan: StepPlan) -> Pending:
        result = self.execute(plan)
        return lambda: result

    def execute(self, plan: StepPlan) -> StepResult:
        written = {slot: seq for seq in plan.seqs for slot in states_after(seq) if slot}
        for seq in plan.seqs:
            assert written.get(seq.state[0], seq) is seq, "one sequence writes another's state"
            self._write(seq)
        rows = {seq.request_id: draft_rows([seq], is_whole=True)[0] for seq in plan.seqs if seq.needs_sample}
        tokens = {request_id: [self._sample(row) for row in each] for request_id, each in rows.items()}
        sampled = {request_id: each[0] for request_id, each in tokens.items()}
        further = {seq.request_id: accepted_tokens(seq, tokens[seq.request_id]) for seq in plan.seqs if seq.num_drafts}
        prompts = {seq.request_id: self._prompt_logprobs(seq) for seq in plan.prefill if seq.prompt_targets}
        return StepResult(plan.step_id, sampled, seconds=0.0, prompt_logprobs=prompts, further=further)

    @property
    def num_bytes(self) -> int:
        """Bytes of a block; with `read` and `write` this implements blob_file.BlobBytes."""
        return 8 * self._block_size

    def read(self, block: int) -> npt.NDArray[np.uint8]:
        slots = self._slots[block * self._block_size : (block + 1) * self._block_size]
        return np.array(slots, np.uint64).view(np.uint8)

    def write(self, block: int, content: npt.NDArray[np.uint8]) -> None:
        begin = block * self._block_size
        self._slots[begin : begin + self._block_size] = content.view(np.uint64).tolist()

    def copy(self, source: int, target: int) -> None:
        """Copy a block."""
        size = self._block_size
        self._slots[target * size : (target + 1) * size] = self._slots[source * size : (source + 1) * size]

    def _slot(self, seq: ScheduledSeq, group: int, position: int) -> int:
        block = seq.block_tables[group][position // self._block_size]
        assert block != 0, f"{seq.request_id}: position {position} of group {group} is in the null block"
        return block * self._block_size + position % self._block_size

    def _read(self, seq: ScheduledSeq, group: int, position: int) -> int:
        key = self._slots[self._slot(seq, group, position)]
        if key is None:
            raise LookupError(f"{seq.request_id}: position {position} of group {group} was never written")
        return key

    def _write(self, seq: ScheduledSeq) -> None:
        key = self._before(seq)
        for position, token_id in enumerate(seq.token_ids, seq.start):
            key = _key(key, token_id)
            for group in range(len(self._groups)):
                self._slots[self._slot(seq, group, position)] = key
            if self._has_states:
                slot = states_after(seq)[position - seq.start]
                assert slot, f"{seq.request_id}: the null slot is written"
                self._states[slot] = key

    def _before(self, seq: ScheduledSeq) -> int:
        """Return the key of the token before the step, from the state where layers keep one."""
        if self._has_states:
            return self._states[seq.state[0]]
        return self._read(seq, self._looks_back(seq.start), seq.start - 1) if seq.start else 0

    def _looks_back(self, position: int) -> int:
        """Return a group whose token at `position` looks at the token before."""
        return next(group for group, span in enumerate(self._groups) if span.num_behind(position) < position)

    def _sample(self, seq: ScheduledSeq) -> SampledToken:
        length = seq.start + len(seq.token_ids)
        total = sum(
            _value(self._read(seq, group, position), position, group)
            for group, span in enumerate(self._groups)
            for position in range(span.num_behind(length - 1), length)
        )
        token_id = _mix(total & _MASK) % self._vocab_size
        return SampledToken(token_id, self._logprobs(token_id, seq.sampling.logprobs))

    def _prompt_logprobs(self, seq: ScheduledSeq) -> tuple[TokenLogprobs, ...]:
        keys = [self._read(seq, self._looks_back(position), position - 1) for position in seq.prompt_targets]
        return tuple(prompt_logprob(key) for key in keys)

    def _logprobs(self, token_id: int, count: int | None) -> TokenLogprobs | None:
        """Give the sampled token probability 1/2, the next id 1/4, and so on around the vocabulary."""
        if count is None:
            return None
        top = range(min(count, self._vocab_size))
        ids = tuple((token_id + i) % self._vocab_size for i in top)
        return TokenLogprobs(_LOG_HALF, ids, tuple(_LOG_HALF * (i + 1) for i in top))
