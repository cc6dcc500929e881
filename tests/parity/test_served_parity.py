"""Scores of texts over HTTP agree with transformers for a float32 checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.api.serving import Server, running_server
from tools.golden.oracle import Oracle

SHAPE = "tiny-qwen3"
TOLERANCE = 1e-4
TEXTS = [
    ("the sea is", " blue and the sky is too"),
    ("one two three", " four"),
    ("the rest of the tale,", " when the rain had ended, was told in another place and at another time" * 2),
]


@pytest.fixture(scope="module")
def directory(checkpoint_of: Callable[[str], Path]) -> Path:
    return checkpoint_of(SHAPE)


@pytest.fixture(scope="module")
def served(directory: Path, kernel_cache: str) -> Iterator[Server]:
    options = ("--dtype", "float32", "--max-num-batched-tokens", "64", "--kernel-cache-dir", kernel_cache)
    with running_server(directory, *options, program="neuronserve") as running:
        yield running


@pytest.fixture(scope="module")
def oracle(oracle_of: Callable[[str], Oracle]) -> Oracle:
    return oracle_of(SHAPE)


def post(served: Server, path: str, **body: Any) -> Any:
    answer = httpx.post(served.url + path, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def encode(served: Server, text: str) -> list[int]:
    ids: list[int] = post(served, "/tokenize", prompt=text)["tokens"]
    return ids


def scores(oracle: Oracle, token_ids: list[int]) -> np.ndarray:
    """Log-probability of each token but the first, and whether it is the best."""
    logits = torch.tensor(oracle.logits(token_ids)).double().log_softmax(-1)[:-1]
    return logits.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0].numpy()


def test_an_echoed_prompt_has_the_log_probabilities_of_transformers(served: Server, oracle: Oracle) -> None:
    for before, after in TEXTS:
        body = {"prompt": before + after, "max_tokens": 0, "echo": True, "logprobs": 1, "return_token_ids": True}
        choice = post(served, "/v1/completions", **body)["choices"][0]
        first, *rest = choice["logprobs"]["token_logprobs"]
        assert first is None
        assert rest == pytest.approx(scores(oracle, choice["prompt_token_ids"]), abs=TOLERANCE)
        assert choice["text"] == before + after == "".join(choice["logprobs"]["tokens"])


@pytest.mark.thorough
def test_lm_evals_scores_are_those_of_transformers(served: Server, oracle: Oracle, directory: Path) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'lm-eval[api]'")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model = LocalCompletionsAPI(
        base_url=f"{served.url}/v1/completions",
        model="fake",
        tokenizer=str(directory),
        batch_size=2,
        max_length=200,
        num_concurrent=1,
    )

    def instances(kind: str, arguments: list[tuple[str, ...]]) -> list[Any]:
        return [Instance(kind, {}, given, i) for i, given in enumerate(arguments)]

    found = model.loglikelihood(instances("loglikelihood", TEXTS))
    for (before, after), (score, is_greedy) in zip(TEXTS, found, strict=True):
        ids, count = encode(served, before + after), len(encode(served, before + after)) - len(encode(served, before))
        assert score == pytest.approx(scores(oracle, ids)[-count:].sum(), abs=TOLERANCE * count)
        best = oracle.logits(ids)[:-1].argmax(-1)[-count:].tolist()
        assert is_greedy == (best == ids[-count:])
    rolling = model.loglikelihood_rolling(instances("loglikelihood_rolling", [(after,) for _, after in TEXTS]))
    for (_, after), score in zip(TEXTS, rolling, strict=True):
        ids = [model.prefix_token_id, *encode(served, after)]
        assert score == pytest.approx(scores(oracle, ids).sum(), abs=TOLERANCE * len(ids))
