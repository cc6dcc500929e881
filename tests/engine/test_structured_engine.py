"""Grammars in the real engine: outputs follow them in any batch and after preemption; other rows do not change."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import numpy as np
import pytest

from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.text.grammar import grammar_text
from neuronserve.server.types import Request, SamplingParams
from tests.engine.config import engine_config
from tests.engine.test_engine_invariance import generate
from tests.engine.test_grammar import END, MODEL, OTHER_END, TOKENIZER

ENDS = (END, OTHER_END)
NUMBERS = grammar_text("json", {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 30})
WORDS = grammar_text("regex", "[a-z]{3,9}( [a-z]{3,9}){5}")


@pytest.fixture(scope="module")
def engine(kernel_cache: str) -> Iterator[LoadedEngine]:
    config = engine_config(MODEL, kernel_cache, tensor_parallel_size=2)
    loaded = load_engine(config, lambda _: None)
    yield loaded
    loaded.runner.close()


def requests(*grammars: str) -> list[Request]:
    rng = np.random.default_rng(5)
    sampling = SamplingParams(max_tokens=160, temperature=1.5, eos_token_ids=ENDS)
    return [
        Request(
            f"r{i}",
            tuple(rng.integers(7, 2000, int(rng.integers(1, 50))).tolist()),
            dataclasses.replace(sampling, seed=i, grammar=grammar, temperature=1.5 * (i % 4 != 3)),
            arrival_time=float(i),
        )
        for i, grammar in enumerate(grammars)
    ]


MIXED = requests(NUMBERS, "", WORDS, NUMBERS, "", WORDS, NUMBERS, "")


def alone(engine: LoadedEngine) -> dict[str, list[int]]:
    return {r.request_id: generate(engine, [r]).tokens[r.request_id] for r in MIXED}


def test_what_is_drawn_follows_the_grammar(engine: LoadedEngine) -> None:
    drawn = alone(engine)
    for one in MIXED:
        tokens = drawn[one.request_id]
        text = TOKENIZER.decode(tokens)
        if one.sampling.grammar and tokens[-1] in ENDS:
            assert isinstance(json.loads(text), list) if one.sampling.grammar == NUMBERS else text.count(" ") == 5
    assert sum(tokens[-1] in ENDS for tokens in drawn.values()) >= 3


def test_batching_chunking_and_preemption_change_no_token(engine: LoadedEngine) -> None:
    expected = alone(engine)
    assert generate(engine, MIXED).tokens == expected
    assert generate(engine, MIXED, budget=11).tokens == expected
    squeezed = generate(engine, MIXED, tokens=224)
    assert squeezed.num_preempted > 0
    assert squeezed.tokens == expected


def test_grammars_leave_the_other_rows_as_they_were(engine: LoadedEngine) -> None:
    free = [dataclasses.replace(r, sampling=dataclasses.replace(r.sampling, grammar="")) for r in MIXED]
    without, mixed = generate(engine, free).tokens, generate(engine, MIXED).tokens
    for one in MIXED:
        assert (without[one.request_id] == mixed[one.request_id]) == (not one.sampling.grammar)


def test_a_grammar_that_fails_ends_its_own_request(engine: LoadedEngine) -> None:
    bomb = grammar_text("regex", "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}")
    broken = requests("", bomb, NUMBERS)
    out = generate(engine, broken).tokens
    assert len(out["r1"]) < 80
    assert out["r0"] == generate(engine, broken[:1]).tokens["r0"]
    assert out["r2"] == generate(engine, broken[2:]).tokens["r2"]


def test_log_probabilities_are_among_what_the_grammar_allows(engine: LoadedEngine) -> None:
    asked = requests(grammar_text("choice", ["yes", "no"]))[0]
    sampling = dataclasses.replace(asked.sampling, logprobs=20, presence_penalty=1.0)
    seen = generate(engine, [dataclasses.replace(asked, sampling=sampling)])
    first = seen.events[0].logprobs
    assert first is not None
    finite = [value for value in first.top_logprobs if np.isfinite(value)]
    assert 2 <= len(finite) < 20
    assert sum(np.exp(finite)) == pytest.approx(1.0)
    assert TOKENIZER.decode(seen.tokens["r0"]) in {"yes", "no"}
