"""Commands about adapters between the sockets and the loop: in their order, beside steps, with one reply each."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from neuronserve.server.engine.adapters import AdapterCommands
from neuronserve.server.engine.inbox import Inbox
from neuronserve.server.errors import CheckpointError
from neuronserve.server.link.messages import (
    Abort,
    AdapterReply,
    Add,
    Command,
    Input,
    LoadAdapter,
    StartTrace,
    UnloadAdapter,
)
from neuronserve.server.types import Request, SamplingParams


class Wire:
    """Messages that have come."""

    def __init__(self) -> None:
        self.commands: list[Input] = []
        self.waits: list[float] = []

    def drain(self, timeout_s: float) -> list[Input]:
        self.waits.append(timeout_s)
        commands, self.commands = self.commands, []
        return commands


class Bank:
    """Loads when it may."""

    def __init__(self) -> None:
        self.may_load = threading.Event()
        self.done: list[str] = []

    def load(self, path: str) -> tuple[str, int]:
        assert self.may_load.wait(60)
        if path == "bad":
            raise CheckpointError("bad", "is no adapter")
        if path == "bug":
            raise RuntimeError("a mistake of ours")
        self.done.append(f"load {path}")
        return f"digest of {path}", 7

    def has(self, digest: str) -> bool:
        return f"load {digest.removeprefix('digest of ')}" in self.done

    def unload(self, digest: str) -> None:
        self.done.append(f"unload {digest}")


def inbox_of(source: Wire, bank: Bank | None, replies: list[AdapterReply]) -> Inbox:
    commands = AdapterCommands(bank, replies.append)
    handlers = {**commands.handlers, StartTrace: lambda _: None}
    return Inbox(source, handlers, [commands.hold], polls=[commands.poll])


def until(inputs: Inbox, condition: Callable[[], bool]) -> None:
    while not condition():
        inputs.drain(0.0)


def test_commands_are_carried_out_in_order_while_others_go_on() -> None:
    source, bank, replies = Wire(), Bank(), list[AdapterReply]()
    inputs = inbox_of(source, bank, replies)
    others = [Abort("a"), Abort("b")]
    source.commands = [others[0], LoadAdapter("x"), StartTrace(), LoadAdapter("bad"), UnloadAdapter("d"), others[1]]
    assert inputs.drain(1.0) == others
    assert inputs.drain(1.0) == []
    assert not replies
    assert source.waits[0] == 1.0
    assert source.waits[1] < 0.1  # a reply may be ready soon
    bank.may_load.set()
    until(inputs, lambda: len(replies) == 3)
    assert replies[0] == AdapterReply("digest of x", 7)
    assert replies[1].error == "bad: is no adapter"
    assert replies[2] == AdapterReply("d")
    assert bank.done == ["load x", "unload d"]
    inputs.drain(1.0)
    assert source.waits[-1] == 1.0


def request(name: str, lora: str = "") -> Add:
    return Add(Request(name, (1,), SamplingParams(1), 0.0, lora=lora))


def test_a_request_waits_for_its_adapter_and_no_other_does() -> None:
    source, bank, replies = Wire(), Bank(), list[AdapterReply]()
    inputs = inbox_of(source, bank, replies)
    early, other, gone = request("early", "digest of x"), request("other"), request("gone", "digest of x")
    source.commands = [LoadAdapter("x"), early, gone, other, Abort("gone")]
    assert inputs.drain(0.0) == [other, gone, Abort("gone")]
    bank.may_load.set()
    passed: list[Command] = []
    while not passed:
        passed += inputs.drain(0.0)
    assert passed == [early]
    source.commands = [late := request("late", "digest of x"), Abort("late")]
    assert inputs.drain(0.0) == [late, Abort("late")]


def test_an_engine_without_room_says_so() -> None:
    source, replies = Wire(), list[AdapterReply]()
    inputs = inbox_of(source, None, replies)
    source.commands = [LoadAdapter("x")]
    until(inputs, lambda: bool(replies))
    assert replies[0].error is not None
    assert "--enable-lora" in replies[0].error


def test_a_mistake_of_ours_ends_the_engine() -> None:
    source, bank = Wire(), Bank()
    inputs = inbox_of(source, bank, [])
    source.commands = [LoadAdapter("bug")]
    bank.may_load.set()
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        until(inputs, lambda: False)
