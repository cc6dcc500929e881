"""Messages over a socket pair: each once, whole and in order, even if a process is slow or has ended."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest

from neuronserve.server.link.frames import Frames

MESSAGES = [random.Random(size).randbytes(size) for size in (0, 1, 300, 65532, 65536, 65540, 3_000_000, 5)]


@pytest.fixture
def ends() -> Iterator[tuple[Frames, Frames]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Frames(ours), Frames(theirs)


def test_a_writer_does_not_wait_for_its_reader(ends: tuple[Frames, Frames]) -> None:
    writer, reader = ends
    for message in MESSAGES:
        writer.send(message)
    assert writer.has_unsent
    received: list[bytes] = []
    while writer.has_unsent:
        received += reader.read()
        writer.wait(60)
    assert [*received, *reader.read()] == MESSAGES
    assert list(reader.read()) == []
    assert not reader.has_ended


def test_messages_that_wait_leave_with_the_next_one(ends: tuple[Frames, Frames]) -> None:
    writer, reader = ends
    for message in (b"a", b"b"):
        assert writer.send(message, waits=True)
    assert list(reader.read()) == []
    writer.send(b"c")
    assert (list(reader.read()), writer.has_unsent) == ([b"a", b"b", b"c"], False)


def test_what_was_sent_before_an_end_is_read_after_it(ends: tuple[Frames, Frames]) -> None:
    writer, reader = ends
    for message in MESSAGES[:3]:
        writer.send(message)
    writer.close(timeout_s=60)
    reader.wait(60)
    assert list(reader.read()) == MESSAGES[:3]
    assert list(reader.read()) == []
    assert reader.has_ended


def test_a_message_that_was_cut_by_the_end_is_none(ends: tuple[Frames, Frames]) -> None:
    writer, reader = ends
    writer.send(MESSAGES[1])
    writer.send(MESSAGES[6])
    assert writer.has_unsent
    writer.close(timeout_s=0)
    assert [*reader.read(), *reader.read()] == [MESSAGES[1]]
    assert reader.has_ended


def test_a_writer_outlives_its_reader(ends: tuple[Frames, Frames]) -> None:
    writer, reader = ends
    writer.send(MESSAGES[6])
    reader.close()
    assert reader.is_closed
    assert not writer.flush()
    assert not writer.send(b"lost")
    writer.close(timeout_s=60)
