"""A server on Ray beside a plain one: `python -m benchmarks.ray_serve [--proxy]`, with the extra `ray`.

Both have the same flags, here and after `--`; one waits while the other is measured, in turns. In front of the one on
Ray is the router of `--distributed ray` or, with `--proxy`, that of `neuronserve.server.ray.app:build` behind Serve's
HTTP proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import httpx
import psutil
import ray
from ray import serve
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.ratios import ratio_of
from neuronserve.loadtests.local_server import neuronserve_command, running
from neuronserve.server.ray.app import build
from neuronserve.server.settings.model import DEFAULT_MODEL

PORT = 18_700  # of Serve's proxy
IDLE_S = 5.0
NUM_FIRST, NUM_TOKENS = 20, 128  # short answers of a round, one after another, and tokens of each long one
PROMPT = "Describe the sea in the morning. " * 8


async def first_token_s(client: httpx.AsyncClient, num_tokens: int = 1) -> float:
    """Return the seconds to the first event of a stream, which is read to its end."""
    body = {"prompt": PROMPT, "max_tokens": num_tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    begin, first = time.perf_counter(), 0.0
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for part in answer.aiter_raw():
            first = first or (time.perf_counter() - begin if part else 0.0)
    return first


async def measured(url: str, num_streams: int) -> tuple[float, float]:
    """Return the median milliseconds to a first token alone, and tokens a second of streams together."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        firsts = [await first_token_s(client) for _ in range(NUM_FIRST)]
        begin = time.perf_counter()
        await asyncio.gather(*(first_token_s(client, NUM_TOKENS) for _ in range(num_streams)))
        return 1000 * statistics.median(firsts), num_streams * NUM_TOKENS / (time.perf_counter() - begin)


def cpu_seconds() -> dict[str, float]:
    """Return the CPU seconds of this process's children, those of Ray and others apart."""
    totals = {"ray": 0.0, "servers": 0.0}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line, times = " ".join(process.cmdline()), process.cpu_times()
            is_ray = "neuronserve" not in line.partition("--")[0] and ("ray::" in line or "/ray/" in line)
            totals["ray" if is_ray else "servers"] += times.user + times.system
    return totals


@contextlib.contextmanager
def on_ray(flags: Sequence[str], settings: Mapping[str, object], is_proxied: bool) -> Iterator[str]:
    """Run a server on Ray and yield its address."""
    address = ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False).address_info["address"]
    try:
        if is_proxied:
            serve.start(http_options={"host": "127.0.0.1", "port": PORT})
            serve.run(build({**settings, "distributed": "ray"}), route_prefix="/")
            yield f"http://127.0.0.1:{PORT}"
        else:
            os.environ["RAY_ADDRESS"] = address
            with running(neuronserve_command([*flags, "--distributed", "ray"])) as url:
                yield url
    finally:
        serve.shutdown()
        ray.shutdown()


def main(argv: Sequence[str]) -> int:
    """Measure and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_serve", description=__doc__.partition(":")[0])
    parser.add_argument("--proxy", action="store_true", help="measure Serve's HTTP proxy")
    parser.add_argument("--streams", type=int, default=8, help="streams together (default 8)")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON with settings of both servers")
    asked = parser.parse_args(argv)
    settings = {"model": str(DEFAULT_MODEL), "cpu_threads": os.cpu_count(), "disable_access_log": True} | asked.settings
    flags = [
        word
        for name, value in settings.items()
        if name not in ("model", "disable_access_log")
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    flags = [str(settings["model"]), *flags]
    with running(neuronserve_command(flags)) as plain, on_ray(flags, settings, asked.proxy) as other:
        urls = {"plain": plain, "Ray": other}
        before = cpu_seconds()
        time.sleep(IDLE_S)
        idle = {name: (value - before[name]) / IDLE_S for name, value in cpu_seconds().items()}
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in urls}
        for number in range(asked.rounds + 1):
            for name in sorted(urls, reverse=bool(number % 2)):
                found = asyncio.run(measured(urls[name], asked.streams))
                if number:  # the first warms up
                    rounds[name].append(found)
    table = Table("", "plain", "Ray", "ratio, median of rounds", box=SIMPLE)
    for at, title in enumerate(("ms to the first token", f"tokens/s, {asked.streams} streams")):
        ratio = ratio_of([each[at] for each in rounds["Ray"]], [each[at] for each in rounds["plain"]])
        table.add_row(title, f"{ratio.theirs:,.1f}", f"{ratio.ours:,.1f}", f"{ratio.median:.3f}")
    Console().print(table, f"idle, of a core: Ray's processes {idle['ray']:.1%}, all servers {idle['servers']:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
