"""Every request gets the tokens of a model without a cache, despite arrivals, aborts and preemptions."""

from __future__ import annotations

from math import inf

from hypothesis import event, given
from hypothesis import strategies as st
from scheduler_harness import FULL, GROUPS, Bench, bench, request

from neuronserve.server.config import CacheConfig
from neuronserve.server.errors import InvalidRequest
from neuronserve.server.scheduler.admission import resolve_max_tokens
from neuronserve.server.scheduler.batching import POLICIES
from neuronserve.server.scheduler.service import SERVICE_POLICIES
from neuronserve.server.types import Request
from tests.tier_stores import TOKEN_S, press

MAX_MODEL_LEN = 24

prompts = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=14),
    # Long shared prefixes, so that the cache is hit in its middle and at its edges.
    st.builds(lambda n, tail: [7] * n + tail, st.integers(1, 12), st.lists(st.integers(0, 1), max_size=3)),
)


@st.composite
def benches(draw: st.DrawFn) -> Bench:
    max_num_seqs, num_drafts = draw(st.integers(1, 4)), draw(st.sampled_from([0, 1, 2, 5]))
    enough = 1 + (2 + num_drafts) * max_num_seqs  # without drafts, fewer do
    num_states = draw(
        st.sampled_from([0, 0, enough, 30] if num_drafts else [0, 1 + max_num_seqs, 3 + max_num_seqs, 30])
    )
    return bench(
        num_blocks=draw(st.one_of(st.integers(4, 16), st.integers(12, 40))),
        block_size=draw(st.integers(1, 4)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 8)),
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=draw(st.sampled_from([True, True, True, False])),
        batching=draw(st.sampled_from(list(POLICIES))),
        max_prompt_chunk=draw(st.sampled_from([None, None, 1, 3, 8])),
        groups=draw(st.sampled_from([FULL, *GROUPS])),
        num_states=num_states,
        snapshot_blocks=draw(st.integers(1, 3)),
        tiers=draw(st.sampled_from([(), (20,), (3, 6), (5, 40)])),
        mirrors=draw(st.integers(0, 2)),
        num_drafts=num_drafts,
        policy=draw(st.sampled_from(list(SERVICE_POLICIES))),
        step_time_target_ms=draw(st.sampled_from([None, None, "auto", 1.0, 5000.0])),
    )


@st.composite
def requests(draw: st.DrawFn, index: int, cache: CacheConfig, now: float) -> Request | None:
    """A request that admission lets in, or None."""
    prompt = draw(prompts)
    wanted = draw(st.one_of(st.none(), st.integers(1, 8)))
    try:
        most = resolve_max_tokens(len(prompt), wanted, max_model_len=MAX_MODEL_LEN, cache=cache, param="prompt")
    except InvalidRequest:
        return None
    return request(
        f"r{index}",
        prompt,
        most,
        min_tokens=draw(st.integers(0, most)),
        eos_token_ids=draw(st.sampled_from([(), (3,)])),
        stop_token_ids=draw(st.sampled_from([(), (5, 6)])),
        ignore_eos=draw(st.booleans()),
        prompt_logprobs=draw(st.sampled_from([None, None, 0])),
        arrival_time=now - draw(st.integers(0, 2)),
        priority=draw(st.sampled_from([0, 0, 0, -1, 1])),
        tenant=draw(st.sampled_from(["", "", "a", "b"])),
        weight=draw(st.sampled_from([1.0, 0.5, 3.0])),
        first_token_by=now + draw(st.sampled_from([inf, 1.0, 20.0])),
        token_interval_s=draw(st.sampled_from([inf, 1e-3, 10.0])),
        cache_salt=draw(st.sampled_from(["", "", "salt"])),
    )


@given(bench=benches(), data=st.data())
def test_every_request_ends_once_with_the_tokens_of_a_model_without_a_cache(bench: Bench, data: st.DataObject) -> None:
    aborted: set[str] = set()
    for index in range(data.draw(st.integers(2, 12))):
        one = data.draw(requests(index, bench.cache.config, bench.now))
        if one is not None:
            bench.add(one)
        for _ in range(data.draw(st.integers(0, 3))):
            if bench.scheduler.has_work:
                bench.step()
        for tiers in bench.tiers:
            if data.draw(st.integers(0, 3)) == 3:
                tiers.damage(data.draw(st.integers(0, 1)), data.draw(st.integers(0, 900)))
            tiers.tiers.rate.token_s = data.draw(st.sampled_from([TOKEN_S, TOKEN_S, 0.0]))
        act = data.draw(st.sampled_from(["", "press", "press", "abort", "reset"]))
        if act == "abort" and bench.scheduler.open_ids:
            victim = data.draw(st.sampled_from(bench.scheduler.open_ids))
            aborted.add(victim)
            bench.abort(victim)
        elif act == "press":
            press(bench.cache.pool, bench.cache.num_free_blocks)
        elif act == "reset":
            bench.scheduler.reset_prefix_cache()
    bench.finish(max_steps=bound(bench))
    preempted = any(plan.preempted for plan in bench.plans)
    accepted = any(count for report in bench.reports for _, count in report.drafts)
    event(f"{bench.config.batching} preempted={preempted} hits={bench.cache.prefix_hits > 0} accepted={accepted}")
    event(f"tiers={bool(bench.tiers)} loaded={bench.cache.num_loaded_tokens > 0}")
    check_outcome(bench, aborted)


def bound(bench: Bench) -> int:
    """Steps that must do. The first that runs advances by a token a step and is only ever restarted by the arrival
    of one before it, of which there are none any more; so each request in turn costs at most all of its tokens.
    Where prompts go first, all slots may be filled between two of its tokens, a token of each prompt at a time; what
    waits until the others have waited enough, or ended, costs no more: they advance meanwhile."""
    tokens = [len(one.prompt_token_ids) + one.sampling.max_tokens for one in bench.requests.values()]
    between = 1 if bench.config.batching == "continuous" else 1 + bench.config.max_num_seqs * max(tokens, default=0)
    return 1 + 2 * sum(tokens) * between


def check_outcome(bench: Bench, aborted: set[str]) -> None:
    for one in bench.requests.values():
        request_id = one.request_id
        tokens, expected = bench.tokens(request_id), bench.expected(request_id)
        if bench.reason(request_id) == "abort":
            assert request_id in aborted
            assert tokens == expected[: len(tokens)]
        else:
            assert tokens == expected
            assert bench.reason(request_id) == ("stop" if stops(one, tokens) else "length")
    first_looks = [events[0].num_cached_tokens for events in bench.events.values()]
    assert bench.cache.prefix_hits + bench.cache.num_loaded_tokens == sum(first_looks)
    assert bench.cache.num_free_blocks == bench.cache.config.num_blocks - 1
    if bench.cache.states is not None:
        assert bench.cache.states.pool.num_free == bench.cache.config.num_states - 1


def stops(one: Request, tokens: list[int]) -> bool:
    params = one.sampling
    is_eos = tokens[-1] in params.eos_token_ids and not params.ignore_eos
    return (is_eos or tokens[-1] in params.stop_token_ids) and len(tokens) >= params.min_tokens


@given(
    jobs=st.lists(st.tuples(prompts, st.sampled_from(["", "salt"]), st.integers(1, 6)), min_size=1, max_size=6),
    block_size=st.integers(1, 4),
)
def test_a_hit_is_the_longest_whole_block_prefix_ever_computed(
    jobs: list[tuple[list[int], str, int]], block_size: int
) -> None:
    """One after the other, in a cache that holds them all."""
    one_by_one = bench(num_blocks=400, block_size=block_size)
    computed: list[tuple[str, list[int]]] = []
    for index, (prompt, salt, max_tokens) in enumerate(jobs):
        request_id = f"r{index}"
        one_by_one.add(request(request_id, prompt, max_tokens, cache_salt=salt))
        one_by_one.finish()
        longest = max((common(prompt[:-1], known) for owner, known in computed if owner == salt), default=0)
        hit = one_by_one.events[request_id][0].num_cached_tokens
        assert hit == longest // block_size * block_size
        computed.append((salt, (prompt + one_by_one.tokens(request_id))[:-1]))
    assert one_by_one.cache.prefix_queries == sum(len(prompt) for prompt, _, _ in jobs)


def common(a: list[int], b: list[int]) -> int:
    """Length of the common prefix; one block more is not a whole block of `b` unless all of it was computed."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
