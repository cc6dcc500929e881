"""CPUs that are taken from a running engine, and given back: fewer threads, the same tokens."""

from __future__ import annotations

import os

import httpx
import pytest

from neuronserve.server.host.affinity import allowed_cpus
from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import Server, running_server, until

PROMPTS = ["The sea", "Once upon a time there was a small", "To cook rice"]


def answer(server: Server) -> list[str]:
    body = {"model": "fake", "prompt": PROMPTS, "max_tokens": 32, "temperature": 0.8, "seed": 5, "ignore_eos": True}
    found = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    return [choice["text"] for choice in found.json()["choices"]]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be moved")
@pytest.mark.skipif(len(allowed_cpus()) < 2, reason="there is one CPU")
def test_an_engine_follows_its_cpus_and_answers_as_before(kernel_cache: str) -> None:
    every = allowed_cpus()
    with running_server(DEFAULT_MODEL, "--kernel-cache-dir", kernel_cache, program="neuronserve") as server:
        assert server.process.stderr is not None
        os.set_blocking(server.process.stderr.fileno(), False)
        log, want = "", answer(server)

        def is_seen(line: str) -> bool:
            nonlocal log
            assert answer(server) == want
            assert server.process.stderr is not None
            log += (server.process.stderr.read() or b"").decode()
            return line in log

        for cpus, before in ((1, len(every)), (len(every), 1)):
            os.sched_setaffinity(server.engine_pid, {*sorted(every)[:cpus]})
            until(lambda line=f"steps run on {cpus} threads, not {before}": is_seen(line))  # type: ignore[misc]
