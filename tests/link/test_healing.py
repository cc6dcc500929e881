"""Engines that are killed, fail, stand still or are poisoned: the events that readers of open sequences get."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from neuronserve.server.engine.fake_runner import expected_tokens
from neuronserve.server.errors import EngineDead, PoisonRequest
from neuronserve.server.link.client import EngineClient
from neuronserve.server.link.groups import EngineGroups
from neuronserve.server.link.handle import EngineHandle
from neuronserve.server.link.messages import Tokens
from neuronserve.server.link.restarts import Healing
from neuronserve.server.types import Charge, TokenEvent
from tests.api.serving import PATIENCE_S, VOCAB_SIZE, is_running, run_fake
from tests.link.test_client import config, read_all, request, until

HEALING = Healing(max_restarts=100, window_s=3600.0, hang_timeout_s=None)
POISON = 99


@asynccontextmanager
async def healing_groups(
    device: str, count: int = 1, healing: Healing = HEALING, most_kept_bytes: int = 0
) -> AsyncIterator[EngineGroups]:
    asked = config(device, most_kept_bytes=most_kept_bytes)
    groups = EngineGroups([EngineHandle(asked, run_fake) for _ in range(count)], healing)
    try:
        await asyncio.wait_for(groups.start(lambda _: None), PATIENCE_S)
        yield groups
    finally:
        await groups.stop(5)


def pid_of(client: EngineClient) -> int:
    pid = client.engine.pid
    assert pid is not None
    return pid


async def strike(client: EngineClient, number: int) -> None:
    """Send a signal to an engine that serves, and wait until its end is noticed."""
    await until(lambda: client.is_up)
    os.kill(pid_of(client), number)
    await until(lambda: not client.is_up)


def num_given(client: EngineClient) -> int:
    """Tokens that the open sequences of an engine have given out."""
    return sum(len(sequence.token_ids) for sequence in client.journal)


def assert_undisturbed(events: Sequence[TokenEvent], name: str, prompt: Sequence[int], count: int) -> None:
    own = [event for event in events if event.request_id == name]
    assert [event.index for event in own] == list(range(count))
    assert [event.token_id for event in own] == expected_tokens(prompt, count, VOCAB_SIZE)
    assert [event.finish_reason for event in own] == [None] * (count - 1) + ["length"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS])
async def test_streams_go_on_through_deaths_without_a_token_lost_or_repeated(number: int) -> None:
    prompts = {f"r{i}": tuple(random.Random(i).choices(range(90), k=5 + 3 * i)) for i in range(12)}
    async with healing_groups("slow:0.004") as groups:
        client = groups.clients[0]
        with groups.submit([request(name, 60 + i, prompt) for i, (name, prompt) in enumerate(prompts.items())]) as s:
            reading = asyncio.ensure_future(read_all(s))
            await until(lambda: num_given(client) > 50)
            await strike(client, number)
            await strike(client, number)  # while suspects are tried, if it makes any
            await until(lambda: not client.journal.is_trying and num_given(client) > 200)
            await strike(client, number)
            events = await reading
        for i, (name, prompt) in enumerate(prompts.items()):
            assert_undisturbed(events, name, prompt, 60 + i)
        assert sum(client.breaker.restarts.values()) == 3
        assert client.journal.sequences["resumed"] > 0
        assert groups.num_open == 0


@pytest.mark.slow
@pytest.mark.parametrize("keeps_spare", [False, True])
@pytest.mark.parametrize(("number", "most_kept_bytes"), [(signal.SIGKILL, 2**20), (signal.SIGSEGV, 2**20), (9, 0)])
async def test_whole_blocks_of_a_dead_engine_are_not_computed_again(
    number: int, most_kept_bytes: int, keeps_spare: bool
) -> None:
    healing = replace(HEALING, keeps_spare=keeps_spare)
    prompts = {f"r{i}": tuple(range(i, i + 40)) for i in range(4)}
    async with healing_groups("slow:0.004", healing=healing, most_kept_bytes=most_kept_bytes) as groups:
        client = groups.clients[0]
        await until(lambda: not keeps_spare or client.succession.spare_pid is not None)
        with groups.submit([request(name, 150, prompt) for name, prompt in prompts.items()]) as stream:
            reading = asyncio.ensure_future(read_all(stream))
            await until(lambda: all(len(sequence.token_ids) > 10 for sequence in client.journal))
            os.kill(pid_of(client), number)  # after which a spare engine may serve before anybody looks
            events = await reading
        for name, prompt in prompts.items():
            assert_undisturbed(events, name, prompt, 150)
    again = client.journal.recomputed_tokens
    assert again["prompt"] == (0 if most_kept_bytes else 160)
    assert 4 <= again["generated"] <= 4 * 16 or not most_kept_bytes


async def test_what_was_charged_stays_charged_and_computing_again_is_not() -> None:
    async def charges(is_struck: bool) -> tuple[list[Charge], int]:
        seen: list[Charge] = []
        async with healing_groups("slow:0.004") as groups:
            client = groups.clients[0]
            with groups.submit([request("a", 50, tuple(range(40)))]) as stream:
                while stream.is_open:
                    seen += [charge for _, charge in await asyncio.wait_for(stream.next(), PATIENCE_S)]
                    if is_struck and len(seen) > 9:
                        is_struck = False
                        await strike(client, signal.SIGKILL)
            return seen, client.journal.recomputed_ns

    calm, nothing = await charges(is_struck=False)
    struck, recomputed_ns = await charges(is_struck=True)
    assert nothing == 0 < recomputed_ns
    assert all(one.device_ns <= other.device_ns for one, other in pairwise(struck))
    step_ns = max(other.device_ns - one.device_ns for one, other in pairwise(calm))
    assert calm[-1].device_ns - 2 * step_ns <= struck[-1].device_ns <= calm[-1].device_ns


async def test_observers_get_the_whole_charge_too() -> None:
    turns: list[Tokens] = []
    async with healing_groups("slow:0.004") as groups:
        client = groups.clients[0]
        client.observe(turns.append)
        with groups.submit([request("a", 40)]) as stream:
            await stream.next()
            await strike(client, signal.SIGKILL)
            await read_all(stream)
    charged = [charge.device_ns for turn in turns for _, charge in turn.charged()]
    assert charged == sorted(charged)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
async def test_a_poison_request_ends_alone(number: int) -> None:
    async with healing_groups(f"poison:{POISON}:{int(number)}") as groups:
        neighbours = {f"r{i}": (i + 1, i + 2) for i in range(10)}
        stream = groups.submit([request(name, 200, prompt) for name, prompt in neighbours.items()])
        first = await stream.next()
        poisoned = groups.submit([request("poison", 40, (1, POISON))])
        with pytest.raises(PoisonRequest, match="brought the engine down twice"):
            await read_all(poisoned)
        late = groups.submit([request("late", 5)])
        events = [event for event, _ in first] + await read_all(stream)
        for name, prompt in neighbours.items():
            assert_undisturbed(events, name, prompt, 200)
        assert_undisturbed(await read_all(late), "late", (1, 2, 3), 5)
        assert sum(groups.clients[0].breaker.restarts.values()) <= 3
        assert groups.clients[0].journal.sequences["refused"] == 1


async def test_a_stopped_engine_is_noticed_killed_and_followed() -> None:
    healing = Healing(max_restarts=5, window_s=3600.0, hang_timeout_s=3600.0)
    async with healing_groups("slow:0.004", healing=healing) as groups:
        client = groups.clients[0]
        with groups.submit([request("a", 60)]) as stream:
            first = await stream.next()
            os.kill(pid_of(client), signal.SIGSTOP)
            await until(lambda: client.state == "stalled")
            events = [event for event, _ in first] + await read_all(stream)
        assert_undisturbed(events, "a", (1, 2, 3), 60)
        assert client.breaker.restarts == {"fault": 0, "outside": 1}


async def test_an_engine_whose_step_does_not_end_is_killed_and_followed(tmp_path: Path) -> None:
    holding = tmp_path / "hold"
    async with healing_groups(f"hold:{holding}", healing=Healing(5, 3600.0, hang_timeout_s=1.0)) as groups:
        client = groups.clients[0]
        holding.touch()
        with groups.submit([request("a", 20)]) as stream:
            await until(lambda: client.state == "stalled")
            await until(lambda: not client.is_up and client.state != "stalled")
            holding.unlink()
            assert_undisturbed(await read_all(stream), "a", (1, 2, 3), 20)
        assert client.breaker.restarts == {"fault": 1, "outside": 0}


@pytest.mark.slow
async def test_an_idle_engine_is_no_stalled_one() -> None:
    healing = Healing(max_restarts=0, window_s=60.0, hang_timeout_s=0.5)
    async with healing_groups("fast", healing=healing) as groups:
        states = set()
        for _ in range(30):
            await asyncio.sleep(0.1)
            states.add(groups.clients[0].state)
        assert "dead" not in states


async def test_sequences_of_a_killed_engine_move_to_one_that_lives() -> None:
    async with healing_groups("slow:0.004", count=2) as groups:
        prompts = {f"r{i}": (i + 1, i + 2, i + 3) for i in range(8)}
        with groups.submit([request(name, 80, prompt) for name, prompt in prompts.items()]) as stream:
            first = await stream.next()
            assert set(stream.engines.values()) == {0, 1}
            os.kill(pid_of(groups.clients[1]), signal.SIGKILL)
            events = [event for event, _ in first] + await read_all(stream)
        for name, prompt in prompts.items():
            assert_undisturbed(events, name, prompt, 80)
        await until(lambda: groups.states == ("serving", "serving"))
        assert groups.num_open == 0
        with groups.submit([request(f"again {i}", 3) for i in range(4)]) as stream:
            assert set(stream.engines.values()) == {0, 1}
            await read_all(stream)


async def test_requests_that_come_meanwhile_wait_for_the_successor() -> None:
    async with healing_groups("slow:0.002") as groups:
        await strike(groups.clients[0], signal.SIGKILL)
        with groups.submit([request("a", 10)]) as stream:
            assert_undisturbed(await read_all(stream), "a", (1, 2, 3), 10)


async def test_aborted_sequences_do_not_come_back() -> None:
    async with healing_groups("slow:0.004") as groups:
        client = groups.clients[0]
        with groups.submit([request("a", 400), request("b", 30)]) as stream:
            await stream.next()
            await strike(client, signal.SIGSEGV)
            stream.abort("a")
            events = await read_all(stream)
        assert sum(event.request_id == "a" for event in events) < 400
        await until(lambda: client.report is not None and client.report.num_running == 0)


async def test_an_engine_that_dies_again_and_again_is_given_up() -> None:
    async with healing_groups("slow:0.004", healing=Healing(2, 3600.0)) as groups:
        client = groups.clients[0]
        with groups.submit([request("a", 400)]) as stream:
            for _ in range(3):
                await strike(client, signal.SIGKILL)
            with pytest.raises(EngineDead, match="was killed by SIGKILL"):
                await read_all(stream)
        assert client.state == "dead"
        assert groups.loss is not None
        with pytest.raises(EngineDead):
            groups.submit([request("b")])


@pytest.mark.slow
async def test_a_spare_engine_takes_over_and_is_followed_by_another() -> None:
    async with healing_groups("slow:0.004", healing=replace(HEALING, keeps_spare=True)) as groups:
        client = groups.clients[0]
        pids = [pid_of(client)]
        with groups.submit([request("a", 300)]) as stream:
            reading = asyncio.ensure_future(read_all(stream))
            for _ in range(2):
                await until(lambda: client.succession.spare_pid not in {None, *pids})
                pids.append(client.succession.spare_pid or 0)
                os.kill(pids[-2], signal.SIGKILL)
                await until(lambda: client.is_up and pid_of(client) == pids[-1])
            assert_undisturbed(await reading, "a", (1, 2, 3), 300)
        await until(lambda: client.succession.spare_pid not in {None, *pids})
        pids.append(client.succession.spare_pid or 0)
    assert not any(is_running(pid) for pid in pids)


async def test_a_spare_engine_that_has_died_is_missed_by_nobody() -> None:
    async with healing_groups("slow:0.004", healing=replace(HEALING, keeps_spare=True)) as groups:
        client = groups.clients[0]
        await until(lambda: client.succession.spare_pid is not None)
        with groups.submit([request("a", 60)]) as stream:
            reading = asyncio.ensure_future(read_all(stream))
            await until(lambda: num_given(client) > 3)
            os.kill(client.succession.spare_pid or 0, signal.SIGKILL)
            os.kill(pid_of(client), signal.SIGKILL)
            assert_undisturbed(await reading, "a", (1, 2, 3), 60)


async def test_an_engine_whose_end_nobody_has_noticed_stops() -> None:
    async with healing_groups("slow:0.004") as groups:
        with socket.socket(fileno=os.dup(groups.clients[0].engine.frames.fileno())) as link:
            link.shutdown(socket.SHUT_RDWR)


async def test_an_engine_is_restarted_beside_the_old_one() -> None:
    async with healing_groups("slow:0.004") as groups:
        client = groups.clients[0]
        with groups.submit([request("a", 200)]) as stream:
            reading, old = asyncio.ensure_future(read_all(stream)), pid_of(client)
            restarting = asyncio.ensure_future(groups.restart())
            await until(lambda: client.succession.spare_pid is not None or restarting.done())
            await restarting
            assert pid_of(client) != old
            assert_undisturbed(await reading, "a", (1, 2, 3), 200)
        assert client.breaker.restarts == {"fault": 0, "outside": 0}
