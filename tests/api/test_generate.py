"""LMDeploy's /generate: the text and the tokens of a completion in its shape."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.api.bad_requests import TEXT

GENERATE = "/generate"
BASE = {"prompt": "Once upon", "max_tokens": 9, "seed": 3, "ignore_eos": True}


def test_an_answer_has_the_text_and_tokens_of_openais(http: httpx.Client) -> None:
    found = http.post(GENERATE, json={**BASE, "return_logprob": True, "session_id": 7}).raise_for_status().json()
    choice = http.post(TEXT, json={**BASE, "return_token_ids": True, "logprobs": 0}).json()["choices"][0]
    assert (found["text"], found["output_ids"]) == (choice["text"], choice["token_ids"])
    meta = found["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["finish_reason"]) == (9, 9, {"type": "length"})
    values = choice["logprobs"]["token_logprobs"]
    assert meta["output_token_logprobs"] == [list(pair) for pair in zip(values, found["output_ids"], strict=True)]
    ids = {**BASE, "prompt": None, "input_ids": choice["token_ids"]}
    assert http.post(GENERATE, json=ids).json()["meta_info"]["prompt_tokens"] == 9
    assert http.post(GENERATE, json={"prompt": "a", "ignore_eos": True}).json()["meta_info"]["completion_tokens"] == 128


def test_a_stream_has_what_came_since_the_chunk_before(http: httpx.Client) -> None:
    whole = http.post(GENERATE, json=BASE).json()
    text = http.post(GENERATE, json={**BASE, "stream": True}).text
    assert text.endswith("data: [DONE]\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert [token for chunk in chunks for token in chunk["output_ids"]] == whole["output_ids"]
    assert [chunk["meta_info"]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [
        {"type": "length"}
    ]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "input_ids": [1]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": "a"}, "input_ids"),
        ({"input_ids": [10**6]}, "input_ids"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "return_routed_experts": True}, "return_routed_experts"),
    ],
)
def test_bad_bodies_are_refused_by_name(http: httpx.Client, given: dict[str, Any], param: str) -> None:
    answer = http.post(GENERATE, json=given)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
