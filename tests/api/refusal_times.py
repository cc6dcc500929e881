"""How long bad requests take to be refused: `python -m tests.api.refusal_times [--rounds N] [--slowest N] [--shipped]`.

Sends every row of the tables one after the other, to the fake model or to the shipped one, and prints those that took
longest: in the first round, where a server does some things for the first time, and in the best of all, since what is
slow each time is slow by itself, and not by what else the host does.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.bad_endpoints import BAD_PATHS, BAD_REQUESTS
from tests.api.bad_requests import HELLO, MESSAGES, NAMED
from tests.api.serving import PATIENCE_S, running_server, write_checkpoint

GOAL_S = 1.0
Row = tuple[str, str, dict[str, Any] | None]  # method, path, body


def rows() -> Iterator[Row]:
    """Every bad request of the tables."""
    yield from (("POST", bad.path, bad.body) for bad in BAD_REQUESTS)
    yield from (("POST", MESSAGES, {"model": "fake", "max_tokens": 8, "messages": HELLO} | body) for body, _ in NAMED)
    yield from ((method, path, None) for method, path, *_ in BAD_PATHS)


def seconds_of(client: httpx.Client, row: Row) -> float:
    method, path, body = row
    begin = time.perf_counter()
    client.request(method, path, json=body).read()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.api.refusal_times", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slowest", type=int, default=10, help="rows to print")
    parser.add_argument("--shipped", action="store_true", help="ask the shipped model instead of the fake one")
    asked = parser.parse_args()
    table = list(rows())
    with tempfile.TemporaryDirectory() as directory:
        model = DEFAULT_MODEL if asked.shipped else write_checkpoint(Path(directory) / "model")
        program = "neuronserve" if asked.shipped else "tests.api.serve_fake"
        options = ("--disable-access-log", "--data-dir", str(Path(directory) / "data"))
        with (
            running_server(model, *options, program=program) as server,
            httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client,
        ):
            taken = [[seconds_of(client, row) for row in table] for _ in range(asked.rounds)]
    best = [min(times) for times in zip(*taken, strict=True)]
    for name, times in (("the first round", taken[0]), (f"the best of {asked.rounds}", best)):
        slow = sum(each > GOAL_S for each in times)
        print(f"{len(table)} bad requests in {name}: median {median(times) * 1e3:.1f} ms, {slow} over {GOAL_S:g} s")
        for index in sorted(range(len(table)), key=times.__getitem__, reverse=True)[: asked.slowest]:
            method, path, body = table[index]
            print(f"{times[index] * 1e3:8.1f} ms  {method} {path} {json.dumps(body)[:100]}")


if __name__ == "__main__":
    main()
