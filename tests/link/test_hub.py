"""Engines behind a hub: requests of workers, a worker's death, and questions between workers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from neuronserve.server.engine.fake_runner import expected_tokens
from neuronserve.server.errors import EngineDead, InvalidRequest, Overloaded, PoisonRequest, QueueFull
from neuronserve.server.link.groups import EngineGroups
from neuronserve.server.link.hub import messages as m
from neuronserve.server.link.hub.hub import Hub
from neuronserve.server.link.hub.remote import RemoteEngines
from neuronserve.server.link.messages import StartTrace
from neuronserve.server.types import Request
from tests.api.serving import PATIENCE_S, VOCAB_SIZE
from tests.link.test_client import read_all, request, until
from tests.link.test_groups import groups_of


def everything(name: str, bodies: Mapping[int, bytes], caller: int) -> list[bytes]:
    """Return all answers, with the call's name and the caller."""
    return [name.encode(), str(caller).encode(), *(bodies[number] for number in sorted(bodies))]


@asynccontextmanager
async def workers_of(groups: EngineGroups, count: int, max_open: int = 64) -> AsyncIterator[list[RemoteEngines]]:
    """The workers of a hub of their own."""
    async with hub_of(groups) as hub, workers_at(hub, count, max_open) as workers:
        yield workers


@asynccontextmanager
async def hub_of(groups: EngineGroups) -> AsyncIterator[Hub]:
    hub = Hub(groups, everything)
    try:
        yield hub
    finally:
        hub.close()


@asynccontextmanager
async def workers_at(hub: Hub, count: int, max_open: int = 64) -> AsyncIterator[list[RemoteEngines]]:
    """Workers on the loop that the hub is on; the last of them is connected after it has opened."""
    workers: list[RemoteEngines] = []
    async with AsyncExitStack() as stack:
        for number in range(count):
            if number == count - 1:
                hub.open(max_open)
            ours, theirs = socket.socketpair()
            await hub.connect(number, ours, lambda: None)
            workers.append(RemoteEngines(theirs))
            await workers[-1].connect()
            stack.push_async_callback(workers[-1].stop, 0)
        following = asyncio.create_task(hub.follow_states())
        stack.callback(following.cancel)
        infos = await asyncio.wait_for(asyncio.gather(*(each.start(lambda _: None) for each in workers)), PATIENCE_S)
        assert len(set(map(id, infos))) == count
        yield workers


async def test_every_worker_gets_its_own_tokens_and_knows_where_they_are_from() -> None:
    prompt = tuple(range(40))
    async with groups_of("slow:0.001", "slow:0.001") as groups, workers_of(groups, 2) as workers:
        streams = [
            worker.submit([request(f"{number}-{i}", 8, prompt) for i in range(4)])
            for number, worker in enumerate(workers)
        ]
        for number, stream in enumerate(streams):
            events = await asyncio.wait_for(read_all(stream), PATIENCE_S)
            assert {event.request_id for event in events} == {f"{number}-{i}" for i in range(4)}
            for i in range(4):
                tokens = [event.token_id for event in events if event.request_id == f"{number}-{i}"]
                assert tokens == expected_tokens(list(prompt), 8, VOCAB_SIZE)
            assert sorted(stream.engines.values()) == [0, 0, 1, 1]
        await until(lambda: all(worker.num_open == 0 for worker in workers))
        assert [worker.states for worker in workers] == [("serving", "serving")] * 2
        with workers[0].submit([request("asked", 4, prompt)], 1) as stream:
            await asyncio.wait_for(read_all(stream), PATIENCE_S)
            assert stream.engines == {"asked": 1}


async def test_a_worker_that_comes_while_the_others_are_told_of_the_engines_knows_how_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("neuronserve.server.link.hub.hub.STATE_PERIOD_S", 0)  # at every turn of the loop
    async with groups_of("slow:0.001", "slow:0.001") as groups, hub_of(groups) as hub:
        following = asyncio.create_task(hub.follow_states())
        hub.open(64)
        ours, theirs = socket.socketpair()
        worker = RemoteEngines(theirs)
        await hub.connect(0, ours, lambda: None)
        await worker.connect()
        await until(lambda: worker.states == ("serving", "serving"))
        following.cancel()
        await worker.stop(0)


async def test_a_worker_that_ends_while_it_is_connected_is_not_kept() -> None:
    async with groups_of("fast") as groups, hub_of(groups) as hub:
        ours, theirs = socket.socketpair()
        theirs.close()
        session = await hub.connect(0, ours, lambda: None)
        await asyncio.wait_for(session.ended.wait(), PATIENCE_S)
        assert list(hub.workers) == []


async def test_what_a_worker_leaves_open_is_ended() -> None:
    async with groups_of("slow:0.005") as groups, workers_of(groups, 2) as (gone, there):
        gone.submit([request("a", 400), request("b", 400)])
        with there.submit([request("c", 400)]) as stream:
            await until(lambda: groups.num_open == 3)
            await until(lambda: there.num_open == 3)  # it knows of the others'
            await gone.stop(0)
            await until(lambda: groups.num_open == 1 and there.num_open == 1)
            assert await asyncio.wait_for(stream.next(), PATIENCE_S)
        await until(lambda: groups.num_open == 0)


async def test_the_hub_refuses_what_is_beyond_the_limit_of_all() -> None:
    async with groups_of("slow:0.005") as groups, workers_of(groups, 2, max_open=3) as (one, other):
        with one.submit([request("a", 400), request("b", 400)]):
            refused = other.submit([request("c", 400), request("d", 400)])
            with refused, pytest.raises(QueueFull, match="at most 3"):
                await asyncio.wait_for(read_all(refused), PATIENCE_S)
            with other.submit([request("e", 400)]) as stream:
                assert await asyncio.wait_for(stream.next(), PATIENCE_S)
            assert groups.num_open <= 3
        await until(lambda: groups.num_open == 0)


async def test_an_error_of_an_engine_is_the_same_in_the_worker() -> None:
    error = PoisonRequest("This request has brought the engine down twice.")
    async with groups_of("slow:0.005") as groups, workers_of(groups, 1) as (worker,):
        with worker.submit([request("a", 400), request("b", 400)]) as stream:
            await until(lambda: groups.num_open == 2)
            next(iter(groups.clients[0].journal)).stream.fail(error)
            with pytest.raises(PoisonRequest, match=error.message):
                await asyncio.wait_for(read_all(stream), PATIENCE_S)
        await until(lambda: groups.num_open == 0)  # the other choice ends with it


async def test_workers_ask_each_other_and_do_not_wait_for_one_that_is_silent() -> None:
    async def shout(body: bytes) -> bytes:
        return body.upper()

    async def sleep(body: bytes) -> bytes:
        await asyncio.sleep(PATIENCE_S)
        return body

    async with groups_of("fast") as groups, workers_of(groups, 3) as (one, two, three):
        two.handle("shout", shout)
        three.handle("shout", sleep)
        assert await asyncio.wait_for(one.call("shout", b"a"), PATIENCE_S) == [b"shout", b"0", b"a", b"A"]
        await three.stop(0)
        assert await asyncio.wait_for(two.call("whisper", b"b"), PATIENCE_S) == [b"whisper", b"1", b"", b"b"]


async def test_who_asks_for_what_one_has_waits_for_that_one_alone() -> None:
    async def silence(body: bytes) -> bytes:
        await asyncio.Event().wait()
        return body

    async def nothing(body: bytes) -> bytes:
        del body
        return b""

    async def find(body: bytes) -> bytes:
        await asyncio.sleep(0.01)
        return body.upper()

    async with groups_of("fast") as groups, workers_of(groups, 4) as (one, two, three, four):
        for worker, handler in ((two, nothing), (three, silence), (four, find)):
            worker.handle("find", handler)
        said = await asyncio.wait_for(one.call("find", b"a", is_for_one=True), PATIENCE_S)
        assert said == [b"find", b"0", b"a", b"", b"A"]  # the one who is silent had not come
        await four.stop(0)
        said = await asyncio.wait_for(one.call("find", b"a", is_for_one=True), PATIENCE_S)
        assert said == [b"find", b"0", b"a", b""]


async def test_orders_reach_the_engines_and_their_replies_come_back() -> None:
    async with groups_of("fast", "fast") as groups, workers_of(groups, 1) as (worker,):
        replies = await asyncio.wait_for(worker.trace(StartTrace()), PATIENCE_S)
        assert [reply.error is None for reply in replies] == [False, False]  # they have no directory for traces


def test_errors_cross_the_wire_by_their_names() -> None:
    for error in (EngineDead("why"), InvalidRequest("why", "field", "code"), Overloaded("why", "max_queue_delay", 7)):
        sent = msgspec.msgpack.encode(m.Raised.of(error))
        there = msgspec.msgpack.decode(sent, type=m.Raised).error
        assert (type(there), str(there), vars(there)) == (type(error), "why", vars(error))


async def test_a_worker_asks_and_tells_the_process_that_has_the_engines() -> None:
    told: list[tuple[int, bytes]] = []

    def note(number: int, body: bytes) -> bytes:
        told.append((number, body))
        return body.upper()

    async def refuse(number: int, body: bytes) -> bytes:
        raise InvalidRequest(f"{number} may not", body.decode())

    async with groups_of("fast") as groups, hub_of(groups) as hub, workers_at(hub, 2) as workers:
        hub.offer("note", note)
        hub.offer("refuse", refuse)
        hub.at_end(lambda number: told.append((number, b"ended")))
        workers[1].tell("note", b"a")
        assert await asyncio.wait_for(workers[1].ask("note", b"b"), PATIENCE_S) == b"B"
        with pytest.raises(InvalidRequest, match="0 may not") as refused:
            await asyncio.wait_for(workers[0].ask("refuse", b"field"), PATIENCE_S)
        assert refused.value.param == "field"
        await workers[1].stop(0)
        await until(lambda: told == [(1, b"a"), (1, b"b"), (1, b"ended")])
        assert hub.workers == (0,)


async def test_who_is_not_let_in_is_told_before_anything_is_computed() -> None:
    def admit(number: int, requests: Sequence[Request], rank: int | None, entry: bytes) -> None:
        if entry == b"late":
            raise Overloaded(f"{number}: {len(requests)} for {rank}", "max_queue_delay", 7)

    async with groups_of("slow:0.005") as groups, hub_of(groups) as hub, workers_at(hub, 1) as (worker,):
        hub.admit = admit
        with pytest.raises(Overloaded, match="0: 2 for 0") as refused:
            await asyncio.wait_for(worker.enter([request("a", 4), request("b", 4)], 0, b"late"), PATIENCE_S)
        assert refused.value.retry_after_s == 7
        with worker.submit([request("c", 4)], None, b"late") as stream, pytest.raises(Overloaded):
            await asyncio.wait_for(read_all(stream), PATIENCE_S)  # who does not wait is told by the stream
        assert (groups.num_open, worker.num_open) == (0, 0)
        with await asyncio.wait_for(worker.enter([request("d", 400)], None, b"in time"), PATIENCE_S) as stream:
            assert await asyncio.wait_for(stream.next(), PATIENCE_S)
            entering = asyncio.create_task(worker.enter([request("e", 400)], None, b"in time"))
            await asyncio.sleep(0)
            entering.cancel()  # its client has left while it waited
            await until(lambda: groups.num_open == 1 and worker.num_open == 1)
        await until(lambda: groups.num_open == 0)
