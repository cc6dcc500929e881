"""Books of pictures' vectors: the bound, what is dropped for others, and the request that always finds room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.scheduler.pictures import PictureLimits, VectorBooks
from neuronserve.server.types import MediaItem


def picture(name: int, num_tokens: int = 1) -> MediaItem:
    return MediaItem(bytes([name]), 0, num_tokens, b"", (1, 1))


def books(most_bytes: int) -> VectorBooks:
    return VectorBooks(PictureLimits(1, most_bytes, lambda _: None))


def test_the_least_recently_used_make_room() -> None:
    kept = books(3)
    for name in (1, 2, 3):
        assert kept.hold((picture(name),)) == []
        kept.release((picture(name),))
    assert kept.hold((picture(1),)) == []  # used again
    assert kept.hold((picture(4),)) == [bytes([2])]
    assert list(kept.kept) == [bytes([3]), bytes([1]), bytes([4])]


def test_vectors_of_open_requests_stay_and_others_wait() -> None:
    kept = books(3)
    assert kept.hold((picture(1, 9),)) == []  # alone, it finds room
    assert kept.hold((picture(2),)) is None
    kept.release((picture(1, 9),))
    assert kept.hold((picture(2),)) == [bytes([1])]


requests = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)


@given(st.lists(st.one_of(requests, st.just([])), max_size=40), st.integers(1, 12))
def test_bytes_are_those_of_the_kept_and_within_the_bound(steps: list[list[int]], most: int) -> None:
    """An empty step ends the oldest request."""
    kept, open_ones = books(most), list[tuple[MediaItem, ...]]()
    for names in steps:
        media = tuple(picture(name, name + 1) for name in names)
        if media and kept.hold(media) is not None:
            open_ones.append(media)
        elif not media and open_ones:
            kept.release(open_ones.pop(0))
        assert kept.num_bytes == sum(kept.kept.values())
        held = {each.digest for media in open_ones for each in media}
        assert held <= set(kept.kept)
        assert set(kept.holders) == held
        assert kept.num_bytes <= most or len(open_ones) <= 1 or not set(kept.kept) - held
