"""The render endpoints: what they say of a request is what the request then does."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

MESSAGES = [{"role": "user", "content": "Hello"}]


def test_a_rendered_conversation_is_the_prompt_that_is_generated_of(http: httpx.Client) -> None:
    body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 5, "temperature": 0.5, "seed": 3, "stop": "x"}
    rendered = http.post("/v1/chat/completions/render", json=body).json()
    answer = http.post("/v1/chat/completions", json={**body, "return_token_ids": True}).json()
    assert rendered["token_ids"] == answer["prompt_token_ids"]
    assert rendered["token_ids"] == http.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"]
    params = rendered["sampling_params"]
    asked = {"n": 1, "max_tokens": 5, "temperature": 0.5, "seed": 3, "stop": ["x"], "top_k": 0, "logprobs": None}
    assert {name: params[name] for name in asked} == asked
    assert (rendered["model"], rendered["stream"], rendered["priority"]) == ("fake", False, 0)


@pytest.mark.parametrize("extra", [{}, {"n": 2}])
def test_each_prompt_of_a_request_is_rendered_once(http: httpx.Client, extra: dict[str, Any]) -> None:
    rendered = http.post("/v1/completions/render", json={"prompt": ["ab", "abc"], "max_tokens": 7, **extra}).json()
    assert [len(each["token_ids"]) for each in rendered] == [2, 3]
    assert [each["sampling_params"]["max_tokens"] for each in rendered] == [7, 7]
    assert rendered[0]["sampling_params"]["n"] == extra.get("n", 1)


def test_nothing_is_generated_and_what_would_be_refused_is(http: httpx.Client) -> None:
    before = http.get("/v1/usage").json()["data"][0]["requests"]
    assert http.post("/v1/completions/render", json={"prompt": "ab"}).status_code == 200
    assert http.get("/v1/usage").json()["data"][0]["requests"] == before
    for path, body in (
        ("/v1/completions/render", {"prompt": "a" * 600}),
        ("/v1/chat/completions/render", {"messages": []}),
        ("/v1/chat/completions/render", {"messages": MESSAGES, "top_p": 2}),
    ):
        assert http.post(path, json=body).status_code == 400
