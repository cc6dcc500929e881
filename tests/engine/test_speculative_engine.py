"""Drafts change no token, no log-probability and no end of a request, whatever is drafted and however it is sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from neuronserve.server.config.speculation import SpeculationConfig
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.drafts.text_index import TextIndex
from neuronserve.server.scheduler.sequence import Sequence
from neuronserve.server.scheduler.speculative import SpeculativeScheduler, scheduler_of
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.types import Request, SamplingParams
from tests.depth import thorough
from tests.engine.config import engine_config
from tests.engine.mailbox import Mailbox, run_all
from tests.engine.test_structured_engine import NUMBERS, WORDS
from tools.random_checkpoint.writer import Options, write_checkpoint

SPECULATION = SpeculationConfig("ngram", 5)
BUILT_IN = "built-in"


@pytest.fixture(scope="module", params=[BUILT_IN, "tiny-gemma2", "tiny-qwen3-next", thorough("tiny-qwen2-moe")])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernel_cache: str
) -> Iterator[LoadedEngine]:
    directory: Path = DEFAULT_MODEL
    if request.param != BUILT_IN:
        directory = tmp_path_factory.mktemp("speculation") / request.param
        write_checkpoint(request.param, directory, Options())
    loaded = load_engine(engine_config(directory, kernel_cache, speculation=SPECULATION), lambda _: None)
    yield loaded
    loaded.runner.close()


class KnownDrafter:
    """Drafts what each sequence will be, but for one token in four."""

    width = 2

    def __init__(self, tokens: dict[str, list[int]], vocab_size: int) -> None:
        self._tokens, self._vocab_size = tokens, vocab_size

    def propose(self, seq: Sequence, index: TextIndex, most: int) -> list[int]:
        known = seq.num_generated
        right = self._tokens[seq.request.request_id][known : known + most]
        return [token if (known + i) % 4 else (token + 1) % self._vocab_size for i, token in enumerate(right)]

    def close(self, seq: Sequence) -> None:
        pass


def run(
    engine: LoadedEngine, requests: list[Request], known: Mailbox | None, num_blocks: int = 64, budget: int = 96
) -> Mailbox:
    """All requests at once; with drafts if the tokens of a run without drafts are known."""
    speculation = None if known is None else SPECULATION
    limits = dataclasses.replace(engine.scheduler, speculation=speculation, max_num_batched_tokens=budget)
    cache = dataclasses.replace(engine.cache, num_blocks=num_blocks * len(engine.cache.groups))
    scheduler = scheduler_of(limits, KVCacheManager(cache))
    if isinstance(scheduler, SpeculativeScheduler) and known is not None:
        scheduler._speculator._drafter = KnownDrafter(known.tokens, engine.spec.vocab_size)  # type: ignore[union-attr]
    return run_all(scheduler, engine.runner, requests)


def outcome(mailbox: Mailbox) -> dict[str, list[tuple[Any, ...]]]:
    """Return each request's events, without their times and counts."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for each in mailbox.events:
        said = each.token_id, each.index, each.finish_reason, each.stop_reason, each.logprobs, each.error
        found.setdefault(each.request_id, []).append((*said, each.prompt_logprobs))
    return found


def num_accepted(mailbox: Mailbox) -> int:
    return sum(each.drafts[1] for each in mailbox.events if each.finish_reason is not None)


def same(engine: LoadedEngine, requests: list[Request], **limits: int) -> Mailbox:
    """Return the run with drafts, which must be that without."""
    plain = run(engine, requests, None, **limits)
    drafted = run(engine, requests, plain, **limits)
    assert outcome(drafted) == outcome(plain)
    return drafted


token_ids = st.integers(0, 255)
samplings = st.builds(
    SamplingParams,
    max_tokens=st.sampled_from([1, 2, 9, 40]),
    min_tokens=st.sampled_from([0, 0, 5]),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_p=st.sampled_from([1.0, 0.9]),
    top_k=st.sampled_from([0, 20]),
    min_p=st.sampled_from([0.0, 0.05]),
    presence_penalty=st.sampled_from([0.0, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([(), ((7, 3.0),)]),
    eos_token_ids=st.sampled_from([(), tuple(range(0, 256, 9))]),
    stop_token_ids=st.sampled_from([(), tuple(range(4, 256, 11))]),
    ignore_eos=st.booleans(),
    seed=st.integers(0, 2**40),
    logprobs=st.sampled_from([None, None, 0, 3]),
    prompt_logprobs=st.sampled_from([None, None, 1]),
)


@settings(max_examples=15)
@given(
    prompts=st.lists(st.lists(token_ids, min_size=1, max_size=60), min_size=1, max_size=6),
    data=st.data(),
    num_blocks=st.sampled_from([13, 24, 64]),
    budget=st.sampled_from([9, 40, 96]),
)
def test_drafts_change_nothing(
    engine: LoadedEngine, prompts: list[list[int]], data: st.DataObject, num_blocks: int, budget: int
) -> None:
    grammars = st.sampled_from(["", NUMBERS, WORDS] if engine.spec.vocab_size > 256 else [""])  # it has a tokenizer
    some = [
        Request(
            f"r{i}", tuple(prompt), dataclasses.replace(data.draw(samplings), grammar=data.draw(grammars)), float(i)
        )
        for i, prompt in enumerate(prompts)
    ]
    drafted = same(engine, some, num_blocks=num_blocks, budget=budget)
    event(f"accepted={num_accepted(drafted) > 0} preempted={drafted.num_preempted > 0}")


def test_most_right_drafts_are_accepted_in_fewer_steps(engine: LoadedEngine) -> None:
    sampling = SamplingParams(60, temperature=0.8, ignore_eos=True)
    some = [Request(f"r{i}", (5, 9, i), dataclasses.replace(sampling, seed=i), float(i)) for i in range(3)]
    plain = run(engine, some, None)
    drafted = run(engine, some, plain)
    assert num_accepted(drafted) > 60
    assert drafted.num_turns < 0.6 * plain.num_turns


def test_drafts_change_nothing_under_preemption(engine: LoadedEngine) -> None:
    sampling = SamplingParams(80, temperature=0.8, ignore_eos=True, logprobs=1)
    some = [Request(f"r{i}", (5, 9) * 8, dataclasses.replace(sampling, seed=i), float(i)) for i in range(8)]
    drafted = same(engine, some, num_blocks=18)
    assert num_accepted(drafted) > 0
    assert drafted.num_preempted > 0 or all(span.window for span in engine.cache.groups)
