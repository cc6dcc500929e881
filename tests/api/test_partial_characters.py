"""Characters that several tokens share: texts that a limit cuts, log probabilities by name, places in the text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.server.api.pipeline.logprobs import TokenNames, completion_logprobs
from neuronserve.server.types import TokenLogprobs
from tests.api.bad_requests import CHAT, TEXT
from tests.api.echo import BYTES, PAD
from tests.api.serving import running_server
from tests.text.test_detokenizer import FALLBACK, byte_level, ids_of_bytes

TEMPLATE = "{% for m in messages %}<|pad|>{{ m.content }}<|pad|>{% endfor %}"
EURO = "a€b"  # five tokens: one a byte


def ids(data: bytes) -> list[int]:
    """Tokens of the checkpoint that spell `data`."""
    alphabet = {byte_level().token_bytes(i): i for i in range(len(BYTES))}
    return [alphabet[bytes([byte])] for byte in data]


@pytest.fixture(scope="module")
def http(checkpoint: Path) -> Iterator[httpx.Client]:
    """A server that writes what the last message says, a byte at a time."""
    with (
        running_server(checkpoint, "--device", "echo", "--chat-template", TEMPLATE) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        yield client


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(http: httpx.Client, path: str, **body: Any) -> list[Any]:
    text = http.post(path, json={**body, "stream": True}).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def echoed(data: bytes, **fields: Any) -> dict[str, Any]:
    """A body of /v1/completions whose output is `data`."""
    return {"prompt": [PAD, *ids(data), PAD], **fields}


@pytest.mark.parametrize(("num_tokens", "text"), [(1, "a"), (2, "a"), (3, "a"), (4, "a€"), (5, "a€b")])
def test_a_character_that_the_limit_cuts_is_left_out_of_every_answer(
    http: httpx.Client, num_tokens: int, text: str
) -> None:
    completion = echoed(EURO.encode(), max_tokens=num_tokens)
    messages = {"messages": [{"role": "user", "content": EURO}], "max_tokens": num_tokens}
    messages["model"] = "fake"
    choice = post(http, TEXT, **completion)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text, "length")
    assert post(http, CHAT, **messages)["choices"][0]["message"]["content"] == text
    assert "".join(part["text"] for part in post(http, "/v1/messages", **messages)["content"]) == text
    assert "".join(each["choices"][0]["text"] for each in events(http, TEXT, **completion)) == text
    chunks = events(http, CHAT, **messages)
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks) == text
    deltas = [each["delta"] for each in events(http, "/v1/messages", **messages) if "delta" in each]
    assert "".join(each.get("text", "") for each in deltas) == text
    padding = "x" * (16 - num_tokens)  # the least that a response may have
    long, whole = {"input": padding + EURO, "max_output_tokens": 16}, padding + text
    output = post(http, "/v1/responses", **long)["output"][0]["content"][0]["text"]
    assert output == whole
    parts = [each for each in events(http, "/v1/responses", **long) if each["type"] == "response.output_text.delta"]
    assert "".join(each["delta"] for each in parts) == whole


def test_every_choice_ends_at_a_whole_character(http: httpx.Client) -> None:
    chosen = post(http, TEXT, **echoed(EURO.encode(), max_tokens=3, n=3))["choices"]
    assert [choice["text"] for choice in chosen] == ["a"] * 3


def test_bytes_that_are_no_character_stay_in_the_text(http: httpx.Client) -> None:
    assert post(http, TEXT, **echoed(b"a\x80\xff", max_tokens=3))["choices"][0]["text"] == "a\ufffd\ufffd"


def test_the_bytes_of_log_probabilities_are_exact_where_the_text_is_cut(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": EURO}]
    choice = post(http, CHAT, messages=messages, max_tokens=3, logprobs=True)["choices"][0]
    assert choice["message"]["content"] == "a"
    assert b"".join(bytes(each["bytes"]) for each in choice["logprobs"]["content"]) == b"a\xe2\x82"


def test_an_echo_of_ids_ends_where_the_output_goes_on(http: httpx.Client) -> None:
    """The output completes the character that the prompt's last token begins."""
    prompt = [PAD, *ids(b"\x82\xacb"), PAD, *ids(b"a\xe2")]
    choice = post(http, TEXT, prompt=prompt, max_tokens=3, echo=True)["choices"][0]
    assert choice["text"] == "\ufffd\ufffdba€b"


@pytest.mark.parametrize("is_stream", [False, True])
def test_alternatives_are_best_first_and_none_is_lost(http: httpx.Client, is_stream: bool) -> None:
    body = echoed(EURO.encode(), max_tokens=5, logprobs=4)
    if is_stream:
        shown = [each["choices"][0]["logprobs"] for each in events(http, TEXT, **body)]
        tokens = [token for each in shown for token in each["tokens"]]
        alternatives = [top for each in shown for top in each["top_logprobs"]]
        offsets = [offset for each in shown for offset in each["text_offset"]]
    else:
        found = post(http, TEXT, **body)["choices"][0]["logprobs"]
        tokens, alternatives, offsets = found["tokens"], found["top_logprobs"], found["text_offset"]
    assert tokens == ["a", r"bytes:\xe2", r"bytes:\x82", r"bytes:\xac", "b"]
    for token, top in zip(tokens, alternatives, strict=True):
        assert len(top) == 4
        assert next(iter(top)) == token
        assert list(top.values()) == [-1.0, -2.0, -3.0, -4.0]
    assert [EURO[offset] for offset in offsets] == ["a", "€", "€", "€", "b"]


def test_tokens_of_one_text_have_keys_of_their_own() -> None:
    """A vocabulary with byte fallback has the letter c as a word and as a byte."""
    (byte,), word = ids_of_bytes(FALLBACK, b"\x63"), FALLBACK.token_id("c")
    other = next(i for i in range(FALLBACK.vocab_size) if i != byte and FALLBACK.token_bytes(i) == b"c")
    assert word in (byte, other)
    entry = TokenLogprobs(-2.0, (byte, other), (-1.0, -2.0))
    found = completion_logprobs(TokenNames(FALLBACK, False), [(other, entry)], 2, [0])
    assert found.tokens == ["c"]
    assert found.top_logprobs == [{"c": -2.0, f"token_id:{byte}": -1.0}]
    assert [name for top in found.top_logprobs for name in top or ()] == ["c", f"token_id:{byte}"]
