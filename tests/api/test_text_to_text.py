"""Texts to texts over HTTP by a model with an encoder, against transformers' greedy generation."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from tests.api.serving import Server, running_server
from tests.api.telemetry.scraping import encodings
from tests.encoder_decoders import random_model
from tests.encoders import save

NAME = "t5"
TEXTS = ["a b c d e f g", "hello world", "x", "the sea is blue and so is the sky " * 4]
NEW = 40
# Blocks for two or three of the texts at a time: others wait, and running ones are preempted.
OPTIONS = (*("--dtype", "float32", "--max-num-batched-tokens", "48", "--max-num-seqs", "4"), "--block-size", "16")
FEW_BLOCKS = ("--num-gpu-blocks-override", "36", "--max-model-len", "128")


@pytest.fixture(scope="module")
def model() -> Any:
    return random_model(NAME)


@pytest.fixture(scope="module")
def served(model: Any, tmp_path_factory: pytest.TempPathFactory, kernel_cache: str) -> Iterator[Server]:
    directory: Path = save(model, tmp_path_factory.mktemp(NAME) / NAME)
    options = (*OPTIONS, *FEW_BLOCKS, "--kernel-cache-dir", kernel_cache)
    with running_server(directory, *options, program="neuronserve") as running:
        yield running


@pytest.fixture
def client(served: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0, timeout=120) as made:
        yield made


def ids_of(served: Server, text: str) -> list[int]:
    answer = httpx.post(f"{served.url}/tokenize", json={"prompt": text})
    return [int(token) for token in answer.json()["tokens"]]


def expected(model: Any, source: list[int]) -> list[int]:
    """Greedy tokens after the decoder's start, the end token included."""
    options: Any = {"do_sample": False, "num_beams": 1, "max_new_tokens": NEW, "use_cache": False}
    with torch.no_grad():
        found = model.generate(torch.tensor([source]), attention_mask=torch.ones(1, len(source)), **options)
    return [int(token) for token in found[0, 1:]]


def completed(client: openai.OpenAI, text: str, **options: Any) -> Any:
    asked = {"model": "fake", "max_tokens": NEW, "temperature": 0, "extra_body": {"return_token_ids": True}} | options
    return client.completions.create(prompt=text, **asked)


def test_tokens_are_those_of_transformers_alone_and_together(served: Server, client: openai.OpenAI, model: Any) -> None:
    """Twelve requests at a time have blocks for a few: sequences wait for room, and are preempted."""
    wanted = {text: expected(model, ids_of(served, text)) for text in TEXTS}
    assert len({tuple(tokens) for tokens in wanted.values()}) == len(TEXTS), "the encoder's text must matter"
    for text in TEXTS:
        answer = completed(client, text)
        assert answer.choices[0].token_ids == wanted[text]
        assert answer.usage.prompt_tokens == len(ids_of(served, text))
        assert answer.usage.completion_tokens == len(wanted[text])
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda text: completed(client, text).choices[0].token_ids, TEXTS * 3))
    assert found == [wanted[text] for text in TEXTS * 3]


def test_choices_streams_and_log_probabilities(served: Server, client: openai.OpenAI, model: Any) -> None:
    before = encodings(served.url)
    whole = completed(client, TEXTS[0], logprobs=2, n=2, extra_body={"return_token_ids": True, "cache_salt": "new"})
    assert [now - then for now, then in zip(encodings(served.url), before, strict=True)] == [2, 1]
    wanted = expected(model, ids_of(served, TEXTS[0]))
    assert [choice.token_ids for choice in whole.choices] == [wanted, wanted]
    decoder = torch.tensor([[0, *wanted[:-1]]])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids_of(served, TEXTS[0])]), decoder_input_ids=decoder).logits[0]
    want = logits.double().log_softmax(-1)[range(len(wanted)), wanted]
    assert whole.choices[0].logprobs.token_logprobs == pytest.approx(want.tolist(), abs=1e-4)
    chunks = completed(client, TEXTS[0], stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text


@pytest.mark.parametrize(
    ("path", "body", "param", "reason"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "messages", "use /v1/completions"),
        ("completions", {"prompt": "a", "echo": True}, "echo", "its encoder reads the prompt"),
        ("completions", {"prompt": "a", "suffix": "b"}, "suffix", "its encoder reads the prompt"),
        ("completions", {"prompt": "a", "prompt_logprobs": 1}, "prompt_logprobs", "its encoder reads the prompt"),
        ("completions", {"prompt": "a " * 257}, "prompt", "maximum context length is 256 tokens"),
        ("embeddings", {"input": "a"}, None, ""),
    ],
)
def test_what_an_encoder_decoder_cannot_do_is_refused(
    served: Server, path: str, body: dict[str, Any], param: str | None, reason: str
) -> None:
    answer = httpx.post(f"{served.url}/v1/{path}", json={"model": "fake", **body})
    assert answer.status_code in (400, 404), answer.text
    error = answer.json()["error"]
    assert reason in error["message"]
    assert param is None or error["param"] == param
