"""Anthropic's API by Anthropic's own client, unmodified, and with a model that writes what it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.api.serving import Server, running_server

PATH = "/v1/messages"
HELLO: Any = [{"role": "user", "content": "hi"}]
BASE = {"model": "fake", "max_tokens": 4, "messages": HELLO}
TOOLS: Any = [
    {
        "name": "weather",
        "description": "The weather of a town.",
        "input_schema": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    }
]
THINKS = "<think>\nlet me see</think>\n\nit is sunny"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Oslo"}}\n</tool_call>'
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@pytest.fixture(scope="module")
def echo(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that answers with its last message, reads as Qwen's do, and has a key."""
    file = tmp_path_factory.mktemp("template") / "template.jinja"
    file.write_text(
        "{# <tool_call> <think> #}{% for m in messages %}<|pad|>{{ m.content }}<|pad|>{% endfor %}"
        "{% if tools %}{% endif %}"
    )
    options = ("--device", "echo", "--chat-template", str(file), "--max-model-len", "2048", "--api-key", "secret")
    with running_server(checkpoint, *options) as running:
        yield running


@pytest.fixture(scope="module")
def real(real_server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=real_server.url, api_key="any", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def told(echo: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=echo.url, api_key="secret", max_retries=0, timeout=60) as made:
        yield made


def says(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "fake", "max_tokens": 200, "messages": [{"role": "user", "content": text}], **fields}


def test_a_message_is_what_the_chat_endpoint_says(real: anthropic.Anthropic, real_server: Server) -> None:
    message = real.messages.create(
        **BASE, extra_body={"temperature": 0}, system=[{"type": "text", "text": "Be brief."}]
    )
    chat = {"messages": [{"role": "system", "content": "Be brief."}, *HELLO], "max_tokens": 4, "temperature": 0}
    same = httpx.post(f"{real_server.url}/v1/chat/completions", json=chat).json()
    assert [block.text for block in message.content if block.type == "text"] == [
        same["choices"][0]["message"]["content"]
    ]
    assert (message.role, message.model, message.stop_reason) == ("assistant", "fake", "max_tokens")
    usage, counted = message.usage, real.messages.count_tokens(model="fake", messages=HELLO, system="Be brief.")
    total = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert total == same["usage"]["prompt_tokens"] == counted.input_tokens
    assert usage.output_tokens == same["usage"]["completion_tokens"] == 4
    Message.model_validate(message.model_dump(), strict=True)


def test_a_stream_adds_up_to_the_message(real: anthropic.Anthropic, real_server: Server) -> None:
    body: Any = {**BASE, "extra_body": (greedy := {"temperature": 0, "top_k": 5})}
    whole = real.messages.create(**body)
    with real.messages.stream(**body) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [block.text for block in whole.content if block.type == "text"] == [text]
    assert (final.content[0].type, final.stop_reason) == ("text", whole.stop_reason)
    assert final.usage.output_tokens == whole.usage.output_tokens
    raw = httpx.post(real_server.url + PATH, json={**BASE, **greedy, "stream": True}).text
    data = [json.loads(line[6:]) for line in raw.split("\n") if line.startswith("data: ")]
    events = [EVENTS.validate_python(each) for each in data if each != {"type": "ping"}]
    names = [line[7:] for line in raw.split("\n") if line.startswith("event: ")]
    assert [name for name in names if name != "ping"] == [event.type for event in events]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "[DONE]" not in raw


def test_a_stop_sequence_is_named(told: anthropic.Anthropic) -> None:
    message = told.messages.create(**says("one two three", stop_sequences=["nine", " three"]))
    assert (message.content[0].to_dict()["text"], message.stop_reason) == ("one two", "stop_sequence")
    assert message.stop_sequence == " three"
    assert told.messages.create(**says("one two three")).stop_reason == "end_turn"
    assert told.messages.create(**says("one two three") | {"max_tokens": 3}).stop_reason == "max_tokens"


@pytest.mark.parametrize("is_stream", [False, True])
def test_thinking_is_a_block_before_the_answer(told: anthropic.Anthropic, is_stream: bool) -> None:
    message = ask(told, is_stream, says(THINKS, thinking={"type": "adaptive"}))
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].to_dict()["thinking"] == "let me see"
    assert message.content[1].to_dict()["text"] == "it is sunny"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_call_is_a_block_and_its_result_goes_back(told: anthropic.Anthropic, is_stream: bool) -> None:
    message = ask(told, is_stream, says(f"Wait.{CALL}", tools=TOOLS))
    text, call = message.content
    assert (text.type, message.stop_reason) == ("text", "tool_use")
    assert call.type == "tool_use"
    assert (call.name, call.input, call.id.startswith("toolu_")) == ("weather", {"town": "Oslo"}, True)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    asked = says("the weather?", tools=TOOLS)
    answers: Any = [
        {"role": "assistant", "content": [block.to_dict() for block in message.content]},
        {"role": "user", "content": [result]},
    ]
    after = ask(told, is_stream, asked | {"messages": asked["messages"] + answers})
    assert [block.to_dict().get("text") for block in after.content] == ["sunny"]
    failed = {**result, "is_error": True}
    answers[1]["content"] = [failed]
    after = ask(told, is_stream, asked | {"messages": asked["messages"] + answers})
    assert after.content[0].to_dict()["text"] == "Error: sunny"


def ask(client: anthropic.Anthropic, is_stream: bool, body: dict[str, Any]) -> Message:
    if not is_stream:
        return client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        return stream.get_final_message()


def test_a_key_goes_in_a_header_of_its_own(echo: Server, told: anthropic.Anthropic) -> None:
    assert told.messages.create(**says("yes")).content
    stranger = anthropic.Anthropic(base_url=echo.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError) as refused:
        stranger.messages.create(**says("no"))
    assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    bearer = httpx.post(echo.url + PATH, json=says("yes"), headers={"Authorization": "Bearer secret"})
    assert bearer.status_code == 200


def test_errors_have_anthropics_shape(real: anthropic.Anthropic, real_server: Server) -> None:
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        real.messages.create(**BASE | {"messages": [{"role": "user", "content": [image]}]})
    with pytest.raises(anthropic.NotFoundError):
        real.messages.create(**BASE | {"model": "other"})
    for path, body, status, kind in (
        (PATH, BASE | {"max_tokens": 0}, 400, "invalid_request_error"),
        (PATH, b"{", 400, "invalid_request_error"),
        (f"{PATH}/nothing", BASE, 404, "not_found_error"),
        (f"{PATH}/count_tokens", {}, 400, "invalid_request_error"),
    ):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        answer = httpx.post(real_server.url + path, content=content, headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (status, "error")
        assert set(answer.json()["error"]) == {"type", "message"}
        assert answer.json()["error"]["type"] == kind
