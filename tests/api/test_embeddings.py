"""An encoder behind the server: OpenAI's client, the same rows as in process, bad requests, deaths of the engine."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import openai
import pytest

from neuronserve.server.device.ledger import USES
from tests.api.serving import PATIENCE_S, Server, running_server
from tests.encoders import LONGEST, VOCAB, loaded, random_model, save, write_json

SIZE = 48
TEXTS = ["the cat sits on the mat", "a b c", "x", "some more words, and then some", "zz top"] * 3
MANY = [f"{a} {b} text" for a in "abcdefghijklmnop" for b in range(70)]


@pytest.fixture(scope="session")
def encoder_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BERT with sentence-transformers' files: the mean, normalized, and a prompt."""
    directory = save(random_model("bert"), tmp_path_factory.mktemp("encoder") / "bert")
    kinds = ["models.Transformer", "models.Pooling", "models.Normalize"]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    write_json(directory / "modules.json", modules)
    write_json(directory / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    write_json(directory / "config_sentence_transformers.json", {"prompts": {"query": "q: ", "none": ""}})
    return directory


@pytest.fixture(scope="session")
def encoder(encoder_directory: Path, kernel_cache: str) -> Iterator[Server]:
    options = ("--kernel-cache-dir", kernel_cache, "--dtype", "float32", "--max-num-batched-tokens", "256")
    with running_server(encoder_directory, *options, "--max-num-seqs", "8", program="neuronserve") as running:
        yield running


@pytest.fixture(scope="session")
def in_process(encoder_directory: Path, kernel_cache: str) -> Iterator[Callable[[list[str]], np.ndarray]]:
    with loaded(encoder_directory, kernel_cache) as found:
        yield lambda texts: found.encoder.encode(found.tokenizer.encode(texts))


@pytest.fixture
def client(encoder: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{encoder.url}/v1", api_key="any", max_retries=0, timeout=PATIENCE_S) as made:
        yield made


@pytest.fixture
def http(encoder: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=encoder.url) as made:
        yield made


def rows_of(answer: dict[str, Any]) -> np.ndarray:
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return np.array([item["embedding"] for item in answer["data"]], np.float32)


def embedded(http: httpx.Client, **body: Any) -> np.ndarray:
    return rows_of(http.post("/v1/embeddings", json=body).raise_for_status().json())


def test_openais_client_gets_the_rows_of_the_encoder_in_process(client: openai.OpenAI, in_process: Any) -> None:
    """The client's default, base64, and numbers give the same bits."""
    want = in_process(TEXTS)
    packed = client.embeddings.create(model="fake", input=TEXTS)
    plain = client.embeddings.create(model="fake", input=TEXTS, encoding_format="float")
    for answer in (packed, plain):
        assert [item.index for item in answer.data] == list(range(len(TEXTS)))
        assert np.array_equal(np.array([item.embedding for item in answer.data], np.float32), want)
        assert answer.model == "fake"
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > 3 * len(TEXTS)


def test_base64_is_of_little_endian_float32(http: httpx.Client, in_process: Any) -> None:
    answer = http.post("/v1/embeddings", json={"input": "a b c", "encoding_format": "base64"}).json()
    row = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    assert np.array_equal(row, in_process(["a b c"])[0])


def test_token_ids_are_taken_as_they_are(http: httpx.Client, client: openai.OpenAI) -> None:
    """LangChain and LlamaIndex send one list, or a list of lists."""
    ids = [http.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS[:5]]
    want = embedded(http, input=TEXTS[:5])
    answer = client.embeddings.create(model="fake", input=ids, encoding_format="float")
    assert np.array_equal(np.array([item.embedding for item in answer.data], np.float32), want)
    assert np.array_equal(embedded(http, input=ids[0]), want[:1])


def test_dimensions_are_the_first_values_normalized_again(client: openai.OpenAI, in_process: Any) -> None:
    answer = client.embeddings.create(model="fake", input=TEXTS[:3], dimensions=10, encoding_format="float", user="me")
    cut = in_process(TEXTS[:3])[:, :10]
    want = cut / np.linalg.norm(cut, axis=1, keepdims=True)
    np.testing.assert_allclose([item.embedding for item in answer.data], want, rtol=1e-6)


def test_a_row_does_not_depend_on_what_else_is_encoded(http: httpx.Client, in_process: Any) -> None:
    """Several requests at once, of one text and of many: bit for bit what each is alone."""
    want = dict(zip(MANY[:64], in_process(MANY[:64]), strict=True))
    batches = [MANY[:64], MANY[10:30], MANY[63:64], MANY[5:6], MANY[40:64], MANY[:1]] * 2

    def ask(texts: list[str]) -> np.ndarray:
        return embedded(http, input=texts)

    with ThreadPoolExecutor(len(batches)) as pool:
        for texts, rows in zip(batches, pool.map(ask, batches), strict=True):
            assert np.array_equal(rows, np.stack([want[text] for text in texts]))


def test_more_texts_than_the_queue_holds_are_no_obstacle(http: httpx.Client, in_process: Any) -> None:
    rows = embedded(http, input=MANY)
    assert len(rows) == len(MANY) > 1024
    assert np.array_equal(rows[-3:], in_process(MANY[-3:]))


def test_prompts_of_the_model(http: httpx.Client) -> None:
    assert np.array_equal(embedded(http, input="a", prompt_name="query"), embedded(http, input="q: a"))
    assert np.array_equal(embedded(http, input="a", prompt_name="none"), embedded(http, input="a"))


def test_a_long_text_is_refused_or_loses_its_end(http: httpx.Client) -> None:
    text = "a " * LONGEST
    error = http.post("/v1/embeddings", json={"input": ["b", text]}).json()["error"]
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
    whole = embedded(http, input="a " * (LONGEST - 2))
    assert np.array_equal(embedded(http, input=text, truncate_prompt_tokens=-1), whole)
    assert np.array_equal(embedded(http, input=text, truncate_prompt_tokens=7), embedded(http, input="a " * 5))
    ids = [2, 10, 11, 12, 3]
    assert np.array_equal(embedded(http, input=ids, truncate_prompt_tokens=4), embedded(http, input=ids[:4]))


def test_a_long_text_loses_its_beginning_where_that_is_asked_for(http: httpx.Client) -> None:
    text = "x " * LONGEST + "a b c"
    left = embedded(http, input=text, truncate_prompt_tokens=5, truncation_side="left")
    assert np.array_equal(left, embedded(http, input="a b c"))
    assert np.array_equal(
        embedded(http, input=text, truncate_prompt_tokens=5, truncation_side="right"), embedded(http, input="x x x")
    )
    ids = [2, 10, 11, 12, 3]
    cut = embedded(http, input=ids, truncate_prompt_tokens=4, truncation_side="left")
    assert np.array_equal(cut, embedded(http, input=ids[1:]))


def cohere(http: httpx.Client, **body: Any) -> Any:
    answer = http.post("/v2/embed", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_cohere_gets_the_same_rows_in_every_type(http: httpx.Client) -> None:
    want = embedded(http, input=TEXTS[:2])
    answer = cohere(http, model="fake", texts=TEXTS[:2], embedding_types=["float", "base64", "binary", "ubinary"])
    found = answer["embeddings"]
    assert np.array_equal(np.array(found["float"], np.float32), want)
    assert np.array_equal([np.frombuffer(base64.b64decode(row), np.float32) for row in found["base64"]], want)
    assert np.array_equal(np.array(found["ubinary"], np.uint8), np.packbits(want >= 0, axis=-1))
    assert (np.array(found["binary"]) == np.array(found["ubinary"]) - 128).all()
    assert (answer["texts"], answer["response_type"]) == (TEXTS[:2], "embeddings_by_type")
    assert answer["meta"]["billed_units"]["input_tokens"] > 0
    assert set(cohere(http, texts=["a"])["embeddings"]) == {"float"}
    short = cohere(http, texts=TEXTS[:1], output_dimension=8)["embeddings"]["float"]
    assert np.array_equal(np.array(short, np.float32), embedded(http, input=TEXTS[:1], dimensions=8))


def test_coheres_types_of_input_are_the_models_prompts(http: httpx.Client) -> None:
    query = cohere(http, texts=["a"], input_type="search_query")["embeddings"]["float"]
    assert np.array_equal(np.array(query, np.float32), embedded(http, input=["a"], prompt_name="query"))
    text = "x " * LONGEST + "a b c"
    for truncate, kept in (("START", "a b c"), ("END", "x x x"), (None, "x x x")):
        cut = cohere(http, texts=[text], max_tokens=5, truncate=truncate)["embeddings"]["float"]
        assert np.array_equal(np.array(cut, np.float32), embedded(http, input=[kept]))


def test_pooling_has_rows_and_states_of_tokens(http: httpx.Client, encoder_directory: Path, kernel_cache: str) -> None:
    answer = http.post("/pooling", json={"input": TEXTS[:2]}).raise_for_status().json()
    assert [item["object"] for item in answer["data"]] == ["pooling"] * 2
    assert np.array_equal([item["data"] for item in answer["data"]], embedded(http, input=TEXTS[:2]))
    states = http.post("/pooling", json={"input": TEXTS[:2], "task": "token_embed"}).json()["data"]
    with loaded(encoder_directory, kernel_cache) as found:
        for item, text in zip(states, found.tokenizer.encode(TEXTS[:2]), strict=True):
            assert np.array_equal(np.array(item["data"], np.float32), found.encoder.states(text))
    raw = http.post("/pooling", json={"input": TEXTS[0], "normalize": False}).json()["data"][0]["data"]
    assert np.linalg.norm(raw) > 1.5


def test_cosines_are_the_scores_of_a_model_that_embeds(http: httpx.Client) -> None:
    query, documents = "the cat", ["a b c", "the cat sits", "the cat", "zz"]
    rows = embedded(http, input=[query, *documents]).astype(float)
    want = rows[1:] @ rows[0]
    for path in ("/score", "/v1/score"):
        answer = http.post(path, json={"text_1": query, "text_2": documents}).raise_for_status().json()
        np.testing.assert_allclose([item["score"] for item in answer["data"]], want, atol=1e-6)
    ranked = http.post("/rerank", json={"query": query, "documents": documents}).json()["results"]
    assert [item["index"] for item in ranked] == np.argsort(-want, kind="stable").tolist()


def test_the_server_says_what_it_serves(http: httpx.Client) -> None:
    card = http.get("/v1/models").json()["data"][0]
    assert card["tasks"] == ["embed", "score"]
    assert card["dimensions"] == SIZE
    assert card["max_model_len"] == LONGEST
    assert "notice" not in card
    inventory = http.get("/inventory").json()
    assert inventory["pooling"]["pooling"] == ["mean"]
    assert inventory["memory"]["core"]["kv"] == 0 < inventory["memory"]["core"]["weights"]
    assert inventory["memory"]["core"]["budget"] > sum(inventory["memory"]["core"][use] for use in USES)
    assert http.get("/health").json() == {"status": "ready"}


def test_texts_are_counted_and_charged(http: httpx.Client) -> None:
    before = http.get("/metrics").text
    answer = http.post("/v1/embeddings", json={"input": TEXTS}, headers={"X-Neuronserve-Usage": "true"}).json()
    after = http.get("/metrics").text
    assert (
        metric(after, "vllm:prompt_tokens_total") - metric(before, "vllm:prompt_tokens_total")
        == (answer["usage"]["prompt_tokens"])
    )
    ended = 'vllm:request_success_total{engine="0",finished_reason="stop"'
    assert metric(after, ended) - metric(before, ended) == len(TEXTS)
    used = answer["usage"]["neuronserve"]
    assert used["device_seconds"] > 0
    time_of = "neuronserve:device_seconds_total"
    busy = 'kind="prefill"'
    assert metric(after, time_of, busy) - metric(before, time_of, busy) == pytest.approx(used["device_seconds"])


def metric(text: str, name: str, label: str = "") -> float:
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name) and label in line)


class Bad(NamedTuple):
    path: str
    body: dict[str, Any]
    param: str | None
    status: int = 400


EMBED, POOL, SCORE, RERANK = "/v1/embeddings", "/pooling", "/v1/score", "/v1/rerank"
BAD = [
    *(Bad(path, {}, "input") for path in (EMBED, POOL, "/classify")),
    *(Bad(path, {"input": ""}, "input") for path in (EMBED, POOL)),
    *(Bad(path, {"input": "a", "model": "gpt-9"}, "model", 404) for path in (EMBED, POOL, "/classify")),
    Bad(EMBED, {"input": None}, "input"),
    Bad(EMBED, {"input": 5}, "input"),
    Bad(EMBED, {"input": []}, "input"),
    Bad(EMBED, {"input": {}}, "input"),
    Bad(EMBED, {"input": ["a", ""]}, "input[1]"),
    Bad(EMBED, {"input": ["a", 5]}, "input[1]"),
    Bad(EMBED, {"input": [["a"]]}, "input[0][0]"),
    Bad(EMBED, {"input": [[1], []]}, "input[1]"),
    Bad(EMBED, {"input": [-1]}, "input[0]"),
    Bad(EMBED, {"input": [1.5]}, "input[0]"),
    Bad(EMBED, {"input": [1, VOCAB]}, "input"),
    Bad(EMBED, {"input": [[1], [10**400]]}, "input[1][0]"),
    Bad(EMBED, {"input": ["a"] * 2049}, "input"),
    Bad(EMBED, {"input": [4] * (LONGEST + 1)}, "input"),
    Bad(EMBED, {"input": "x" * 2**20}, "input"),
    Bad(EMBED, {"input": "a", "dimensions": 0}, "dimensions"),
    Bad(EMBED, {"input": "a", "dimensions": SIZE + 1}, "dimensions"),
    Bad(EMBED, {"input": "a", "dimensions": "8"}, "dimensions"),
    Bad(EMBED, {"input": "a", "encoding_format": "hex"}, "encoding_format"),
    Bad(EMBED, {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    Bad(EMBED, {"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
    Bad(EMBED, {"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    Bad(EMBED, {"input": "a", "truncate_prompt_tokens": LONGEST + 1}, "truncate_prompt_tokens"),
    Bad(EMBED, {"input": "a", "prompt_name": "passage"}, "prompt_name"),
    Bad(EMBED, {"input": "a", "priority": 2**40}, "priority"),
    Bad(EMBED, {"input": "a", "user": 5}, "user"),
    Bad(EMBED, {"input": "a", "normalize": "no"}, "normalize"),
    Bad(EMBED, {"input": "a", "task": "retrieval.query"}, "task"),
    Bad(POOL, {"input": "a", "task": "generate"}, "task"),
    Bad(POOL, {"input": "a", "task": "classify"}, "model"),
    Bad(POOL, {"input": "a", "task": "token_embed", "dimensions": 4}, "dimensions"),
    Bad(POOL, {"input": ["a"] * 33, "task": "token_embed"}, "input"),
    Bad("/classify", {"input": "a"}, "model"),
    Bad(SCORE, {"text_1": "a"}, "text_2"),
    Bad(SCORE, {"text_1": "a", "text_2": []}, "text_2"),
    Bad(SCORE, {"text_1": "a", "text_2": ["b", 5]}, "text_2[1]"),
    Bad(SCORE, {"text_1": "a", "text_2": ["b", ""]}, "text_2[1]"),
    Bad(SCORE, {"text_1": ["a", "b"], "text_2": ["b", "c", "d"]}, "text_1"),
    Bad(SCORE, {"text_1": "a", "text_2": "b " * LONGEST}, "text_2"),
    Bad(RERANK, {"query": "a"}, "documents"),
    Bad(RERANK, {"documents": ["a"]}, "query"),
    Bad(RERANK, {"query": "", "documents": ["a"]}, "query"),
    Bad(RERANK, {"query": "a", "documents": []}, "documents"),
    Bad(RERANK, {"query": "a", "documents": ["a", {}]}, "documents[1].text"),
    Bad(RERANK, {"query": "a", "documents": ["a", ""]}, "documents[1]"),
    Bad(RERANK, {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
    Bad(RERANK, {"query": "a", "documents": ["a"], "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    Bad(RERANK, {"query": "a", "documents": ["a"], "texts": ["a"]}, "documents"),
    Bad(RERANK, {"query": "a", "texts": []}, "texts"),
    Bad(EMBED, {"input": "a", "truncation_side": "middle"}, "truncation_side"),
    Bad("/v2/embed", {}, "texts"),
    Bad("/v2/embed", {"texts": []}, "texts"),
    Bad("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types[0]"),
    Bad("/v2/embed", {"texts": ["a"], "images": ["data:"]}, "images"),
    Bad("/v2/embed", {"texts": ["a"], "input_type": "clustering"}, "input_type"),
    Bad("/v2/embed", {"texts": ["a"], "output_dimension": SIZE + 1}, "output_dimension"),
    Bad("/v2/embed", {"texts": ["a"], "output_dimension": 9, "embedding_types": ["binary"]}, "embedding_types"),
    Bad("/v2/embed", {"texts": ["a"], "max_tokens": 2}, "max_tokens"),
    Bad("/v2/embed", {"texts": ["a", "a " * LONGEST], "truncate": "NONE"}, "texts[1]"),
    Bad("/v2/embed", {"texts": ["a " * 9], "truncate": "NONE", "max_tokens": 8}, "texts[0]"),
    Bad("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "model"),
    Bad("/v1/completions", {"prompt": "a"}, "model"),
]


def test_bad_requests_are_refused_with_their_field_beside_good_ones(http: httpx.Client, in_process: Any) -> None:
    want = in_process(["a b c"])
    for bad in BAD:
        answer = http.post(bad.path, content=json.dumps(bad.body), headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (bad.status, bad.param), (bad, answer.text)
    assert np.array_equal(embedded(http, input="a b c"), want)


def test_a_client_that_leaves_takes_its_texts_along(encoder: Server, http: httpx.Client) -> None:
    body = json.dumps({"input": MANY}).encode()
    aborted = 'vllm:request_success_total{engine="0",finished_reason="abort"'
    before = metric(http.get("/metrics").text, aborted)
    with socket.create_connection(("127.0.0.1", encoder.port)) as connection:
        head = "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: metric(http.get("/metrics").text, "vllm:num_requests_waiting{") > 0)
    until(lambda: metric(http.get("/metrics").text, aborted) > before)
    until(lambda: metric(http.get("/metrics").text, "vllm:num_requests_waiting{") == 0)


def test_texts_in_flight_survive_a_killed_engine(encoder: Server, http: httpx.Client) -> None:
    want = embedded(http, input=MANY)
    found: list[np.ndarray] = []
    asking = threading.Thread(target=lambda: found.append(embedded(http, input=MANY)))
    pid = encoder.engine_pid
    asking.start()
    until(lambda: metric(http.get("/metrics").text, "vllm:num_requests_waiting{") > 0)
    os.kill(pid, signal.SIGKILL)
    assert asking.is_alive()  # it was in flight
    asking.join(PATIENCE_S)
    assert np.array_equal(found[0], want)
    assert encoder.engine_pid != pid


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
