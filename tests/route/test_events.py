"""Events on their way to the client, however the network divides them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.route.events import Events

EVENTS = [b'data: {"a": 1}', b"event: x\ndata: 2", b"data: [DONE]"]
ENTRIES = [b"[1]", b"[2]"]
STREAM = b"\n\n".join(
    [b": journal [1]", EVENTS[0], b": keep-alive", EVENTS[1], b": journal [2]", EVENTS[2], b""],
)
PASSED = b"\n\n".join([EVENTS[0], b": keep-alive", *EVENTS[1:], b""])


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_whole_events_pass_and_the_journal_stays(cuts: list[int]) -> None:
    events = Events()
    events.begin("model")
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [events.take(STREAM[a:b]) for a, b in itertools.pairwise(edges)]
    assert b"".join(parts) == PASSED
    assert all(part.endswith(b"\n\n") for part in parts if part)
    assert events.entries == ENTRIES
    assert events.num_events == len(EVENTS)


def test_half_an_event_of_a_lost_replica_is_forgotten() -> None:
    events = Events()
    events.begin("model")
    assert events.take(STREAM[:-3]) + b"data: [DONE]\n\n" == PASSED
    events.begin("model")
    assert events.take(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"
    assert events.num_events == len(EVENTS)
    assert events.journal == b"[1]\n[2]\n"


def test_events_of_other_servers_pass_as_they_are() -> None:
    events = Events()
    events.begin("")
    assert events.take(STREAM[:-1]) + events.finish() == STREAM[:-1]
    assert events.journal == b""
