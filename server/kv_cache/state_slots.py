"""State slots: the states of one sequence in all layers that keep one, and snapshots of such states.

A sequence holds a slot while it has computed tokens. A *snapshot* is a slot that has the digest of a whole prefix as
its name: when a step ends at a boundary that is worth it, the sequence leaves its slot behind under that name and goes
on in another one, which costs no copy. A later sequence with the same prefix reads the snapshot once. Snapshots without
a reader are reused least recently freed first, as blocks are. Slot 0 is the state before any token, never written.

A row of drafts writes the state after each token to a slot of its own, and the sequence goes on in the slot of the last
accepted one. To keep the layers' inputs instead, and repeat the accepted ones in the next step, would take a thirtieth
of the bytes, but the state would lag behind the tokens where a snapshot needs it, and be computed twice. The bytes
matter little: a slot of Qwen3-Next has 75 MB, while a step reads 6 GB of weights or more.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..types import ScheduledSeq
from .blocks import BlockPool
from .hashing import HashChain
from .tiers import Tiers

NO_STATE, TO_LOAD = 0, -1  # in place of a slot, or of a block: the null one, and one whose copy has to be loaded
NO_STATES = NO_STATE, NO_STATE  # of a step, where no layer keeps a state


class SequenceState:
    """The slots of one sequence. `held` and `left` are pairs of a number of computed tokens and a slot."""

    __slots__ = ("drafts", "held", "is_boundary", "left", "slot", "spare")

    def __init__(self) -> None:
        self.slot = NO_STATE  # of the state after the scheduled tokens
        self.spare = NO_STATE  # allocated, and not written yet
        self.drafts: list[int] = []  # slots after the tokens of a row in flight but the last, which has `slot`
        self.is_boundary = False  # the state in `slot` may become a snapshot
        self.left: list[tuple[int, int]] = []  # snapshots without a name, which steps in flight write
        self.held: list[tuple[int, int]] = []  # slots that steps in flight read for the last time

    @property
    def slots(self) -> list[int]:
        """All slots that the sequence holds."""
        held = [slot for _, slot in self.held]
        return held + self.drafts + [slot for slot in (self.slot, self.spare) if slot != NO_STATE]


class StateSlots:
    """Allocation, snapshots and release over one `BlockPool` of slots."""

    def __init__(
        self, num_slots: int, block_size: int, snapshot_blocks: int, takes_snapshots: bool, tiers: Tiers | None = None
    ) -> None:
        """`snapshot_blocks`: blocks between two snapshots of one sequence, besides the one at the end of its prompt."""
        self.pool = BlockPool(num_slots, tiers)
        self._block_size, self._interval = block_size, snapshot_blocks * block_size
        self._takes_snapshots = takes_snapshots

    def next_boundary(self, start: int, num_prompt_tokens: int) -> int | None:
        """Return the first number of tokens after `start` whose state is worth a snapshot.

        Worth it are multiples of the interval, and the last whole block of a prompt: a longer prompt begins with it.
        """
        if not self._takes_snapshots:
            return None
        regular = (start // self._interval + 1) * self._interval
        last = (num_prompt_tokens - 1) // self._block_size * self._block_size
        return last if start < last < regular else regular

    def is_free_for(self, snapshot: int) -> bool:
        """Return whether a sequence that begins with `snapshot` can get a slot."""
        is_taken = snapshot == TO_LOAD or (snapshot != NO_STATE and self.pool.ref_counts[snapshot] == 0)
        return self.pool.num_free > is_taken

    def begin(self, state: SequenceState, snapshot: int) -> None:
        """Allocate the slot of a sequence that holds none, and let it begin with a snapshot, or with no state.

        A snapshot that has to be loaded gets a slot too.
        """
        assert not state.slots, "a sequence begins without slots"
        if snapshot == TO_LOAD:
            snapshot = self.pool.take()
        elif snapshot != NO_STATE:
            self.pool.hold(snapshot)
        state.slot, state.spare = snapshot, self.pool.take()

    def place(self, state: SequenceState, start: int, end: int, num_prompt_tokens: int) -> tuple[int, int]:
        """Return the slots that a step reads and writes which computes the tokens from `start` to `end`."""
        read = state.slot
        if state.spare != NO_STATE:
            self._move(state, state.spare, end)
            state.spare = NO_STATE
        elif state.is_boundary and self.pool.num_free:
            self._move(state, self.pool.take(), end)
        elif state.is_boundary:  # every slot is in use: the snapshot is given up
            self.pool.evict(read)
            state.left = [each for each in state.left if each[1] != read]
        state.is_boundary = end == self.next_boundary(start, num_prompt_tokens)
        if state.is_boundary:
            state.left.append((end, state.slot))
        return read, state.slot

    def place_row(self, state: SequenceState, start: int, count: int, num_prompt_tokens: int) -> tuple[int, ...]:
        """Return the slots that a step reads and writes, one after each of the `count` tokens from `start` on.

        The row does not go beyond `next_boundary(start)`; `accept` follows it, before any other step of the sequence.
        """
        read, last = self.place(state, start, start + count, num_prompt_tokens)
        state.drafts = [self.pool.take() for _ in range(count - 1)]
        return read, *state.drafts, last

    def accept(self, state: SequenceState, start: int, count: int) -> None:
        """Keep the state after the first `count` tokens of the row that was placed at `start`; no other is needed."""
        if count <= len(state.drafts):
            if state.is_boundary:  # which was not reached
                state.left.pop()
                state.is_boundary = False
            accepted = state.drafts[count - 1]
            state.drafts[count - 1], state.slot = state.slot, accepted
            state.held = [(min(end, start + count), slot) for end, slot in state.held]
        while state.drafts:
            self.pool.release(state.drafts.pop())

    def _move(self, state: SequenceState, slot: int, end: int) -> None:
        if state.slot != NO_STATE:
            state.held.append((end, state.slot))
        state.slot = slot

    def commit(
        self, state: SequenceState, chain: HashChain, token_ids: Sequence[int], num_computed_tokens: int
    ) -> None:
        """Name the snapshots of the first `num_computed_tokens` tokens, whose blocks have the digests of `chain`."""
        while state.left and state.left[0][0] <= num_computed_tokens:
            tokens, slot = state.left.pop(0)
            self.pool.name(slot, chain.blob(token_ids, tokens // self._block_size - 1))

    def drop(self, state: SequenceState, num_computed_tokens: int) -> None:
        """Release the slots that no step reads after `num_computed_tokens` tokens are computed."""
        while state.held and state.held[0][0] <= num_computed_tokens:
            self.pool.release(state.held.pop(0)[1])

    def free(self, state: SequenceState) -> None:
        """Release every slot of a sequence. Snapshots stay."""
        for slot in state.slots:
            self.pool.release(slot)

    def forget(self, digests: Sequence[bytes]) -> None:
        """Drop the snapshots with these names."""
        for slot in [self.pool.cached[digest] for digest in digests if digest in self.pool.cached]:
            self.pool.hold(slot)  # so that it is released as one without a name
            self.pool.forget(slot)
            self.pool.release(slot)


def states_after(seq: ScheduledSeq) -> tuple[int, ...]:
    """Return the slot of the state after each of `seq.token_ids`; a state replaces the one before in the same slot."""
    after = seq.state[1:]
    return after + after[-1:] * (len(seq.token_ids) - len(after))


def placed(
    states: StateSlots | None, state: SequenceState, tokens: tuple[int, int], num_prompt_tokens: int
) -> tuple[int, int]:
    """Return `StateSlots.place` of the tokens from the first number to the second; no slots where there are none."""
    return NO_STATES if states is None else states.place(state, *tokens, num_prompt_tokens)
