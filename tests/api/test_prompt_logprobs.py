"""Log probabilities of prompts over HTTP are those that the same tokens have when they are generated."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.api.bad_requests import CHAT, HELLO, TEXT
from tests.api.serving import Server

PROMPT = "Once upon a time there was a"
GREEDY = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12, "logprobs": 2, "return_token_ids": True}
TOLERANCE = 0.05  # of bfloat16: a prompt is computed in other tiles than a token after it


@pytest.fixture(scope="module")
def real(real_server: Server) -> Any:
    with httpx.Client(base_url=real_server.url, timeout=120) as client:
        yield client


def choice(http: httpx.Client, **body: Any) -> Any:
    answer = http.post(TEXT, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_an_echo_has_the_logprobs_that_the_tokens_were_generated_with(real: httpx.Client) -> None:
    made = choice(real, **GREEDY)
    ids = made["prompt_token_ids"] + made["token_ids"]
    whole = choice(real, prompt=ids, max_tokens=0, echo=True, logprobs=2)
    assert (whole["text"], whole["finish_reason"]) == (PROMPT + made["text"], "length")
    shown, count = whole["logprobs"], len(made["token_ids"])
    assert (len(shown["tokens"]), shown["token_logprobs"][0], shown["top_logprobs"][0]) == (len(ids), None, None)
    assert shown["tokens"][-count:] == made["logprobs"]["tokens"]
    assert shown["text_offset"][-count:] == [len(PROMPT) + at for at in made["logprobs"]["text_offset"]]
    assert shown["token_logprobs"][-count:] == pytest.approx(made["logprobs"]["token_logprobs"], abs=TOLERANCE)


def test_an_echo_goes_on_with_what_is_generated(real: httpx.Client) -> None:
    plain, echoed = choice(real, **GREEDY), choice(real, **GREEDY, echo=True)
    count = len(plain["prompt_token_ids"])
    assert echoed["text"] == PROMPT + plain["text"]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert echoed["logprobs"][name][count:] == plain["logprobs"][name]
    assert echoed["logprobs"]["text_offset"] == sorted(echoed["logprobs"]["text_offset"])


def test_a_stream_begins_with_the_echo(real_server: Server) -> None:
    """The first token of a prompt has null for a probability, as OpenAI's own answers have against their schema."""
    client = openai.OpenAI(base_url=f"{real_server.url}/v1", api_key="any", max_retries=0, timeout=120)
    fields = {key: value for key, value in GREEDY.items() if key != "return_token_ids"}
    whole = client.completions.create(model="fake", echo=True, **fields)  # type: ignore[call-overload]
    chunks = list(client.completions.create(model="fake", echo=True, stream=True, **fields))  # type: ignore[call-overload]
    shown = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert [token for each in shown for token in each.tokens] == whole.choices[0].logprobs.tokens
    assert [value for each in shown for value in each.token_logprobs] == whole.choices[0].logprobs.token_logprobs


def test_nothing_is_generated_where_only_the_prompt_is_asked_about(real: httpx.Client) -> None:
    answer = real.post(TEXT, json={"prompt": [PROMPT, PROMPT], "max_tokens": 0, "prompt_logprobs": 3}).json()
    assert answer["usage"]["completion_tokens"] == 0
    first, second = answer["choices"]
    assert (first["text"], first["finish_reason"], first["prompt_logprobs"][0]) == ("", "length", None)
    assert first["prompt_logprobs"] == second["prompt_logprobs"]
    for entry in first["prompt_logprobs"][1:]:
        ranked = sorted(entry.values(), key=lambda each: each["rank"])
        assert 3 <= len(ranked) <= 4
        assert [each["rank"] for each in ranked[:3]] == [1, 2, 3]
        assert [each["logprob"] for each in ranked] == sorted((each["logprob"] for each in ranked), reverse=True)
    texts = ["".join(next(iter(entry.values()))["decoded_token"] for entry in first["prompt_logprobs"][1:])]
    assert PROMPT.endswith(texts[0])


def test_a_conversation_has_those_of_its_prompt(real: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 2, "temperature": 0, "prompt_logprobs": 0, "return_token_ids": True}
    answer = real.post(CHAT, json=body).json()
    ids = answer["prompt_token_ids"]
    assert [None, *([str(token)] for token in ids[1:])] == [
        entry and list(entry) for entry in answer["prompt_logprobs"]
    ]
    again = choice(real, prompt=ids, max_tokens=0, prompt_logprobs=0)
    assert again["prompt_logprobs"] == answer["prompt_logprobs"]
    assert real.post(CHAT, json={**body, "prompt_logprobs": None}).json()["prompt_logprobs"] is None


def test_tokens_of_the_clients_choice_take_the_place_of_the_best(real: httpx.Client) -> None:
    wanted = [70, 5, 100]
    made = choice(real, **{**GREEDY, "logprobs": 1}, logprob_token_ids=wanted, return_tokens_as_token_ids=True)
    for token, top in zip(made["token_ids"], made["logprobs"]["top_logprobs"], strict=True):
        assert set(top) == {f"token_id:{i}" for i in [*wanted, token]}
    body = {"messages": HELLO, "max_tokens": 2, "temperature": 0, "logprobs": True, "logprob_token_ids": wanted}
    chat = real.post(CHAT, json={**body, "return_tokens_as_token_ids": True}).json()["choices"][0]
    for entry in chat["logprobs"]["content"]:
        assert [top["token"] for top in entry["top_logprobs"]] == [entry["token"], *(f"token_id:{i}" for i in wanted)]
    sampled = int(chat["logprobs"]["content"][0]["token"].partition(":")[2])
    body |= {
        "max_tokens": 1,
        "temperature": 0,
        "logprob_token_ids": [5, sampled, 5],
        "return_tokens_as_token_ids": True,
    }
    first = real.post(CHAT, json=body).json()["choices"][0]["logprobs"]["content"][0]
    assert [top["token"] for top in first["top_logprobs"]] == ["token_id:5", first["token"]]
