"""The `openai` client, a generation older than that of the API tests: its helpers for this server's endpoints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Literal

import openai
import pydantic
import pytest

SUM = [{"role": "user", "content": "What is 3 + 4?"}]
CLOUDY = '{"temperature": 17, "condition": "cloudy"}'  # as the built-in model was taught
WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)
    mood: Literal["calm", "glad"]


class GetWeather(pydantic.BaseModel):
    """Get the current weather in a city."""

    city: str = pydantic.Field(max_length=20)


@pytest.fixture
def client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(max_retries=0, timeout=300, _strict_response_validation=True) as made:
        yield made


def test_chats_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="fake", messages=SUM, temperature=0)
    assert "7" in (whole.choices[0].message.content or "")
    with client.chat.completions.stream(model="fake", messages=SUM, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert kinds[-1] == "content.done"
    assert kinds.count("content.delta") >= 2


def test_chats_parse_into_types(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(model="fake", messages=SUM, response_format=Person, max_tokens=200)
    assert isinstance(parsed.choices[0].message.parsed, Person)
    with client.chat.completions.stream(
        model="fake", messages=SUM, response_format=Person, max_tokens=200, temperature=0
    ) as stream:
        partial = [event.parsed for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)
    assert any(partial)


def test_tools_parse_into_types_and_stream(client: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
    answer = client.chat.completions.parse(model="fake", messages=WEATHER, tools=tools, temperature=0)
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.function.parsed_arguments == GetWeather(city="Oslo")
    with client.chat.completions.stream(model="fake", messages=WEATHER, tools=tools, temperature=0) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [event.parsed_arguments for event in done] == [GetWeather(city="Oslo")]
    assert done[0].name == "get_weather"


def test_log_probabilities_stream_with_their_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="fake", messages=SUM, logprobs=True, top_logprobs=2, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        shown = stream.get_final_completion().choices[0].logprobs
    assert {"logprobs.content.delta", "logprobs.content.done"} <= kinds
    assert shown is not None
    assert all(len(token.top_logprobs) == 2 for token in shown.content or ())


def test_completions_whole_and_streamed(client: openai.OpenAI) -> None:
    options = {"model": "fake", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**options)
    with openai.OpenAI(max_retries=0) as lenient:  # its types know no null finish_reason, which OpenAI sends too
        parts = [chunk.choices[0].text for chunk in lenient.completions.create(**options, stream=True)]
    assert "".join(parts) == whole.choices[0].text


def test_embeddings_in_both_encodings(client: openai.OpenAI) -> None:
    with openai.OpenAI(max_retries=0) as lenient:  # what it asks for by itself is base64, which its types do not know
        packed = lenient.embeddings.create(model="fake", input=["a cat", "a dog"])
    plain = client.embeddings.create(model="fake", input=["a cat", "a dog"], encoding_format="float", dimensions=32)
    assert [item.index for item in packed.data] == [0, 1]
    assert (len(packed.data[0].embedding), len(plain.data[1].embedding)) == (256, 32)


def test_responses_whole_streamed_and_parsed(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="fake", input="What is 3 + 4?", temperature=0)
    assert "7" in whole.output_text
    with client.responses.stream(model="fake", input="What is 3 + 4?", temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text == whole.output_text
    parsed = client.responses.parse(model="fake", input="Who?", text_format=Person, max_output_tokens=200)
    assert isinstance(parsed.output_parsed, Person)


def test_responses_follow_each_other_and_run_in_the_background(client: openai.OpenAI) -> None:
    first = client.responses.create(model="fake", input="My name is Ada.", temperature=0)
    second = client.responses.create(model="fake", input="What is my name?", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens  # type: ignore[union-attr]
    assert [item.type for item in client.responses.input_items.list(first.id)] == ["message"]
    begun = client.responses.create(model="fake", input="Tell me a story.", background=True, max_output_tokens=40)
    while begun.status in {"queued", "in_progress"}:
        time.sleep(0.05)
        begun = client.responses.retrieve(begun.id)
    assert begun.status in {"completed", "incomplete"}
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_tools_of_responses_are_called_and_answered(client: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(GetWeather, name="get_weather")["function"] | {"type": "function"}]
    asked = client.responses.parse(model="fake", input=WEATHER, tools=tools, temperature=0)
    (call,) = (item for item in asked.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"city": "Oslo"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": CLOUDY}
    final = client.responses.create(
        model="fake", input=[result], tools=tools, previous_response_id=asked.id, temperature=0
    )
    assert "cloudy" in final.output_text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/responses"])
def test_a_batch_is_uploaded_polled_and_read(client: openai.OpenAI, path: str) -> None:
    bodies = {
        "/v1/chat/completions": {"messages": SUM, "max_tokens": 8},
        "/v1/embeddings": {"input": "a cat"},
        "/v1/responses": {"input": "What is 3 + 4?", "max_output_tokens": 16},
    }
    line = {"custom_id": "a", "method": "POST", "url": path, "body": {"model": "fake"} | bodies[path]}
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=path, completion_window="24h")  # type: ignore[arg-type]
    while batch.status not in {"completed", "failed"}:
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 1)  # type: ignore[union-attr]
    (answer,) = client.files.content(batch.output_file_id or "").text.splitlines()
    assert json.loads(answer)["response"]["status_code"] == 200
    assert batch.id in [each.id for each in client.batches.list(limit=5)]


def test_errors_have_their_classes_and_fields(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="fake", messages=SUM, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=SUM)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as missing:
        client.moderations.create(input="hello")
    assert missing.value.code == "not_supported"
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="a cat", model="fake")
    with pytest.raises(openai.NotFoundError):
        client.audio.speech.create(model="fake", voice="alloy", input="hello")


def test_raw_answers_have_their_request_id(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="fake", messages=SUM, max_tokens=2)
    assert raw.headers["x-request-id"]
    assert raw.parse().id.startswith("chatcmpl-")
    assert raw.parse()._request_id == raw.headers["x-request-id"]


async def test_the_async_client_does_the_same() -> None:
    async with openai.AsyncOpenAI(max_retries=0, timeout=300, _strict_response_validation=True) as client:
        async with client.chat.completions.stream(model="fake", messages=SUM, temperature=0) as stream:
            async for _ in stream:
                pass
            assert "7" in ((await stream.get_final_completion()).choices[0].message.content or "")
        async with client.responses.stream(model="fake", input="What is 3 + 4?", temperature=0) as answer:
            assert "7" in (await answer.get_final_response()).output_text
        parsed = await client.chat.completions.parse(model="fake", messages=SUM, response_format=Person, max_tokens=200)
        assert isinstance(parsed.choices[0].message.parsed, Person)
        embedded = await client.embeddings.create(model="fake", input="a cat", encoding_format="float")
        assert len(embedded.data[0].embedding) == 256
        assert [model.id async for model in client.models.list()] == ["fake"]
