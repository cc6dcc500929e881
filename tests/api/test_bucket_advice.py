"""A paced server whose prompts are a little too long for a compiled length says once which length they need."""

from __future__ import annotations

import re

import httpx
import pytest

from neuronserve.server.cost.bucket_edges import FIRST_COUNT
from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import read_until, running_server

FLAGS = ("--pace", "device", "--max-model-len", "2048", "--max-num-seqs", "4", "--no-enable-prefix-caching")
BUCKETS = ("--context-encoding-buckets", "128,2048")


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "is_advised"), [("nxdi-vllm", True), ("vllm-neuron", False)])
def test_a_server_advises_a_bucket_from_the_prompts_that_it_sees(
    kernel_cache: str, stack: str, is_advised: bool
) -> None:
    """On NxD Inference prompts of 128 tokens need a longer bucket than 128; the newer plugin fills it."""
    more = ("--stack", stack, *BUCKETS, "--kernel-cache-dir", kernel_cache)
    with running_server(DEFAULT_MODEL, *FLAGS, *more, program="neuronserve") as server:
        body = {"prompt": [[5 + (17 * i + j) % 200 for j in range(128)] for i in range(FIRST_COUNT)], "max_tokens": 1}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status().json()
        inventory = httpx.get(f"{server.url}/inventory").raise_for_status().json()
        assert answer["usage"]["prompt_tokens"] == 128 * FIRST_COUNT
        assert inventory["compiled"]["context_encoding_buckets"] == [128, 2048]
        said = read_until(server.process, rb"add a bucket", 3 if is_advised else 1)
    advice = (
        r"prompts of 128 tokens need the bucket of 2,048 \([\d.]+ ms of prefill, [\d.]+ in 128\): add a bucket of 256"
    )
    assert len(re.findall(advice, said)) == is_advised
