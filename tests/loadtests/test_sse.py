"""The parser of event streams: the same events for any split of the bytes, and bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.loadtests import sse
from neuronserve.loadtests.sse import SseError, SseParser

LINE = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\r\n"), max_size=20)
PAYLOAD = LINE.map(lambda text: text.encode()).filter(lambda data: not data.startswith(b" "))


def feed_all(chunks: list[bytes]) -> list[bytes]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@given(payloads=st.lists(PAYLOAD, max_size=8), end=st.sampled_from([b"\n", b"\r\n", b"\r"]), data=st.data())
def test_any_split_of_the_stream_gives_the_same_events(payloads: list[bytes], end: bytes, data: st.DataObject) -> None:
    # A comment last: after a lone CR at the very end a parser cannot know that no LF follows.
    stream = b"".join(b"data: " + payload + end + end for payload in payloads) + b": end\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert feed_all(pieces) == payloads


def test_an_event_may_have_several_data_lines() -> None:
    assert feed_all([b"data: a\ndata: b\n\n"]) == [b"a\nb"]


def test_comments_and_other_fields_are_dropped() -> None:
    assert feed_all([b": keep-alive\n\nevent: x\nid: 7\nretry: 1\ndata: a\n\n"]) == [b"a"]


def test_data_without_a_space_is_data() -> None:
    assert feed_all([b"data:{}\n\n"]) == [b"{}"]


def test_a_stream_cut_inside_an_event_is_noticed() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: b") == [b"a"]
    assert parser.is_inside_event
    assert parser.feed(b"\n\n") == [b"b"]
    assert not parser.is_inside_event


def test_an_event_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    parser = SseParser()
    for _ in range(9):
        parser.feed(b"data: " + b"x" * 100)
    with pytest.raises(SseError, match="larger than 1000 bytes"):
        parser.feed(b"x" * 100)


def test_the_size_limit_is_of_one_event_and_not_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    parser = SseParser()
    for _ in range(50):
        assert parser.feed(b"data:" + b"x" * 100 + b"\n") == []
        assert parser.feed(b"\n") == [b"x" * 100]
