"""Several engines as one: the engine of each request, an account that empties, and the death of one engine."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from neuronserve.server.config import CacheConfig
from neuronserve.server.engine.fake_runner import expected_tokens
from neuronserve.server.errors import EngineDead, StartError
from neuronserve.server.link.groups import EngineGroups, merged
from neuronserve.server.link.handle import EngineHandle
from neuronserve.server.link.messages import CoreMemory, EngineInfo
from neuronserve.server.link.stream import TokenStream
from neuronserve.server.types import Request
from tests.api.serving import PATIENCE_S, VOCAB_SIZE, fake_facts, run_fake
from tests.link.test_client import config, read_all, request, until


@asynccontextmanager
async def groups_of(*devices: str) -> AsyncIterator[EngineGroups]:
    """Engines in threads of this process."""
    groups = EngineGroups([EngineHandle(config(device), run_fake, "thread") for device in devices])
    try:
        await asyncio.wait_for(groups.start(lambda _: None), PATIENCE_S)
        yield groups
    finally:
        await groups.stop(5)


def loads(groups: EngineGroups) -> list[int]:
    assert groups._router is not None
    return groups._router.loads


async def test_choices_of_one_request_run_at_several_engines_and_make_the_same_tokens() -> None:
    prompt = tuple(range(40))
    async with groups_of("fast", "fast", "fast") as groups:
        names = [f"choice {i}" for i in range(6)]
        with groups.submit([request(name, 8, prompt) for name in names]) as stream:
            assert sorted(stream.engines.values()) == [0, 0, 1, 1, 2, 2]
            events = await read_all(stream)
        for name in names:
            tokens = [event.token_id for event in events if event.request_id == name]
            assert tokens == expected_tokens(list(prompt), 8, VOCAB_SIZE)
        assert groups.num_open == 0
        await until(lambda: loads(groups) == [0, 0, 0])


async def test_whatever_ends_or_is_aborted_the_account_empties() -> None:
    chance = random.Random(1)

    async def one(groups: EngineGroups, name: str) -> None:
        prompt = tuple([chance.randrange(3)] * chance.randrange(1, 60))
        with groups.submit([request(f"{name}-{i}", 30, prompt) for i in range(2)]) as stream:
            for _ in range(chance.randrange(1, 6)):
                if stream.is_open:
                    await asyncio.wait_for(stream.next(), PATIENCE_S)
            stream.abort(f"{name}-0")

    async with groups_of("slow:0.001", "slow:0.001") as groups:
        await asyncio.gather(*(one(groups, f"r{i}") for i in range(30)))
        assert groups.num_open == 0
        await until(lambda: loads(groups) == [0, 0])


async def test_an_engine_that_dies_at_a_submission_leaves_nothing_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(requests: Sequence[Request], stream: TokenStream | None = None) -> TokenStream:
        raise EngineDead(f"{len(requests)} requests and {stream} are too much")

    async with groups_of("slow:0.005", "slow:0.005") as groups:
        with monkeypatch.context() as patch:
            patch.setattr(groups.clients[1], "submit", refuse)
            with pytest.raises(EngineDead):
                groups.submit([request("a", 400), request("b", 400)])
        assert groups.num_open == 0
        assert loads(groups) == [0, 0]
        first = groups.clients[0]
        await until(lambda: first.report is not None and first.report.num_running == 0)


async def test_start_names_the_engine_that_speaks_and_ends_with_the_first_that_cannot() -> None:
    lines: list[str] = []
    groups = EngineGroups([EngineHandle(config(device), run_fake, "thread") for device in ("fast", "fail")])
    try:
        with pytest.raises(StartError, match="the model does not fit"):
            await asyncio.wait_for(groups.start(lines.append), PATIENCE_S)
        assert "engine 1: loading the fake model" in lines
        assert groups.is_alive
        assert "dead" in groups.states
    finally:
        await groups.stop(5)
    assert not groups.is_alive


def test_what_holds_for_all_is_the_smallest_cache_and_every_core() -> None:
    memory = (CoreMemory({"weights": 1}, 9, 10),)
    facts = fake_facts(config("fast"), 512)
    one = EngineInfo(
        512, CacheConfig(70, 16), 64, "inf2.xlarge", 1, "float32", 9, facts, memory=memory, notes=("a note",)
    )
    one = dataclasses.replace(one, core_ids=(0,), host_memory={"kv": 7})
    infos = [one, dataclasses.replace(one, cache=CacheConfig(60, 16), core_ids=(1,))]
    whole = merged(infos)
    assert (whole.cache.num_blocks, whole.memory, whole.core_ids) == (60, memory * 2, (0, 1))
    assert whole.host_memory == {"kv": 14}
    assert whole.notes == ("a note", "2 engines like this one, on NeuronCores 0, 1")
    assert merged(infos[:1]) is infos[0]
