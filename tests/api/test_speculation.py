"""Speculation over HTTP: the same answers with and without it, counted in usage and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import Server, running_server
from tests.api.telemetry.scraping import scrape

CHAT = "/v1/chat/completions"
ASK = {"role": "user", "content": "Tell me a story about a fox."}
STORY = """In a small house near the market lived a young fox called Muzon. One day Muzon dug a hole in the garden and
hit a violet box. There was no key, and the lid would not move. "Who can open this?" asked Muzon. "I can," said Vuzon
the otter. At the third try the lid sprang open. Inside was a brush, as good as new.""".replace("\n", " ")
AGAIN = [ASK, {"role": "assistant", "content": STORY}, ASK]  # the model tells it again
SCHEMA = {"type": "array", "items": {"enum": [100, 200]}, "minItems": 3, "maxItems": 12}
FORM = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": SCHEMA}}
BODIES: list[dict[str, Any]] = [
    {"messages": AGAIN, "max_tokens": 120, "temperature": 0},
    {"messages": AGAIN, "max_tokens": 120, "temperature": 0},  # the same output as before
    {"messages": AGAIN, "max_tokens": 80, "temperature": 0.5, "seed": 3, "n": 2},
    {
        "messages": [ASK],
        "max_tokens": 60,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": FORM,
    },
    {"messages": AGAIN, "max_tokens": 80, "temperature": 0, "stop": ["One day"]},
]


def serve(stack: ExitStack, *options: str) -> Server:
    limits = ("--max-num-seqs", "4", "--max-model-len", "512")
    return stack.enter_context(running_server(DEFAULT_MODEL, *limits, *options, program="neuronserve"))


@pytest.fixture(scope="module")
def servers(kernel_cache: str) -> Iterator[tuple[Server, dict[str, Server]]]:
    """A server without drafts, and one with each method."""
    with ExitStack() as stack:
        cache = ("--kernel-cache-dir", kernel_cache)
        methods: dict[str, dict[str, Any]] = {
            "ngram": {"method": "ngram", "prompt_lookup_min": 2},
            "suffix": {"method": "suffix"},
            "draft model": {"method": "draft_model", "model": str(DEFAULT_MODEL), "num_speculative_tokens": 4},
        }
        drafted = {
            name: serve(stack, *cache, "--speculative-config", json.dumps(config)) for name, config in methods.items()
        }
        yield serve(stack, *cache), drafted


def answer(server: Server, body: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    headers = {"X-Neuronserve-Usage": "true"}
    got = httpx.post(server.url + CHAT, json=body, headers=headers, timeout=60).json()
    return got["choices"], got["usage"]


def test_answers_are_those_without_drafts_and_drafts_are_counted(servers: tuple[Server, dict[str, Server]]) -> None:
    plain, drafted = servers
    expected = [answer(plain, body) for body in BODIES]
    assert all("draft_tokens" not in usage["neuronserve"] for _, usage in expected)
    for server in drafted.values():
        usages = []
        for body, (choices, _) in zip(BODIES, expected, strict=True):
            got, usage = answer(server, body)
            assert got == choices
            usages.append(usage["neuronserve"])
        drafts, accepted = (
            sum(each.get(name, 0) for each in usages) for name in ("draft_tokens", "accepted_draft_tokens")
        )
        seen = scrape(server.url)
        assert 0 < accepted <= drafts
        assert seen.value("vllm:spec_decode_num_drafts_total") <= drafts
        assert seen.value("vllm:spec_decode_num_draft_tokens_total") >= drafts  # a stop string ends before the engine
        total = seen.value("vllm:spec_decode_num_accepted_tokens_total")
        assert total >= accepted
        positions = [
            seen.value("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(i)) for i in range(2)
        ]
        assert total >= positions[0] >= positions[1] > 0
