"""Digests name a whole prefix and its salt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.kv_cache.hashing import HashChain, root_digest

tokens = st.lists(st.integers(0, 3), max_size=9)
salts = st.sampled_from(["", "a", "b"])


def digests(token_ids: list[int], salt: str, block_size: int = 3, lora: str = "") -> list[bytes]:
    chain = HashChain(block_size, salt, lora)
    chain.extend(token_ids, len(token_ids) // block_size)
    return chain.digests


scopes = st.tuples(salts, st.sampled_from(["", "ab", "cd"]))


@given(tokens, tokens, scopes, scopes)
def test_digests_are_equal_exactly_where_salt_adapter_and_whole_prefix_are(
    a: list[int], b: list[int], scope_a: tuple[str, str], scope_b: tuple[str, str]
) -> None:
    made = [digests(each, salt, lora=lora) for each, (salt, lora) in ((a, scope_a), (b, scope_b))]
    for i, (x, y) in enumerate(zip(*made, strict=False)):
        end = (i + 1) * 3
        assert (x == y) == (scope_a == scope_b and a[:end] == b[:end])


@given(tokens, st.integers(1, 4), st.data())
def test_a_chain_grown_in_pieces_equals_one_made_at_once(
    token_ids: list[int], block_size: int, data: st.DataObject
) -> None:
    chain = HashChain(block_size, "s")
    full = len(token_ids) // block_size
    for end in sorted(data.draw(st.lists(st.integers(0, full)))):
        chain.extend(token_ids[: end * block_size], end)
    chain.extend(token_ids, full)
    assert chain.digests == digests(token_ids, "s", block_size)


def test_a_digest_names_the_value_of_a_token_and_not_its_digits() -> None:
    assert digests([1, 23], "", 2) != digests([12, 3], "", 2)
    assert digests([151_935], "", 1) != digests([151_935 - 65_536], "", 1)


def test_a_salt_may_hold_a_lone_surrogate() -> None:
    assert root_digest("\ud800") != root_digest("\ud801")


def test_an_adapter_has_digests_of_its_own_whatever_the_salt_is() -> None:
    """A salt is a client's to choose: none makes a request find what an adapter, or none, has computed."""
    adapter = "ab" * 32
    forged = [f"lora {adapter}:", f"{adapter}:", f"\0{adapter}", "neuronserve:", adapter]
    roots = [root_digest(salt, lora) for salt in ("", "s", *forged) for lora in ("", adapter, "cd" * 32)]
    assert len(set(roots)) == len(roots)
    first, second = HashChain(1, "s", adapter), HashChain(1, "s")
    for chain in (first, second):
        chain.extend([1, 2], 2)
    assert not set(first.digests) & set(second.digests)
