"""The engine's process and its client: start, tokens, aborts, death, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from neuronserve.server.config import EngineConfig
from neuronserve.server.engine.fake_runner import expected_tokens
from neuronserve.server.errors import EngineDead, StartError, Unavailable
from neuronserve.server.link.client import EngineClient
from neuronserve.server.link.handle import EngineHandle, EngineMode
from neuronserve.server.link.messages import ReleaseMemory, ResetPrefixCache, Tokens
from neuronserve.server.link.stream import TokenStream
from neuronserve.server.types import Request, SamplingParams, TokenEvent
from tests.api.serving import PATIENCE_S, VOCAB_SIZE, is_running, run_fake


def config(device: str = "fast", **changes: object) -> EngineConfig:
    values: dict[str, object] = {
        "model_path": "unused",
        "device": device,
        "tensor_parallel_size": 1,
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_num_queued_reqs": 64,
        "block_size": 16,
        "enable_prefix_caching": True,
        "device_memory_utilization": 0.9,
        "num_blocks_override": 64,
        "cpu_threads": 1,
        "kernel_cache_dir": "unused",
    }
    return EngineConfig(**{**values, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def client_of(device: str = "fast", mode: EngineMode = "process") -> AsyncIterator[EngineClient]:
    client = EngineClient(EngineHandle(config(device), run_fake, mode))
    try:
        await asyncio.wait_for(client.start(lambda _: None), PATIENCE_S)
        yield client
    finally:
        await client.stop(5)


def num_shared_files() -> int:
    """Descriptors of this process that are memory without a name."""
    return sum("neuronserve-heartbeat" in os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())


def request(name: str = "a", max_tokens: int = 8, prompt: tuple[int, ...] = (1, 2, 3)) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens), time.monotonic())


async def read_all(stream: TokenStream) -> list[TokenEvent]:
    events: list[TokenEvent] = []
    while stream.is_open:
        events += [event for event, _ in await asyncio.wait_for(stream.next(), PATIENCE_S)]
    return events


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that the engine does by itself."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {PATIENCE_S} s"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("mode", ["process", "thread"])
async def test_every_token_comes_once_and_in_order(mode: EngineMode) -> None:
    async with client_of(mode=mode) as client:
        with client.submit([request("a"), request("b", 5, (7,))]) as stream:
            events = await read_all(stream)
        assert client.num_open == 0
    by_id = {name: [e.token_id for e in events if e.request_id == name] for name in "ab"}
    assert by_id == {"a": expected_tokens([1, 2, 3], 8, VOCAB_SIZE), "b": expected_tokens([7], 5, VOCAB_SIZE)}


async def test_start_gives_progress_and_limits() -> None:
    lines: list[str] = []
    client = EngineClient(EngineHandle(config(), run_fake))
    try:
        info = await client.start(lines.append)
        assert lines == ["loading the fake model"]
        assert (info.max_model_len, info.cache.num_blocks, info.cache.block_size) == (512, 64, 16)
    finally:
        await client.stop(5)


@pytest.mark.parametrize("mode", ["process", "thread"])
async def test_a_start_error_arrives_as_the_same_words(mode: EngineMode) -> None:
    with pytest.raises(StartError, match=r"^the model does not fit: it needs 99 GiB") as caught:
        async with client_of("fail", mode):
            pass
    assert caught.value.exit_code == 2


async def test_a_process_that_dies_while_loading_is_noticed() -> None:
    with pytest.raises(StartError, match="ended with exit code 7") as caught:
        async with client_of("crash"):
            pass
    assert caught.value.exit_code == 1


async def test_events_of_a_reader_that_is_away_merge() -> None:
    async with client_of() as client:
        with client.submit([request(max_tokens=200)]) as slow:
            with client.submit([request("quick", 3)]) as other:
                await read_all(other)
            await until(lambda: client.num_open == 0)
            events = await slow.next()
            assert len(events) == 200
            assert not slow.is_open


async def test_leaving_a_stream_aborts_in_the_engine() -> None:
    async with client_of("slow:0.01") as client:
        with client.submit([request("a", 400), request("b", 400)]) as stream:
            await stream.next()
            await until(lambda: client.report is not None and client.report.num_running == 2)
        assert client.num_open == 0
        await until(lambda: client.report is not None and client.report.num_running == 0)


async def test_aborting_one_sequence_leaves_the_other() -> None:
    async with client_of("slow:0.002") as client:
        with client.submit([request("a", 400), request("b", 20)]) as stream:
            stream.abort("a")
            stream.abort("unknown")
            events = await read_all(stream)
        assert sum(e.request_id == "b" for e in events) == 20
        assert sum(e.request_id == "a" for e in events) < 400


@pytest.mark.parametrize("command", [ResetPrefixCache(), ReleaseMemory()])
async def test_after_a_reset_of_the_prefix_cache_nothing_is_found_in_it(
    command: ResetPrefixCache | ReleaseMemory,
) -> None:
    async with client_of() as client:
        prompt = tuple(range(40))
        cached = []
        for name in "abc":
            if name == "c":
                client.forget(command)
            with client.submit([request(name, 2, prompt)]) as stream:
                cached.append((await read_all(stream))[0].num_cached_tokens)
        assert cached == [0, 32, 0]


async def test_observers_see_each_turn_with_its_times_and_admissions() -> None:
    turns: list[Tokens] = []
    async with client_of() as client:
        client.observe(turns.append)
        with client.submit([request("a", 3), request("b", 3)]) as stream:
            await read_all(stream)
    assert sum(len(turn.events) for turn in turns) == 6
    assert [name for turn in turns for name in turn.report.admitted] == ["a", "b"]
    assert all(turn.report.start_time <= turn.report.time for turn in turns)


async def test_abort_all_ends_streams_with_the_error() -> None:
    async with client_of("slow:0.01") as client:
        with client.submit([request("a", 400)]) as stream:
            await stream.next()
            client.abort_all(Unavailable("shutting down"))
            with pytest.raises(Unavailable, match="shutting down"):
                await read_all(stream)
        await until(lambda: client.report is not None and client.report.num_running == 0)


async def test_a_killed_engine_ends_every_stream() -> None:
    async with client_of("slow:0.01") as client:
        with client.submit([request("a", 400)]) as one, client.submit([request("b", 400)]) as two:
            await one.next()
            pid = client.engine.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            for stream in (one, two):
                with pytest.raises(EngineDead, match="was killed by SIGKILL"):
                    await read_all(stream)
        assert not client.is_alive
        assert client.num_open == 0
        with pytest.raises(EngineDead):
            client.submit([request("c")])


async def test_the_engine_ignores_the_terminals_signals() -> None:
    async with client_of() as client:
        pid = client.engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        with client.submit([request()]) as stream:
            assert len(await read_all(stream)) == 8


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed in /proc")
async def test_stop_leaves_no_process_and_no_memory() -> None:
    before = num_shared_files()
    async with client_of() as client:
        pid = client.engine.pid
        assert pid is not None
        assert num_shared_files() == before + 1
    assert not is_running(pid)
    assert num_shared_files() == before


async def test_an_engine_has_no_file_that_somebody_must_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with client_of():
        assert list(tmp_path.iterdir()) == []


def test_the_engine_ends_when_its_parent_is_killed() -> None:
    script = (
        "import time\nfrom tests.link.test_client import config\nfrom tests.api.serving import run_fake\n"
        "from neuronserve.server.link.handle import EngineHandle\n"
        "if __name__ == '__main__':\n"
        "    engine = EngineHandle(config(), run_fake)\n    engine.frames.wait(60)\n"
        "    print(engine.pid, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    deadline = time.monotonic() + PATIENCE_S
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)
