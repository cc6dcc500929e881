"""LangChain's `ChatOpenAI`, `OpenAI`, `OpenAIEmbeddings` and `ChatAnthropic`."""

from __future__ import annotations

import pydantic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

SUM, WEATHER = "What is 3 + 4?", "What is the weather in Oslo?"


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


@tool
def get_weather(city: str) -> str:
    """Get the current weather in a city."""
    return '{"temperature": 17, "condition": "cloudy"}'  # as the built-in model was taught


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def chat(request: pytest.FixtureRequest) -> ChatOpenAI:
    return ChatOpenAI(model="fake", temperature=0, max_retries=0, stream_usage=True, use_responses_api=request.param)


def test_chats_whole_and_streamed(chat: ChatOpenAI) -> None:
    whole = chat.invoke(SUM)
    chunks = list(chat.stream(SUM))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert "7" in whole.text
    assert total.text == whole.text
    assert total.usage_metadata == whole.usage_metadata


async def test_the_async_form(chat: ChatOpenAI) -> None:
    assert "".join([chunk.text async for chunk in chat.astream(SUM)]) == (await chat.ainvoke(SUM)).text


def test_several_prompts_at_once(chat: ChatOpenAI) -> None:
    assert [answer.text for answer in chat.batch([SUM, SUM])] == [chat.invoke(SUM).text] * 2


def test_several_choices_stream_all_their_text() -> None:
    chat = ChatOpenAI(model="fake", temperature=1, seed=3, n=2, max_retries=0)
    (whole,) = chat.generate([[HumanMessage(SUM)]]).generations
    assert len(whole) == 2


def test_tools_are_called_and_answered(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([get_weather])
    asked = bound.invoke(WEATHER)
    (call,) = asked.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert "cloudy" in bound.invoke([HumanMessage(WEATHER), asked, result]).text
    chunks = list(bound.stream(WEATHER))
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert [each["args"] for each in total.tool_calls] == [{"city": "Oslo"}]
    forced = chat.bind_tools([get_weather], tool_choice="get_weather").invoke(SUM)
    assert [each["name"] for each in forced.tool_calls] == ["get_weather"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_outputs_have_their_type(chat: ChatOpenAI, method: str) -> None:
    options = {"include_raw": True} if method == "json_mode" else {}
    answer = chat.bind(max_tokens=200).bound.with_structured_output(Person, method=method, **options).invoke(SUM)
    assert answer["raw"].text.startswith("{") if method == "json_mode" else isinstance(answer, Person)


def test_text_completions() -> None:
    model = OpenAI(model="fake", temperature=0, max_tokens=12, max_retries=0)
    assert "".join(model.stream("Once upon a time")) == model.invoke("Once upon a time")


async def test_embeddings() -> None:
    # It counts with OpenAI's tokenizer unless told otherwise, and would send ids of that.
    model = OpenAIEmbeddings(model="fake", check_embedding_ctx_length=False)
    first, second = model.embed_documents(["a cat", "a dog"])
    assert (len(first), len(second)) == (256, 256)
    assert model.embed_query("a cat") == pytest.approx(first)
    assert await model.aembed_query("a cat") == pytest.approx(first)


def test_anthropics_dialect() -> None:
    chat = ChatAnthropic(model="fake", temperature=0, max_tokens=64, max_retries=0)
    assert "7" in chat.invoke(SUM).text
    assert "".join(chunk.text for chunk in chat.stream(SUM)) == chat.invoke(SUM).text
    (call,) = chat.bind_tools([get_weather]).invoke(WEATHER).tool_calls
    assert call["args"] == {"city": "Oslo"}
