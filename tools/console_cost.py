"""Cost of an open console for a server: `python -m tools.console_cost URL [--streams 64] [--rounds 4] [--seconds 15]`.

Measures in turns, with a page's stream open and closed: CPU seconds of the API's idle process, and output tokens per
second of many streams at once. Run it on a quiet host against an otherwise unused server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx

CPU = "process_cpu_seconds_total"
TOKENS = "vllm:generation_tokens_total"


@dataclass(frozen=True, slots=True)
class Server:
    """A server and its counters."""

    client: httpx.AsyncClient

    async def counted(self, name: str) -> float:
        """Return the sum of a counter over its labels."""
        text = (await self.client.get("/metrics")).text
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    async def rate(self, name: str, seconds: float) -> float:
        """Return the increase of a counter per second."""
        before, begin = await self.counted(name), time.monotonic()
        await asyncio.sleep(seconds)
        return (await self.counted(name) - before) / (time.monotonic() - begin)

    @contextlib.asynccontextmanager
    async def console(self, is_open: bool) -> AsyncIterator[None]:
        """Read a page's stream and discard it."""
        reading = asyncio.create_task(self._read()) if is_open else None
        try:
            await asyncio.sleep(1)
            yield
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _read(self) -> None:
        async with self.client.stream("GET", "/console/events") as answer:
            async for _ in answer.aiter_raw():
                pass

    async def generate(self) -> None:
        """Send one request after another, forever."""
        body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "stream": True}
        while True:
            async with self.client.stream("POST", "/v1/completions", json=body) as answer:
                answer.raise_for_status()
                async for _ in answer.aiter_raw():
                    pass


async def measure(url: str, streams: int, rounds: int, seconds: float) -> None:
    """Print both figures, open and closed."""
    limits = httpx.Limits(max_connections=streams + 8)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        server = Server(client)
        idle = await _in_turns(server, CPU, rounds, seconds)
        _print("CPU of the idle API process, share of a core", idle)
        loading = [asyncio.create_task(server.generate()) for _ in range(streams)]
        try:
            await asyncio.sleep(5)
            _print(f"output tokens/s of {streams} streams", await _in_turns(server, TOKENS, rounds, seconds))
        finally:
            for task in loading:
                task.cancel()
            await asyncio.gather(*loading, return_exceptions=True)


async def _in_turns(server: Server, name: str, rounds: int, seconds: float) -> dict[bool, list[float]]:
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for is_open in (number % 2 == 1, number % 2 == 0):
            async with server.console(is_open):
                found[is_open].append(await server.rate(name, seconds))
    return found


def _print(what: str, found: dict[bool, list[float]]) -> None:
    closed, opened = statistics.median(found[False]), statistics.median(found[True])
    shares = sorted(after / before for before, after in zip(found[False], found[True], strict=True))
    print(f"{what}: {closed:.4g} closed, {opened:.4g} open", end=" ")
    print(f"({statistics.median(shares):.3f} of it; {shares[0]:.3f} to {shares[-1]:.3f} by round)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15)
    args = parser.parse_args()
    asyncio.run(measure(args.url, args.streams, args.rounds, args.seconds))


if __name__ == "__main__":
    main()
