"""Encodings that requests wait for: computed once for all that share them, within a budget, in bounded steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.scheduler.encodings import EncodingBooks, EncodingLimits, EncodingScheduler
from neuronserve.server.types import MediaItem, StepPlan
from tests.scheduler.scheduler_harness import Bench, expected_output, request

SIZE, BUDGET, FIRST, LOST = 4, 12, 100, 3


def item(name: int, num_tokens: int = 1) -> MediaItem:
    return MediaItem(bytes([name]), 0, num_tokens, b"", (1, 1))


def limits(num_blocks: int, block_size: int = SIZE) -> EncodingLimits:
    def check(request: Any) -> str | None:
        return next(("no picture" for each in request.media if each.num_tokens == LOST), None)

    return EncodingLimits(block_size, num_blocks, FIRST, BUDGET, check)


def by_key(*items: MediaItem) -> dict[bytes, MediaItem]:
    return {each.digest: each for each in items}


def test_the_least_recently_used_make_room() -> None:
    books = EncodingBooks(limits(3, 1))
    for name in (1, 2, 3):
        assert books.hold(by_key(item(name)))
        books.release(by_key(item(name)))
    assert books.hold(by_key(item(1)))  # used again
    assert books.hold(by_key(item(4)))
    assert list(books.kept) == [bytes([3]), bytes([1]), bytes([4])]
    assert not books.hold(by_key(item(5), item(6))), "one of the two blocks is held"
    assert (books.num_queries, books.num_hits) == (5, 1)


names = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)


@given(st.lists(st.one_of(names, st.just([])), max_size=40), st.integers(10, 16))
def test_blocks_of_the_kept_are_distinct_and_those_of_open_requests_stay(steps: list[list[int]], most: int) -> None:
    """An empty step ends the oldest request."""
    books, open_ones = EncodingBooks(limits(most)), list[dict[bytes, MediaItem]]()
    for each in steps:
        items = by_key(*(item(name, name + 1) for name in each))
        before = {key: books.kept.get(key) for held in open_ones for key in held}
        if items and books.hold(items):
            open_ones.append(items)
        elif items:
            assert open_ones, "a request alone finds room"
        elif open_ones:
            books.release(open_ones.pop(0))
        assert all(books.kept[key] == blocks for key, blocks in before.items())
        blocks = [block for each in books.kept.values() for block in each]
        assert len(blocks) == len(set(blocks))
        assert set(blocks) <= set(range(FIRST, FIRST + most))
        assert all(len(books.kept[key]) == key[0] // SIZE + 1 for key in books.kept)
        assert set(books.holders) == {key for held in open_ones for key in held}


class EncodingBench:
    """A scheduler of encodings over a checked bench of sequences; holds what each step may encode and read."""

    def __init__(self, num_blocks: int = 60, num_encodings: int = 5, max_num_seqs: int = 3) -> None:
        config = SchedulerConfig(32, max_num_seqs, BUDGET)
        self.bench = Bench(CacheConfig(num_blocks, SIZE, True, max_chunk=BUDGET), config)
        self.fake = self.bench.runner
        self.bench.runner = self  # type: ignore[assignment]
        self.scheduler = self.bench.scheduler = EncodingScheduler(self.bench.scheduler, limits(num_encodings))  # type: ignore[assignment]
        self.generation = self.scheduler._texts
        self.bench.check_books = self.check_books  # type: ignore[method-assign]
        self.bench.check_plan = lambda plan: None  # type: ignore[method-assign]
        self.content: dict[int, tuple[str, bytes]] = {}  # salt and item of the encoding in each block
        self.num_encoded = 0

    def check_books(self) -> None:
        assert self.generation.audit() == []  # type: ignore[attr-defined]

    def execute(self, plan: StepPlan) -> Any:
        lengths = [each.item.num_tokens for each in plan.encodings]
        assert not (lengths and plan.seqs)
        assert sum(lengths) <= max(BUDGET, lengths[0] if lengths else 0)
        for each in plan.encodings:
            salt = self.bench.requests[each.request_id].cache_salt
            self.content |= dict.fromkeys(each.blocks, (salt, each.item.digest))
        self.num_encoded += len(lengths)
        for seq in plan.seqs:
            salt = self.bench.requests[seq.request_id].cache_salt
            expected = [(salt, each.digest) for each in seq.media for _ in range(-(-each.num_tokens // SIZE))]
            assert [self.content[block] for block in seq.encoded] == expected
        return self.fake.execute(plan)

    def add(self, name: str, *items: MediaItem, most: int = 4, **fields: Any) -> None:
        self.bench.add(request(name, [1, 2], most, media=items, arrival_time=len(self.bench.requests), **fields))


loads = st.tuples(st.integers(1, 9), st.lists(st.integers(1, 9), max_size=2), st.integers(1, 12), st.integers(0, 4))


@given(st.lists(loads, min_size=1, max_size=8), st.integers(0, 12), st.integers(10, 20))
def test_every_request_reads_its_own_encodings_and_writes_its_tokens(
    given_loads: list[tuple[int, list[int], int, int]], spare: int, num_encodings: int
) -> None:
    """Whatever waits, is preempted or drops out of the budget, each miss of the books is encoded once."""
    one = EncodingBench(8 + spare, num_encodings)
    for i, (length, media, most, wait) in enumerate(given_loads):
        items = tuple(item(name, 2 * name) for name in media)
        salt = "s" * (i % 3 == 2)
        one.bench.add(request(str(i), list(range(length)), most, media=items, tenant=str(i % 2), cache_salt=salt))
        for _ in range(wait):
            if one.scheduler.has_work:
                one.bench.step()
    one.bench.finish()
    for name, each in one.bench.requests.items():
        assert one.bench.tokens(name) == expected_output(each, 32)
    books = one.scheduler.books
    assert one.num_encoded == books.num_queries - books.num_hits
    assert not books.holders
    assert one.bench.cache.usage == 0


def test_requests_with_one_content_encode_it_once_and_share_its_blocks() -> None:
    one = EncodingBench()
    for name in ("a", "b", "c"):
        one.add(name, item(1, 20))
    plans = [one.bench.step() for _ in range(2)]
    assert [each.request_id for each in plans[0].encodings] == ["a"], "who came first is charged"
    assert [seq.request_id for seq in plans[1].prefill] == ["a", "b", "c"]
    one.bench.finish()
    one.add("later", item(1, 20))
    one.bench.finish()
    one.add("other salt", item(1, 20), cache_salt="s")
    one.bench.finish()
    report = one.bench.reports[-1]
    assert (one.num_encoded, report.encoding_queries, report.encoding_hits) == (2, 5, 3)


def test_a_step_encodes_what_fits_and_takes_turns_with_tokens() -> None:
    one = EncodingBench(num_encodings=20)
    one.add("text", most=9)
    for name, size in enumerate((5, 6, 2, 20)):
        one.add(str(name), item(name, size))
    steps = [
        (plan.num_encoder_tokens, len(plan.encodings), plan.num_tokens > 0)
        for plan in (one.bench.step() for _ in range(6))
    ]
    assert steps[:5] == [(11, 2, False), (0, 0, True), (2, 1, False), (0, 0, True), (20, 1, False)]
    assert sum(report.num_encoder_tokens for report in one.bench.reports) == 33


def test_a_request_without_room_waits_and_those_with_encodings_pass_it() -> None:
    one = EncodingBench(num_encodings=5, max_num_seqs=2)
    one.add("first", item(1, 12), most=6)
    one.bench.step()
    one.add("waits", item(2, 12), most=1)
    one.add("behind", item(3, 4), most=1)
    one.add("same", item(1, 12), most=1)
    one.add("text", most=1)
    order: list[str] = []
    while one.scheduler.has_work:
        order += one.bench.step().admitted
    assert order == ["first", "same", "text", "waits", "behind"]


@pytest.mark.parametrize("when", ["queued", "in flight", "encoded"])
def test_aborted_requests_leave_no_blocks_behind(when: str) -> None:
    one = EncodingBench(num_encodings=5)
    one.add("a", item(1, 20))
    one.add("b", item(2, 4))
    plan = one.scheduler.schedule(1.0) if when == "in flight" else None
    if when == "encoded":
        one.bench.step()
    victim = "b" if when == "queued" else "a"
    assert one.bench.abort(victim) is not None
    assert one.bench.abort(victim) is None
    if plan is not None:
        one.scheduler.apply(plan, one.execute(plan), 1.0)
    one.bench.finish()
    assert not one.scheduler.books.holders
    assert not one.scheduler.open_ids


def test_a_failed_request_has_its_items_encoded_again_for_the_next() -> None:
    one = EncodingBench()
    one.bench.broken.add("bad")
    for name in ("bad", "good"):
        one.add(name, item(1, 8))
        one.bench.finish()
    assert one.num_encoded == 2


def test_media_that_cannot_be_encoded_end_their_request_alone() -> None:
    one = EncodingBench(num_encodings=2)
    one.add("bad", item(1, LOST))
    one.add("long", item(2, 4), item(3, 5))
    one.add("fine", item(4, 8))
    one.bench.finish()
    assert one.bench.events["bad"][-1].error == "no picture"
    assert one.bench.events["long"][-1].error == "its encodings take 3 blocks: there are 2"
    assert len(one.bench.tokens("fine")) == 4
