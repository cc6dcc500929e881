"""LiteLLM, with this server as `openai/NAME`, and as vLLM's and Anthropic's."""

from __future__ import annotations

import json
from typing import Any

import litellm
import pydantic
import pytest

MODEL = "openai/fake"
SUM = [{"role": "user", "content": "What is 3 + 4?"}]
CLOUDY = '{"temperature": 17, "condition": "cloudy"}'  # as the built-in model was taught
WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the current weather in a city.", "parameters": CITY},
}


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


def test_chats_whole_and_streamed() -> None:
    whole = litellm.completion(MODEL, SUM, temperature=0)
    chunks = list(litellm.completion(MODEL, SUM, temperature=0, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "7" in text
    assert text == whole.choices[0].message.content
    assert litellm.stream_chunk_builder(chunks).usage.total_tokens == whole.usage.total_tokens


async def test_the_async_form() -> None:
    answer = await litellm.acompletion(MODEL, SUM, temperature=0)
    stream = await litellm.acompletion(MODEL, SUM, temperature=0, stream=True)
    assert (
        "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == answer.choices[0].message.content
    )


def test_several_choices_keep_their_text() -> None:
    whole = litellm.completion(MODEL, SUM, n=3, seed=4, temperature=1)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]


def test_tools_are_called_and_answered() -> None:
    asked = litellm.completion(MODEL, WEATHER, tools=[TOOL], temperature=0).choices[0]
    (call,) = asked.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    assert asked.finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "content": CLOUDY}
    final = litellm.completion(MODEL, [*WEATHER, asked.message, result], tools=[TOOL], temperature=0)
    assert "cloudy" in final.choices[0].message.content
    chunks = list(litellm.completion(MODEL, WEATHER, tools=[TOOL], temperature=0, stream=True))
    (built,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert json.loads(built.function.arguments) == {"city": "Oslo"}


def test_an_output_has_its_type() -> None:
    answer = litellm.completion(MODEL, SUM, response_format=Person, max_tokens=200)
    Person.model_validate_json(answer.choices[0].message.content)


def test_text_completions() -> None:
    options = {"model": "text-completion-openai/fake", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    answer, parts = litellm.text_completion(**options), litellm.text_completion(**options, stream=True)
    assert "".join(part.choices[0].text or "" for part in parts) == answer.choices[0].text


def test_embeddings() -> None:
    answer = litellm.embedding(MODEL, ["a cat", "a dog"], encoding_format="float")
    assert [len(item["embedding"]) for item in answer.data] == [256, 256]


def test_responses() -> None:
    answer = litellm.responses(model=MODEL, input="What is 3 + 4?", temperature=0)
    assert "7" in answer.output[0].content[0].text
    kinds = [event.type for event in litellm.responses(model=MODEL, input="What is 3 + 4?", stream=True)]
    assert kinds[-1] == "response.completed"


def test_hosted_vllm_is_the_same_server(url: str) -> None:
    options: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": "any"}
    answer = litellm.completion("hosted_vllm/fake", SUM, temperature=0, **options)
    assert "7" in answer.choices[0].message.content
    ranked = litellm.rerank("hosted_vllm/fake", "a cat", ["a dog", "a cat"], api_base=url, api_key="any")
    assert ranked.results[0]["index"] == 1


def test_anthropics_messages(url: str) -> None:
    answer = litellm.completion("anthropic/fake", SUM, api_base=url, api_key="any", temperature=0, max_tokens=32)
    assert "7" in answer.choices[0].message.content


def test_errors_have_their_classes() -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(MODEL, SUM, temperature=9)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(MODEL, [{"role": "user", "content": "a b c " * 3000}])
    with pytest.raises(litellm.NotFoundError):
        litellm.completion("openai/gpt-9", SUM)
