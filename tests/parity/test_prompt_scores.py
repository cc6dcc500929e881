"""Log-probabilities of prompts through the real scheduler: chunked, beside others, with their prefix in the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neuronserve.server.clock import ManualClock
from neuronserve.server.config import SchedulerConfig
from neuronserve.server.engine.load.loading import LoadedEngine
from neuronserve.server.engine.loop import EngineLoop
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.link.messages import Add, Command, Tokens
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams, TokenEvent, TokenLogprobs
from tests.depth import representative
from tools.golden.oracle import Oracle
from tools.random_checkpoint.shapes import SHAPES, TINY

NUM_TOP = 3
TOLERANCE = 1e-4
# An output layer tied to the embedding, caps, norms after branches, one that takes the stream's place, experts, a bias.
OFTEN = ("tiny-qwen3", "tiny-gemma2", "tiny-olmo2", "tiny-opt-after", "tiny-mixtral", "tiny-phi")


class Mailbox:
    """Hands over what is to be done in one turn, and keeps the first event of each request."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.firsts: dict[str, TokenEvent] = {}

    def drain(self, timeout_s: float) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands

    def put(self, tokens: Tokens) -> None:
        for event in tokens.events:
            self.firsts.setdefault(event.request_id, event)


def first_events(engine: LoadedEngine, waves: list[list[Request]]) -> dict[str, TokenEvent]:
    """Waves of requests one after the other, over one cache; prompts are cut into chunks of at most 37 tokens."""
    limits = SchedulerConfig(max_model_len=256, max_num_seqs=2, max_num_batched_tokens=37, max_num_queued_reqs=9)
    cache = KVCacheManager(replace(engine.cache, num_blocks=38, enable_prefix_caching=True))
    scheduler, mailbox = Scheduler(limits, cache), Mailbox()
    loop = EngineLoop(scheduler, engine.runner, ManualClock(), mailbox, mailbox)
    for wave in waves:
        mailbox.commands = [Add(request) for request in wave]
        loop.step()
        while scheduler.has_work:
            loop.step()
    return mailbox.firsts


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def assert_near(got: tuple[TokenLogprobs, ...], prompt: tuple[int, ...], expected: np.ndarray) -> None:
    assert len(got) == len(prompt) - 1
    for row, token, entry in zip(expected[:-1], prompt[1:], got, strict=True):
        best = np.sort(row)[::-1]
        assert entry.sampled == pytest.approx(row[token], abs=TOLERANCE)
        assert entry.top_logprobs == pytest.approx(best[:NUM_TOP], abs=TOLERANCE)
        assert row[list(entry.top_token_ids)] == pytest.approx(best[:NUM_TOP], abs=TOLERANCE)
        assert best[entry.rank - 1] == pytest.approx(row[token], abs=TOLERANCE)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("shape", representative(TINY, *OFTEN))
def test_they_are_those_of_transformers(
    checkpoint_of: Callable[[str], Path],
    oracle_of: Callable[[str], Oracle],
    load: Callable[..., LoadedEngine],
    shape: str,
    cores: int,
) -> None:
    rng = np.random.default_rng(5)
    prompts = [tuple(rng.integers(0, SHAPES[shape].vocab, size).tolist()) for size in (1, 2, 95, 130)]
    wanted = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True, prompt_logprobs=NUM_TOP)
    plain = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    beside = Request("beside", prompts[2][:20], plain, 0.0)
    firsts = first_events(
        load(checkpoint_of(shape), cores, False),
        [
            [beside, *(Request(f"{i}", prompt, wanted, 1.0 + i) for i, prompt in enumerate(prompts))],
            [Request("again", prompts[3], wanted, 9.0), Request("cached", prompts[3], plain, 10.0)],
        ],
    )
    for i, prompt in enumerate(prompts):
        assert_near(firsts[str(i)].prompt_logprobs, prompt, log_softmax(oracle_of(shape).logits(prompt)))
    assert firsts["again"].prompt_logprobs == firsts["3"].prompt_logprobs
    assert firsts["again"].num_cached_tokens == 0, "what is in the cache has no logits"
    assert firsts["cached"].num_cached_tokens > 0 or load(checkpoint_of(shape), cores, False).cache.groups[0].window
    assert firsts["cached"].prompt_logprobs == firsts["beside"].prompt_logprobs == ()
