"""A model that generates encodes texts beside: the rows of the model as an encoder, while others get their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import Server
from tests.api.test_batches import create, ended, line_of, results
from tests.encoders import loaded

TEXTS = [" ".join(["the", "little", "red", "hen", "said"] * n) for n in (1, 2, 7, 20, 3)]
PROMPT = "Once upon a time"
PATH = "/v1/embeddings"


@pytest.fixture
def client(real_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real_server.url}/v1", api_key="any", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def rows(kernel_cache: str) -> np.ndarray:
    with loaded(DEFAULT_MODEL, kernel_cache, dtype="bfloat16", max_num_batched_tokens=512) as found:
        return found.encoder.encode(found.tokenizer.encode(TEXTS))


def embedded(client: openai.OpenAI, texts: list[str]) -> np.ndarray:
    answer = client.embeddings.create(model="fake", input=texts)
    return np.array([item.embedding for item in answer.data], np.float32)


def test_rows_are_those_of_the_model_as_an_encoder(client: openai.OpenAI, rows: np.ndarray) -> None:
    """Rows agree in bfloat16, up to the order in which attention sums keys in blocks of the KV cache."""
    found = embedded(client, TEXTS)
    assert (found * rows).sum(axis=1).min() >= 0.9999
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_neither_tokens_nor_rows_depend_on_the_other(client: openai.OpenAI) -> None:
    def generated(_: int) -> str:
        answer = client.completions.create(model="fake", prompt=PROMPT, max_tokens=60, temperature=0)
        return answer.choices[0].text

    alone, rows = generated(0), np.concatenate([embedded(client, [text]) for text in TEXTS])
    with ThreadPoolExecutor(12) as pool:
        texts = [pool.submit(generated, i) for i in range(4)]
        vectors = [pool.submit(embedded, client, TEXTS * 8) for _ in range(6)]
        assert {each.result() for each in texts} == {alone}
        for each in vectors:
            assert np.array_equal(each.result(), np.concatenate([rows] * 8))


def test_the_server_says_that_its_vectors_are_weak(client: openai.OpenAI) -> None:
    answer = client.embeddings.with_raw_response.create(model="fake", input="a")
    assert "compare poorly" in answer.headers["X-Neuronserve-Notice"]
    card = client.models.retrieve("fake").model_dump()
    assert "compare poorly" in card["notice"]
    assert card["tasks"] == ["generate", "embed", "score"]


def test_a_text_must_fit_in_a_step(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="up to 512 tokens") as refused:
        client.embeddings.create(model="fake", input="a " * 2000)
    assert refused.value.param == "input"


def test_a_batch_has_the_rows_of_its_endpoint(client: openai.OpenAI) -> None:
    bodies: list[dict[str, Any]] = [{"input": TEXTS}, {"input": "a hen", "encoding_format": "base64"}]
    bodies += [{"input": "a hen", "dimensions": 999}]
    lines = [line_of(f"line {i}", PATH, **body) for i, body in enumerate(bodies)]
    batch = ended(client, create(client, lines, PATH).id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 1)
    answers, errors = results(client, batch.output_file_id), results(client, batch.error_file_id)
    found = [item["embedding"] for item in answers["line 0"]["response"]["body"]["data"]]
    np.testing.assert_allclose(np.array(found, np.float32), embedded(client, TEXTS), atol=1e-6)
    assert isinstance(answers["line 1"]["response"]["body"]["data"][0]["embedding"], str)
    assert errors["line 2"]["response"]["body"]["error"]["param"] == "dimensions"
    used = [answer["response"]["body"]["usage"] for answer in answers.values()]
    assert batch.usage.input_tokens == sum(each["prompt_tokens"] for each in used)
    assert batch.usage.neuronserve["device_seconds"] > 0
