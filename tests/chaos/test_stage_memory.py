"""A model that no host can hold, served by two of them: each a control group that is too small for all layers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.api.serving import running_server
from tests.api.staging import running_stage
from tests.chaos.memory_group import MemoryGroup, memory_group
from tools.random_checkpoint.writer import Options, write_checkpoint

MIB = 1 << 20
SIZE = 1_150 * MIB  # of a host; the weights alone have 950 MiB
OPTIONS = ("--max-model-len", "256", "--max-num-seqs", "4", "--cpu-threads", "1", "--max-num-batched-tokens", "64")
ASK = {"prompt": [1, 2, 3, 4], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def answer(url: str) -> str:
    found = httpx.post(f"{url}/v1/completions", json=ASK, timeout=300).json()
    text: str = found["choices"][0]["text"]
    return text


@pytest.mark.slow
def test_two_hosts_serve_what_one_cannot_hold(tmp_path: Path, kernel_cache: str) -> None:
    model, key = tmp_path / "model", tmp_path / "key"
    write_checkpoint("qwen-0.5b", model, Options())
    key.write_text("0123456789abcdef")
    options = (*OPTIONS, "--kernel-cache-dir", kernel_cache)
    with running_server(model, *options, program="neuronserve") as server:
        expected = answer(server.url)
    with memory_group("first") as first, memory_group("second") as second:
        for group in (first, second):
            group.limit.write_text(str(SIZE))
        with pytest.raises(AssertionError, match="host memory"):
            served(model, options, first)
        options += ("--pipeline-parallel-size", "2", "--device", "trn1.32xlarge", "--pipeline-key-file", str(key))
        with running_stage(model, kernel_cache, key, second.under) as address:
            assert served(model, (*options, "--pipeline-stages", address), first) == expected


def served(model: Path, options: tuple[str, ...], group: MemoryGroup) -> str:
    """Return the answer of a server in the group; the assertion fails with its log when it does not start."""
    with running_server(model, *options, program="neuronserve", under=group.under) as server:
        return answer(server.url)
