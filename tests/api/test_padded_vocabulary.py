"""Models with more embeddings than their tokenizer has tokens: no output has an id without a token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, models

from neuronserve.server.text.generation_config import load_generation_defaults
from neuronserve.server.text.tokenizer import load_tokenizer, num_token_ids
from tests.api.serving import Server, running_server, write_checkpoint
from tools.random_checkpoint.adapter import adapter_tensors, write_adapter
from tools.random_checkpoint.tokenizer import MIN_VOCAB, generation_config, tokenizer_json
from tools.random_checkpoint.writer import Options
from tools.random_checkpoint.writer import write_checkpoint as write_random_checkpoint

EMBEDDINGS, TOKENS = 2048, MIN_VOCAB + 61  # neither a multiple of 32, which a mask's words have
PROMPT = "the sea is"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, by which six of seven tokens would be padding."""
    place = tmp_path_factory.mktemp("padded") / "model"
    write_random_checkpoint("tiny-qwen3", place, Options(vocab=EMBEDDINGS))
    (place / "tokenizer.json").write_text(json.dumps(tokenizer_json(TOKENS)))
    config = generation_config(TOKENS)
    config["eos_token_id"] += [EMBEDDINGS - 1, EMBEDDINGS + 100]  # one in the padding, one of no embedding
    (place / "generation_config.json").write_text(json.dumps(config))
    return place


@pytest.fixture(scope="module")
def served(directory: Path, kernel_cache: str) -> Iterator[Server]:
    write_adapter(directory.parent / "adapter", adapter_tensors(directory, 4))
    options = ("--max-model-len", "256", "--kernel-cache-dir", kernel_cache, "--max-logprobs", "20")
    adapter = ("--lora-modules", f"adapter={directory.parent / 'adapter'}")
    with running_server(directory, *options, *adapter, program="neuronserve") as running:
        yield running


def post(served: Server, path: str, **body: Any) -> httpx.Response:
    given = {"model": "fake", "return_token_ids": True} | body
    return httpx.post(served.url + path, json=given, timeout=300)


def choices(served: Server, **body: Any) -> list[dict[str, Any]]:
    answer = post(served, "/v1/completions", **{"prompt": PROMPT, "max_tokens": 40} | body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["choices"]
    return found


SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 2.0, "top_p": 1.0, "n": 4, "seed": 1},
    "top_k": {"temperature": 2.0, "top_k": 5, "seed": 2},
    "top_p and min_p": {"temperature": 2.0, "top_p": 0.9, "min_p": 0.001, "seed": 3},
    "penalties": {"temperature": 0, "presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 2.0},
    "logit_bias": {"temperature": 0, "logit_bias": {str(token): -100 for token in range(256)}},
    "log-probabilities": {"temperature": 1.0, "logprobs": 20, "seed": 4},
    "end tokens": {"temperature": 1.0, "ignore_eos": True, "min_tokens": 40, "seed": 5},
    "no end before": {"temperature": 1.0, "min_tokens": 40, "seed": 6},
    "grammar": {"temperature": 1.0, "structured_outputs": {"regex": "[^a]{30}"}, "seed": 8},
    "bad words": {"temperature": 1.0, "bad_words": ["e"], "seed": 9},
    "adapter": {"model": "adapter", "temperature": 1.0, "n": 2, "seed": 10},
    "prompt log-probabilities": {"temperature": 0, "echo": True, "logprobs": 20},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", SAMPLING.values(), ids=SAMPLING)
def test_no_output_has_an_id_without_a_token(served: Server, options: dict[str, Any]) -> None:
    for choice in choices(served, **options):
        assert choice["token_ids"]
        assert max(choice["token_ids"]) < TOKENS
        for top in (choice["logprobs"] or {}).get("top_logprobs") or []:
            assert "" not in (top or {})
        again = choices(served, prompt=choice["token_ids"], max_tokens=1)  # what was generated can be given
        assert len(again) == 1


def test_log_probabilities_are_of_tokens_alone(served: Server) -> None:
    """Probabilities of all tokens, named by their ids, sum to one."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "logprobs": True, "temperature": 0}
    total = 0.0
    for first in range(0, TOKENS, 20):
        ids = list(range(first, min(first + 20, TOKENS)))
        answer = post(served, "/v1/chat/completions", **body, logprob_token_ids=ids, return_tokens_as_token_ids=True)
        assert answer.status_code == 200, answer.text
        top = answer.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        named = {int(each["token"].removeprefix("token_id:")): each["logprob"] for each in top}
        total += sum(2.718281828459045 ** named[token] for token in ids)
    assert total == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("token", [TOKENS, EMBEDDINGS - 1, EMBEDDINGS])
@pytest.mark.parametrize("key", ["prompt", "logit_bias", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"])
def test_an_id_without_a_token_is_refused_by_its_name(served: Server, key: str, token: int) -> None:
    value: Any = {str(token): 100} if key == "logit_bias" else [5, token]
    path, body = "/v1/completions", {"prompt": PROMPT, "max_tokens": 1, key: value}
    if key == "logprob_token_ids":
        path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], key: value}
        body["logprobs"] = True
    answer = post(served, path, **body)
    assert answer.status_code == 400
    assert (
        f"{key}: token id {token} is out of vocabulary: it is not below {TOKENS}." in answer.json()["error"]["message"]
    )


def test_end_tokens_that_the_tokenizer_lacks_are_left_out(directory: Path) -> None:
    assert set(load_generation_defaults(directory, load_tokenizer(directory)).eos_token_ids) == {TOKENS - 1, TOKENS - 3}


def test_ids_are_counted_without_a_tokenizer_as_with_one(directory: Path, tmp_path: Path) -> None:
    kinds = {
        "unigram": models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], 0, False),
        "words": models.WordLevel({"a": 0, "[UNK]": 7}, "[UNK]"),
        "pieces": models.WordPiece({"[UNK]": 0, "a": 3}, unk_token="[UNK]"),
    }
    found = [directory, write_checkpoint(tmp_path / "bytes")]
    for name, model in kinds.items():
        for added in ([], ["<new>", "<newer>"]):
            tokenizer = Tokenizer(model)
            tokenizer.add_special_tokens(added)
            place = tmp_path / f"{name} {len(added)}"
            place.mkdir()
            tokenizer.save(str(place / "tokenizer.json"))
            found.append(place)
    for place in found:
        assert num_token_ids(place) == load_tokenizer(place).vocab_size, place
    (found[-1] / "tokenizer.json").write_text('{"model": 3}')
    assert num_token_ids(found[-1]) is None
    assert num_token_ids(tmp_path) is None
