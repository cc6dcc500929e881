"""The ledger of models that share cores: nothing is held twice, and no more ends than has to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.placement.shared_cores import Account, SharedCores

CORES, CORE_BYTES, HOST_BYTES = 4, 100, 300


def account(cores: int, num_bytes: int, host: int = 0) -> Account:
    return Account((num_bytes,) * cores, host, 8, {})


def room() -> SharedCores:
    return SharedCores(range(CORES), CORE_BYTES, HOST_BYTES)


def test_models_lie_beside_each_other_then_on_other_cores_then_in_place_of_idle_ones() -> None:
    shared = room()
    assert shared.enter("a", account(2, 60), ()) == []
    assert shared.enter("b", account(2, 40), ()) == []
    assert shared.enter("c", account(2, 60), ()) == []
    assert [shared.cores_of(name) for name in "abc"] == ["0-1", "0-1", "2-3"]
    assert shared.enter("d", account(4, 70), ["b"]) is None
    assert shared.enter("d", account(2, 60), ["c", "a"]) == ["c"]
    assert shared.cores_of("d") == "2-3"
    assert shared.enter("e", account(1, 70), ["d", "b", "a"]) == ["d"]


def test_only_those_that_are_in_the_way_end() -> None:
    shared = room()
    for name in "ab":
        assert shared.enter(name, account(2, 60), ()) == []
    assert shared.enter("c", account(2, 40), ()) == []
    assert shared.enter("whole", account(4, 50), ["b", "a", "c"]) == ["b", "a"]


Sizes = st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, CORE_BYTES), st.integers(0, HOST_BYTES))


@given(st.lists(st.tuples(st.integers(0, 5), Sizes, st.randoms(use_true_random=False)), max_size=20))
def test_no_core_and_no_host_is_ever_overfull(steps: list[tuple[int, tuple[int, int, int], object]]) -> None:
    shared, held = room(), dict[str, Account]()
    for number, size, random in steps:
        name, wanted = str(number), account(*size)
        if name in held:
            shared.leave(name)
            del held[name]
            continue
        idle = [each for each in held if random.random() < 0.5]  # type: ignore[attr-defined]
        gone = shared.enter(name, wanted, idle)
        if gone is not None:
            assert set(gone) <= set(idle)
            held = {key: each for key, each in held.items() if key not in gone} | {name: wanted}
        assert sum(each.host_bytes for each in held.values()) <= HOST_BYTES
        used = dict.fromkeys(range(CORES), 0)
        for key, each in held.items():
            begin, _, end = shared.cores_of(key).partition("-")
            for rank, core in enumerate(range(int(begin), int(end or begin) + 1)):
                used[core] += each.on(rank)
        assert max(used.values()) <= CORE_BYTES
