"""Cross-encoders and classifiers behind the server: scores of pairs in vLLM's, Cohere's and Jina's shapes, classes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from neuronserve.server.errors import CheckpointError
from tests.api.serving import Server, running_server
from tests.encoders import LONGEST, loaded, random_model, save, write_json

QUERY = "how tall is it"
DOCUMENTS = ["it is tall", "a b c", "how tall", "some other words, many of them"]
LABELS = {0: "bad", 1: "good", 2: "neither"}


def classifier(directory: Path, **options: Any) -> Path:
    kind = transformers.AutoModelForSequenceClassification
    return save(random_model("bert", kind, architectures=["BertForSequenceClassification"], **options), directory)


@pytest.fixture(scope="module")
def pairs_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("cross") / "bert", num_labels=1)


@pytest.fixture(scope="module")
def labels_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("labels") / "bert", id2label=LABELS)


@pytest.fixture(scope="module")
def pairs_server(pairs_directory: Path, kernel_cache: str) -> Iterator[Server]:
    options = ("--kernel-cache-dir", kernel_cache, "--dtype", "float32", "--api-key", "secret")
    with running_server(pairs_directory, *options, program="neuronserve") as running:
        yield running


@pytest.fixture(scope="module")
def labels_server(labels_directory: Path, kernel_cache: str) -> Iterator[Server]:
    options = ("--kernel-cache-dir", kernel_cache, "--dtype", "float32")
    with running_server(labels_directory, *options, program="neuronserve") as running:
        yield running


@pytest.fixture
def pairs(pairs_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=pairs_server.url, headers={"Authorization": "Bearer secret"}) as made:
        yield made


@pytest.fixture
def labels(labels_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=labels_server.url) as made:
        yield made


@pytest.fixture(scope="module")
def scores(pairs_directory: Path, kernel_cache: str) -> list[float]:
    with loaded(pairs_directory, kernel_cache) as found:
        tokens = found.tokenizer.encode([(QUERY, text) for text in DOCUMENTS])
        return [float(value) for value in found.encoder.encode(tokens)[:, 0]]


def posted(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = http.post(path, json=body).raise_for_status().json()
    return answer


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_are_those_of_the_encoder_in_process(pairs: httpx.Client, scores: list[float], path: str) -> None:
    answer = posted(pairs, path, text_1=QUERY, text_2=DOCUMENTS, model="fake")
    assert [item["score"] for item in answer["data"]] == scores
    assert [item["index"] for item in answer["data"]] == [0, 1, 2, 3]
    one_by_one = posted(pairs, path, text_1=[QUERY] * 4, text_2=DOCUMENTS)
    assert [item["score"] for item in one_by_one["data"]] == scores
    assert posted(pairs, path, text_1=QUERY, text_2=DOCUMENTS[0])["data"][0]["score"] == scores[0]


def test_jina_gets_its_shape(pairs: httpx.Client, scores: list[float]) -> None:
    answer = posted(pairs, "/v1/rerank", model="fake", query=QUERY, documents=DOCUMENTS, top_n=3)
    order = np.argsort(-np.array(scores), kind="stable")[:3].tolist()
    assert answer["results"] == [
        {"index": i, "relevance_score": scores[i], "document": {"text": DOCUMENTS[i]}} for i in order
    ]
    assert answer["usage"]["total_tokens"] > 0
    assert answer["model"] == "fake"


def test_cohere_gets_its_shapes(pairs: httpx.Client, scores: list[float]) -> None:
    order = np.argsort(-np.array(scores), kind="stable").tolist()
    documents = [{"text": text} for text in DOCUMENTS]
    first = posted(pairs, "/v1/rerank", query=QUERY, documents=documents, return_documents=False)
    second = posted(pairs, "/v2/rerank", model="fake", query=QUERY, documents=DOCUMENTS)
    for answer, version in ((first, "1"), (second, "2")):
        assert answer["results"] == [{"index": i, "relevance_score": scores[i]} for i in order]
        assert answer["meta"]["api_version"]["version"] == version
        assert answer["id"]


def test_tei_gets_its_shape(pairs: httpx.Client, scores: list[float]) -> None:
    order = np.argsort(-np.array(scores), kind="stable").tolist()
    answer = pairs.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS}).raise_for_status().json()
    assert answer == [{"index": i, "score": scores[i]} for i in order]
    best = pairs.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "top_n": 1, "return_text": True}).json()
    assert best == [{"index": order[0], "score": scores[order[0]], "text": DOCUMENTS[order[0]]}]


def test_documents_are_held_to_the_tokens_that_a_request_allows(pairs: httpx.Client) -> None:
    whole, cut = ["it is tall and wide", "a b c d e"], ["it is tall", "a b c"]
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        held = posted(pairs, path, query=QUERY, documents=whole, max_tokens_per_doc=3, return_documents=True)["results"]
        short = posted(pairs, path, query=QUERY, documents=cut)["results"]
        assert [(each["index"], each["relevance_score"]) for each in held] == [
            (each["index"], each["relevance_score"]) for each in short
        ]
        assert {each["document"]["text"] for each in held} == set(whole)  # as they were sent
    same = posted(pairs, "/rerank", query=QUERY, documents=whole, max_tokens_per_doc=4096)["results"]
    assert same == posted(pairs, "/rerank", query=QUERY, documents=whole)["results"]


def test_documents_to_rank_lose_what_is_too_long(pairs: httpx.Client) -> None:
    long = posted(pairs, "/rerank", query=QUERY, documents=["it " * LONGEST, "it " * 2 * LONGEST])
    assert long["results"][0]["relevance_score"] == long["results"][1]["relevance_score"]
    refused = pairs.post("/score", json={"text_1": QUERY, "text_2": ["a", "it " * LONGEST]})
    assert refused.json()["error"]["param"] == "text_2[1]"


def test_a_cross_encoder_embeds_nothing(pairs: httpx.Client) -> None:
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/completions", {"prompt": "a"})):
        error = pairs.post(path, json=body).json()["error"]
        assert error["param"] == "model"
        assert "/v1/rerank" in error["message"]
    assert pairs.get("/v1/models").json()["data"][0]["tasks"] == ["classify", "score"]


@pytest.mark.parametrize("path", ["/pooling", "/classify", "/score", "/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_key_is_needed_where_one_is_set(pairs_server: Server, path: str) -> None:
    assert httpx.post(f"{pairs_server.url}{path}", json={}).status_code == 401


def test_classes(labels: httpx.Client, labels_directory: Path, kernel_cache: str) -> None:
    with loaded(labels_directory, kernel_cache) as found:
        tokens = found.tokenizer.encode(DOCUMENTS)
        want, raw = found.encoder.encode(tokens), found.encoder.encode(tokens, is_raw=True)
    answer = posted(labels, "/classify", input=DOCUMENTS)
    assert np.array_equal(np.array([item["probs"] for item in answer["data"]], np.float32), want)
    assert [item["label"] for item in answer["data"]] == [LABELS[i] for i in want.argmax(axis=1).tolist()]
    assert {item["num_classes"] for item in answer["data"]} == {3}
    logits = posted(labels, "/classify", input=DOCUMENTS, use_activation=False)
    assert np.array_equal(np.array([item["probs"] for item in logits["data"]], np.float32), raw)
    pooled = posted(labels, "/pooling", input=DOCUMENTS)
    assert np.array_equal(np.array([item["data"] for item in pooled["data"]], np.float32), want)


def test_several_classes_are_no_score(labels: httpx.Client) -> None:
    for path, body in (
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/embeddings", {"input": "a"}),
    ):
        answer = labels.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert labels.get("/v1/models").json()["data"][0]["tasks"] == ["classify"]


CARD = (  # of Qwen/Qwen3-Reranker-0.6B: what is before a pair, its instruction, and what is behind it
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct"
    ' provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    "Given a web search query, retrieve relevant passages that answer the query",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
LONG = "a long text of many words " * 200


def reranker(directory: Path, is_tied: bool) -> tuple[Path, Any]:
    """A decoder that answers with a token for yes or no, and vLLM's keys beside those of its class."""
    tokens = 124
    options = {"vocab_size": tokens, "max_position_embeddings": 700, "tie_word_embeddings": is_tied}
    model = random_model("qwen3", transformers.AutoModelForCausalLM, **options)
    tokenizer = Tokenizer.from_file(str(save(model, directory) / "tokenizer.json"))
    tokenizer.add_tokens(["no", "yes"])
    tokenizer.save(str(directory / "tokenizer.json"))
    keys = {"classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": True}
    config = json.loads((directory / "config.json").read_text())
    write_json(directory / "config.json", config | keys | {"architectures": ["Qwen3ForSequenceClassification"]})
    return directory, model


def probability(directory: Path, model: Any, query: str, document: str) -> float:
    """As the model card computes it: the softmax of the two logits behind the last token."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    before, instruction, after = CARD
    middle = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    first, pair, last = (tokenizer.encode(each, add_special_tokens=False).ids for each in (before, middle, after))
    ids = [*first, *pair[: 700 - len(first) - len(last)], *last]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    return float(torch.softmax(logits[[tokenizer.token_to_id(each) for each in ("no", "yes")]], dim=0)[1])


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_decoder_ranks_by_its_logits_of_two_tokens(tmp_path: Path, kernel_cache: str, is_tied: bool) -> None:
    directory, model = reranker(tmp_path / "reranker", is_tied)
    options = ("--kernel-cache-dir", kernel_cache, "--dtype", "float32", "--max-num-batched-tokens", "2048")
    texts = [*DOCUMENTS, LONG]
    want = [probability(directory, model, QUERY, text) for text in texts]
    assert max(want) - min(want) > 1e-3
    with (
        running_server(directory, *options, program="neuronserve") as running,
        httpx.Client(base_url=running.url) as to,
    ):
        scored = to.post("/v1/score", json={"text_1": QUERY, "text_2": DOCUMENTS}).json()["data"]
        ranked = to.post("/v1/rerank", json={"query": QUERY, "documents": texts}).json()["results"]
        too_long = to.post("/v1/score", json={"text_1": QUERY, "text_2": LONG})
    assert [item["score"] for item in scored] == pytest.approx(want[:-1], abs=1e-5)
    assert {item["index"]: item["relevance_score"] for item in ranked} == pytest.approx(dict(enumerate(want)), abs=1e-5)
    assert ranked == sorted(ranked, key=lambda item: -item["relevance_score"])
    assert (too_long.status_code, too_long.json()["error"]["param"]) == (400, "text_2")


def test_a_token_that_does_not_exist_is_refused(tmp_path: Path, kernel_cache: str) -> None:
    directory, _ = reranker(tmp_path / "reranker", is_tied=False)
    config = json.loads((directory / "config.json").read_text())
    write_json(directory / "config.json", config | {"classifier_from_token": ["no", "maybe so"]})
    with pytest.raises(CheckpointError, match="classifier_from_token is"), loaded(directory, kernel_cache):
        pass
