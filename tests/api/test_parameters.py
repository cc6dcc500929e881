"""Parameters beyond OpenAI's own, or that change nothing here: each does what vLLM's or OpenAI's documentation says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from neuronserve.server.api.config import ApiConfig
from neuronserve.server.settings.serve import ServeSettings
from tests.api.bad_requests import CHAT, HELLO, TEXT
from tests.api.serving import MAX_MODEL_LEN, Server, running_server

SOME = {"max_tokens": 3, "ignore_eos": True, "return_token_ids": True}
IDS = list(range(10, 110))


def text(http: httpx.Client, **body: Any) -> Any:
    """The first choice of a text completion."""
    answer = http.post(TEXT, json={**SOME, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_a_truncated_prompt_is_its_end(http: httpx.Client) -> None:
    assert text(http, prompt=IDS, truncate_prompt_tokens=7, echo=True) == text(http, prompt=IDS[-7:], echo=True)
    assert text(http, prompt=IDS, truncate_prompt_tokens=500)["prompt_token_ids"] == IDS


def test_a_prompt_beyond_the_context_can_be_cut_to_what_leaves_room(http: httpx.Client) -> None:
    choice = text(http, prompt=IDS * 10, truncate_prompt_tokens=-1)
    assert choice["prompt_token_ids"] == (IDS * 10)[-(MAX_MODEL_LEN - 3) :]
    assert len(choice["token_ids"]) == 3


def test_a_prompt_that_is_truncated_on_the_right_keeps_its_beginning(http: httpx.Client) -> None:
    cut = {"truncate_prompt_tokens": 7}
    assert text(http, prompt=IDS, **cut, truncation_side="right")["prompt_token_ids"] == IDS[:7]
    assert text(http, prompt=IDS, **cut, truncation_side="left")["prompt_token_ids"] == IDS[-7:]
    assert text(http, prompt=IDS, truncation_side="right")["prompt_token_ids"] == IDS
    refused = http.post(TEXT, json={"prompt": "a", "truncation_side": "middle"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "truncation_side")


def test_the_tokens_of_another_server_take_the_place_of_the_messages(http: httpx.Client) -> None:
    body = {"messages": HELLO, **SOME, "kv_transfer_params": {"prompt_token_ids": IDS}}
    assert http.post(CHAT, json=body).json()["prompt_token_ids"] == IDS
    empty = {"messages": HELLO, **SOME, "kv_transfer_params": {"do_remote_decode": False}}
    assert http.post(CHAT, json=empty).json()["prompt_token_ids"] != IDS
    chat = {"messages": HELLO}
    for path, given, param in (
        (CHAT, chat | {"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params.do_remote_decode"),
        (CHAT, chat | {"kv_transfer_params": {"prompt_token_ids": [10**6]}}, "kv_transfer_params.prompt_token_ids"),
        (TEXT, {"prompt": "a", "kv_transfer_params": {"prompt_token_ids": IDS}}, "kv_transfer_params"),
    ):
        refused = http.post(path, json=given)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_keys_that_vllm_has_are_null_where_nothing_asks_for_them(http: httpx.Client) -> None:
    choice = http.post(TEXT, json={"prompt": "a", "max_tokens": 2}).json()["choices"][0]
    assert [choice[name] for name in ("token_ids", "prompt_token_ids", "prompt_logprobs", "stop_reason")] == [None] * 4
    chat = http.post(CHAT, json={"messages": HELLO, "max_tokens": 2, "store": True}).json()
    assert [chat["prompt_logprobs"], chat["prompt_token_ids"], chat["choices"][0]["token_ids"]] == [None] * 3
    assert chat["choices"][0]["message"]["reasoning"] is None
    assert http.get("/v1/models").json()["data"][0]["root"] == "fake"
    stream = http.post(TEXT, json={"prompt": "a", "max_tokens": 2, "stream": True}).text
    assert "token_ids" not in stream  # chunks are small


def test_a_conversation_is_truncated_after_its_template(http: httpx.Client) -> None:
    whole = http.post(CHAT, json={"messages": HELLO, **SOME}).json()["prompt_token_ids"]
    cut = http.post(CHAT, json={"messages": HELLO, **SOME, "truncate_prompt_tokens": 5}).json()
    assert cut["prompt_token_ids"] == whole[-5:]
    assert cut["usage"]["prompt_tokens"] == 5


def test_tokens_are_named_by_their_ids(http: httpx.Client) -> None:
    plain = text(http, prompt="ab", logprobs=2)["logprobs"]
    choice = text(http, prompt="ab", logprobs=2, return_tokens_as_token_ids=True)
    names = [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    assert choice["logprobs"]["text_offset"] == plain["text_offset"]
    assert all(name in top for name, top in zip(names, choice["logprobs"]["top_logprobs"], strict=True))
    body = {"messages": HELLO, **SOME, "logprobs": True, "top_logprobs": 2}
    by_text = http.post(CHAT, json=body).json()["choices"][0]["logprobs"]["content"]
    chat = http.post(CHAT, json={**body, "return_tokens_as_token_ids": True}).json()["choices"][0]
    assert [entry["token"] for entry in chat["logprobs"]["content"]] == [f"token_id:{i}" for i in chat["token_ids"]]
    assert [entry["bytes"] for entry in chat["logprobs"]["content"]] == [entry["bytes"] for entry in by_text]


def test_what_changes_nothing_here_is_accepted(http: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 3, "seed": 1}
    guess = {"type": "content", "content": [{"type": "text", "text": "hello"}]}
    plain = http.post(CHAT, json=body).json()
    same = http.post(CHAT, json={**body, "prediction": guess, "verbosity": "low", "service_tier": "flex"}).json()
    assert same["choices"] == plain["choices"]
    assert (same["service_tier"], "service_tier" in plain) == ("default", False)


def test_a_server_is_strict_unless_it_is_told_otherwise() -> None:
    assert (
        ServeSettings.model_fields["context_overflow"].default
        == ApiConfig.__dataclass_fields__["context_overflow"].default
        == "refuse"
    )


@pytest.fixture(scope="module")
def strict(checkpoint: Path) -> Iterator[Server]:
    with running_server(checkpoint, "--context-overflow", "refuse") as running:
        yield running


OVERFLOWS: list[tuple[str, dict[str, Any], str | None]] = [
    (TEXT, {"prompt": IDS, "max_tokens": MAX_MODEL_LEN - 100}, None),
    (TEXT, {"prompt": IDS, "max_tokens": MAX_MODEL_LEN - 99}, "max_tokens"),
    (TEXT, {"prompt": [1] * (MAX_MODEL_LEN - 5)}, None),  # the default is not what a client asked for
    (CHAT, {"messages": HELLO}, None),
    (CHAT, {"messages": HELLO, "max_tokens": MAX_MODEL_LEN}, "max_tokens"),
    (CHAT, {"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 9999}, "max_completion_tokens"),
    (CHAT, {"messages": HELLO, "max_tokens": 9999, "max_completion_tokens": 1}, None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body", "param"), OVERFLOWS, ids=lambda value: str(value)[:40])
def test_more_than_the_context_is_refused_where_the_server_is_strict_and_clipped_elsewhere(
    http: httpx.Client, strict: Server, path: str, body: dict[str, Any], param: str | None
) -> None:
    assert http.post(path, json=body).status_code == 200
    answer = httpx.post(strict.url + path, json=body, timeout=30)
    if param is None:
        assert answer.status_code == 200
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, "context_length_exceeded")


def real_text(client: openai.OpenAI, **extra: Any) -> Any:
    return client.completions.create(
        model="fake",
        prompt="Once",
        max_tokens=40,
        temperature=1.3,
        seed=3,
        extra_body={"return_token_ids": True, **extra},
    ).choices[0]


def test_only_allowed_tokens_come(client: openai.OpenAI) -> None:
    allowed = [100, 101, 200]
    choice = real_text(client, allowed_token_ids=allowed)
    assert set(choice.token_ids) <= set(allowed)
    assert (len(choice.token_ids), choice.finish_reason) == (40, "length")  # no end is among them
    stopped = real_text(client, allowed_token_ids=allowed, stop_token_ids=[100])
    assert (stopped.token_ids[-1], stopped.stop_reason) == (100, 100)


def test_a_bad_word_never_comes_however_it_is_cut(client: openai.OpenAI) -> None:
    free = real_text(client).text
    words = [*filter(None, (free[i : i + 2] for i in range(0, 20, 2))), "zq", "/"]
    for seed in range(4):
        found = client.completions.create(
            model="fake",
            prompt="Once",
            max_tokens=40,
            temperature=1.3,
            seed=seed,
            extra_body={"bad_words": words, "min_tokens": 20},
        )
        assert found.choices[0].text
        assert not [word for word in words if word in found.choices[0].text]
