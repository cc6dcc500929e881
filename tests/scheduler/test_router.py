"""The choice of an engine: a live one that computes the prompt soonest, whoever else chooses; counts that add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neuronserve.server.config import CacheConfig
from neuronserve.server.errors import EngineDead
from neuronserve.server.kv_cache.hashing import HashChain
from neuronserve.server.scheduler.prefix_index import PrefixIndex
from neuronserve.server.scheduler.router import PENDING_WEIGHT, EngineView, Router, choose, load_of
from neuronserve.server.types import Request, SamplingParams

BLOCK = 4
CACHE = CacheConfig(num_blocks=33, block_size=BLOCK)
LONG = tuple(range(40))


def request(name: str, prompt: tuple[int, ...], salt: str = "", session: str = "") -> Request:
    return Request(name, prompt, SamplingParams(8), 0.0, cache_salt=salt, session=session)


sizes = st.integers(0, 5000)
views = st.builds(EngineView, st.booleans(), sizes, sizes, sizes, st.integers(0, 9), sizes)


@given(st.lists(views, min_size=1, max_size=6))
def test_the_choice_is_alive_and_has_the_first_token_soonest(engines: list[EngineView]) -> None:
    alive = [engine for engine in engines if engine.is_alive]
    if not alive:
        with pytest.raises(EngineDead):
            choose(engines)
        return
    chosen = engines[choose(engines)]
    assert chosen.is_alive
    for other in alive:
        pending = 10 * (chosen.num_pending_tokens - other.num_pending_tokens)
        uncached = 10 * (chosen.num_uncached_tokens - other.num_uncached_tokens)
        nearer = chosen.distance - other.distance
        assert pending + uncached + nearer + chosen.num_open_tokens - other.num_open_tokens <= 0


def test_a_choice_among_some_takes_others_only_while_all_of_them_are_dead() -> None:
    router = Router(4, CACHE)
    router.place(request("a", LONG), wanted=3)  # has the prefix
    assert [router.place(request(f"b{i}", LONG), among=(0, 1)) for i in range(3)] == [0, 1, 0]
    router.lose(0)
    assert router.place(request("c", LONG), among=(0, 1)) == 1
    router.lose(1)
    assert router.place(request("d", LONG), among=(0, 1)) in {2, 3}


def test_with_no_prefix_in_common_the_least_loaded_takes_it_and_idle_engines_take_turns() -> None:
    router = Router(3, CACHE)
    assert [router.place(request(f"a{i}", (100 + i,) * (3 - i))) for i in range(3)] == [0, 1, 2]
    assert router.loads == [3, 2, 1]
    assert router.place(request("b", (7, 8))) == 2
    for name in ("a0", "a1", "a2", "b"):
        router.end(name)
    assert [router.place(request(f"c{i}", (200 + i,))) for i in range(2)] == [0, 1]


def test_a_conversation_stays_where_it_began_while_waiting_there_is_shorter_than_computing_it_elsewhere() -> None:
    router = Router(2, CACHE)
    home = router.place(request("turn 0", LONG))
    router.end("turn 0")
    for turn in range(1, 4):
        prompt = LONG + tuple(range(turn * 10))
        assert router.place(request(f"turn {turn}", prompt)) == home
        router.end(f"turn {turn}")
    assert router.place(request("waits", (9,) * len(LONG)), wanted=home) == home
    assert router.place(request("moves", (*LONG, 2))) != home, "a prompt as long waits there already"
    router.end("moves")
    router.forget_prefixes()
    assert router.place(request("again", LONG), wanted=home) == home
    router.generated("waits")
    router.generated("again")
    assert router.place(request("stays", (*LONG, 2))) == home, "nothing waits there any more"


def test_a_session_stays_on_its_engine_though_its_prompts_have_nothing_in_common() -> None:
    router = Router(4, CACHE)
    home = router.place(request("first", LONG, session="s"))
    router.end("first")
    for i in range(5):
        assert router.place(request(f"turn {i}", (100 + i,) * 20, session="s")) == home
        router.end(f"turn {i}")
    router.place(request("waits", (7,) * 200), wanted=home)
    assert router.place(request("moves", (50,) * 20, session="s")) != home, "it is much fuller"
    router.lose(home)
    assert router.place(request("other", (60,) * 20, session="s")) != home


def test_routers_that_do_not_know_of_each_other_do_not_herd() -> None:
    """16 routers get a burst of 8 requests each for 8 engines; no engine has more than 1.5 times the mean."""
    routers = [Router(8, CACHE, name=f"router {i}") for i in range(16)]
    placed = [
        router.place(request(f"{i} {j}", (1000 + 8 * i + j,) * 40))
        for j in range(8)
        for i, router in enumerate(routers)
    ]
    first = placed[:16]
    assert max(map(first.count, range(8))) <= 5, "they begin with different engines"
    assert max(map(placed.count, range(8))) <= 1.5 * len(placed) / 8


def test_a_salt_keeps_prefixes_apart_and_a_reset_forgets_them() -> None:
    router = Router(2, CACHE)
    home = router.place(request("a", LONG, "salt"))
    assert router.place(request("other salt", LONG)) != home  # no hit, so the load decides
    assert router.place(request("b", LONG, "salt")) == home
    for name in ("a", "other salt", "b"):
        router.end(name)
    router.forget_prefixes()
    assert router.place(request("c", LONG, "salt")) != home  # it is the other engine's turn


def test_without_prefix_caching_only_the_load_counts() -> None:
    router = Router(2, CacheConfig(33, BLOCK, enable_prefix_caching=False))
    assert [router.place(request(str(i), LONG)) for i in range(4)] == [0, 1, 0, 1]


def test_the_dead_get_nothing_and_the_last_death_is_told() -> None:
    router = Router(2, CACHE)
    home = router.place(request("a", LONG))
    router.lose(home)
    router.lose(home)
    assert router.loads == [0, 0]
    assert router.num_open == 0
    router.generated("a")
    router.end("a")
    assert {router.place(request(f"b{i}", LONG)) for i in range(5)} == {1 - home}
    router.lose(1 - home)
    with pytest.raises(EngineDead):
        router.place(request("c", LONG))
    assert router.num_open == 0


def test_a_paused_engine_keeps_its_requests_and_its_cache_and_a_distant_one_is_used_when_the_near_one_is_full() -> None:
    router = Router(1, CACHE)
    router.join(1, distance=PENDING_WEIGHT * 3 * len(LONG))
    assert [router.place(request(f"a{i}", (i,) * len(LONG))) for i in range(4)] == [0, 0, 0, 1]
    router.pause(0)
    assert router.place(request("b", LONG)) == 1
    assert router.loads == [3 * len(LONG), 2 * len(LONG)]
    router.end("a0")
    router.go_on(0)
    assert router.loads[0] == 2 * len(LONG)
    assert router.place(request("c", (1,) * len(LONG) + (2,))) == 0, "it has the prefix still"


def test_who_asks_for_an_engine_gets_it_and_is_counted_there() -> None:
    router = Router(2, CACHE)
    assert [router.place(request(str(i), LONG), wanted=1) for i in range(3)] == [1, 1, 1]
    assert router.loads == [0, 3 * len(LONG)]
    router.lose(1)
    with pytest.raises(EngineDead, match="Engine 1 has ended"):
        router.place(request("late", LONG), wanted=1)
    assert router.num_open == 0


def test_an_index_forgets_what_was_sent_longest_ago_tails_first() -> None:
    index = PrefixIndex(3)
    index.add([b"a", b"b"])
    index.add([b"x", b"y"])
    assert (index.match([b"a", b"b"]), index.match([b"x", b"y"]), len(index)) == (1, 2, 3)
    index.add([bytes([i]) for i in range(9)])
    assert index.match([bytes([i]) for i in range(9)]) == 3
    index.clear()
    assert index.match([b"x"]) == 0


prompts = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=12),
    st.builds(lambda n, tail: [7] * n + tail, st.integers(1, 40), st.lists(st.integers(0, 1), max_size=3)),
).map(tuple)


class RouterMachine(RuleBasedStateMachine):
    """Any order of events, against an account kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(3, CACHE)
        self.open: dict[str, tuple[int, int]] = {}
        self.pending: dict[str, int] = {}
        self.dead: set[int] = set()
        self.count = 0
        self.sent = [PrefixIndex(CACHE.num_blocks - 1) for _ in range(3)]
        self.placed = [0] * 3

    @rule(prompt=prompts, salt=st.sampled_from(["", "salt"]))
    def place(self, prompt: tuple[int, ...], salt: str) -> None:
        self.count += 1
        name = f"r{self.count}"
        if len(self.dead) == 3:
            with pytest.raises(EngineDead):
                self.router.place(request(name, prompt, salt))
            return
        before = self.router.loads
        chain = HashChain(BLOCK, salt)
        chain.extend(prompt, len(prompt) // BLOCK)
        cached = [sent.match(chain.digests[: (len(prompt) - 1) // BLOCK]) * BLOCK for sent in self.sent]
        waiting = [sum(self.pending[name] for name, (at, _) in self.open.items() if at == i) for i in range(3)]
        turns = [i + self.placed[i] * 3 for i in range(3)]
        uncached = [len(prompt) - each for each in cached]
        views = [EngineView(i not in self.dead, waiting[i], before[i], uncached[i], turns[i]) for i in range(3)]
        chosen = self.router.place(request(name, prompt, salt))
        assert chosen == choose(views)  # among all of them, though it looks at few
        self.sent[chosen].add(chain.digests)
        self.placed[chosen] += 1
        loads = [load_of(view.num_pending_tokens, view.num_open_tokens) for view in views]
        least = min(load for i, load in enumerate(loads) if i not in self.dead)
        assert loads[chosen] <= least + PENDING_WEIGHT * len(prompt)  # imbalance is bounded
        self.open[name], self.pending[name] = (chosen, len(prompt)), uncached[chosen]

    @rule(data=st.data())
    def generate(self, data: st.DataObject) -> None:
        if self.open:
            name = data.draw(st.sampled_from(sorted(self.open)))
            self.router.generated(name)
            self.open[name], self.pending[name] = (self.open[name][0], self.open[name][1] + 1), 0

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(["never placed", *sorted(self.open)]))
        self.router.end(name)
        self.open.pop(name, None)

    @rule(index=st.sampled_from([0, 1, 2]), is_certain=st.booleans())
    def lose(self, index: int, is_certain: bool) -> None:
        if is_certain and len(self.dead) < 2:  # else most runs would soon have no engine left
            self.router.lose(index)
            self.dead.add(index)
            self.sent[index].clear()
            self.open = {name: entry for name, entry in self.open.items() if entry[0] != index}

    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        if self.dead:
            index = data.draw(st.sampled_from(sorted(self.dead)))
            self.router.join(index)
            self.dead.remove(index)
            self.placed[index] = 0

    @rule()
    def forget(self) -> None:
        self.router.forget_prefixes()
        for sent in self.sent:
            sent.clear()

    @invariant()
    def counts_are_conserved(self) -> None:
        expected = [sum(tokens for at, tokens in self.open.values() if at == i) for i in range(3)]
        assert self.router.loads == expected
        assert self.router.num_open == len(self.open)


TestRouterMachine = RouterMachine.TestCase
