"""Slots of states: one for each sequence, snapshots at boundaries, none lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.config import CacheConfig
from neuronserve.server.kv_cache.audit import audit
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.kv_cache.sequence_blocks import NO_PREFIX, SequenceBlocks
from neuronserve.server.kv_cache.state_slots import NO_STATE

BLOCK, EVERY = 2, 2  # tokens of a block, blocks between snapshots


def manager(num_states: int) -> KVCacheManager:
    return KVCacheManager(CacheConfig(40, BLOCK, num_states=num_states, snapshot_blocks=EVERY))


def compute(cache: KVCacheManager, blocks: SequenceBlocks, tokens: list[int], start: int = 0) -> list[tuple[int, int]]:
    """Compute tokens in the chunks that the boundaries leave; return the slots of each step."""
    assert cache.states is not None
    steps = []
    while start < len(tokens):
        end = min(len(tokens), cache.states.next_boundary(start, len(tokens)) or len(tokens))
        steps.append(cache.states.place(blocks.state, start, end, len(tokens)))
        cache.commit(blocks, tokens, end)
        cache.drop(blocks, end)
        assert audit(cache, [blocks]) == []
        start = end
    return steps


def test_a_step_reads_the_state_that_the_step_before_wrote() -> None:
    cache = manager(9)
    blocks = cache.open("")
    assert cache.allocate(blocks, 11)
    steps = compute(cache, blocks, list(range(11)))  # boundaries after 4, 8 and 10 tokens
    reads, writes = [read for read, _ in steps], [write for _, write in steps]
    assert len(steps) == 4
    assert reads == [NO_STATE, *writes[:-1]]
    assert len(set(writes)) == 4, "each snapshot stays in a slot of its own"


def test_the_log_has_snapshots_as_a_group_of_their_own() -> None:
    cache = manager(9)
    log = cache.follow()
    blocks = cache.open("salt")
    assert cache.allocate(blocks, 11)
    compute(cache, blocks, list(range(11)))
    assert log.events[0] == {"type": "AllBlocksCleared"}
    stored = log.events[1:]
    plain, states = (
        [each for e in stored if e["group_idx"] == group for each in e["block_hashes"]] for group in (0, 1)
    )
    assert states == [plain[i] for i in (1, 3, 4)], "after 4, 8 and 10 tokens"
    last = stored[-1]
    assert (last["token_ids"], last["parent_block_hash"], last["kv_cache_spec_kind"]) == ([8, 9], plain[3], "mamba")
    log.events.clear()
    cache.discard(blocks)
    assert {event["group_idx"] for event in log.events if event["type"] == "BlockRemoved"} == {0, 1}


def test_a_hit_is_a_boundary_with_a_snapshot() -> None:
    cache = manager(9)
    first = cache.open("")
    assert cache.allocate(first, 11)
    steps = compute(cache, first, list(range(11)))
    cache.free(first)
    for known, num_blocks in ((11, 5), (10, 4), (9, 4), (8, 2), (5, 2), (4, 0)):
        prefix = cache.lookup(cache.open(""), list(range(known)))
        assert prefix.num_blocks == num_blocks, known
    again = cache.open("")
    prefix = cache.lookup(again, list(range(11)))
    assert cache.allocate(again, 11, prefix)
    [(read, write)] = compute(cache, again, list(range(11)), start=10)
    assert read == steps[2][1] == prefix.state
    assert write != read
    assert audit(cache, [again]) == []


def test_without_a_free_slot_there_is_no_snapshot_and_no_wait() -> None:
    cache = manager(2)
    blocks = cache.open("")
    assert cache.allocate(blocks, 11)
    steps = compute(cache, blocks, list(range(11)))
    assert {write for _, write in steps} == {1}
    assert not cache.allocate(cache.open(""), 3), "the only slot is in use"
    cache.free(blocks)
    assert cache.lookup(cache.open(""), list(range(11))) == NO_PREFIX, "the last boundary was overwritten"


def test_a_failed_sequence_leaves_no_snapshot() -> None:
    cache = manager(9)
    for end in (cache.discard, lambda _: cache.reset_prefix_cache()):
        blocks = cache.open("")
        assert cache.allocate(blocks, 11)
        compute(cache, blocks, list(range(11)))
        end(blocks)
        cache.free(blocks)
        assert audit(cache, []) == []
        assert cache.lookup(cache.open(""), list(range(11))) == NO_PREFIX


def test_the_audit_sees_a_lost_slot() -> None:
    cache = manager(4)
    blocks = cache.open("")
    assert cache.allocate(blocks, 3)
    blocks.state.spare = NO_STATE
    assert any("slot" in problem for problem in audit(cache, [blocks]))


@given(
    rows=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=12),
    num_states=st.sampled_from([6, 9]),
    prompt=st.integers(1, 9),
)
def test_a_row_of_drafts_goes_on_from_the_last_accepted_token(
    rows: list[tuple[int, int]], num_states: int, prompt: int
) -> None:
    cache, tokens = manager(num_states), list(range(100))
    states, blocks = cache.states, cache.open("")
    assert states is not None
    assert cache.allocate(blocks, 75)
    end, first = prompt, compute(cache, blocks, tokens[:prompt])[-1][1]
    held = {first: prompt}  # number of tokens whose state is in a slot
    for drafted, most in rows:
        count = min(drafted, (states.next_boundary(end, prompt) or end) - end)
        read, *after = states.place_row(blocks.state, end, count, prompt)
        assert held[read] == end
        assert len(set(after)) == count
        assert read not in after[:-1]
        assert audit(cache, [blocks]) == []
        held |= {slot: end + i for i, slot in enumerate(after, 1)}
        states.accept(blocks.state, end, min(most, count))
        end += min(most, count)
        cache.commit(blocks, tokens, end)
        cache.drop(blocks, end)
        assert audit(cache, [blocks]) == []
        assert len(blocks.state.slots) == 1, "rejected states are released"
        for digest, slot in states.pool.cached.items():
            assert held.get(slot, prompt) <= prompt or blocks.chain.digests.index(digest) + 1 == held[slot] // BLOCK
    if num_states > 6:  # otherwise drafts take the slots of snapshots
        best = max(end // (BLOCK * EVERY) * EVERY, (prompt - 1) // BLOCK)
        assert cache.lookup(cache.open(""), tokens[: end + 1]).num_blocks == best
