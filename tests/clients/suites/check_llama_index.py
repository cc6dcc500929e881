"""LlamaIndex's `OpenAILike`, and its embeddings."""

from __future__ import annotations

import pydantic
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.program import LLMTextCompletionProgram
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

SUM, WEATHER = [ChatMessage("What is 3 + 4?")], "What is the weather in Oslo?"


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


def get_weather(city: str) -> str:
    """Get the current weather in a city."""
    return '{"temperature": 17, "condition": "cloudy"}'  # as the built-in model was taught


@pytest.fixture
def model(url: str) -> OpenAILike:
    kinds = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 2048}
    return OpenAILike("fake", api_base=f"{url}/v1", api_key="any", temperature=0, max_retries=0, **kinds)


def test_chats_whole_and_streamed(model: OpenAILike) -> None:
    whole = model.chat(SUM).message.content
    assert "7" in (whole or "")
    assert "".join(part.delta or "" for part in model.stream_chat(SUM)) == whole
    assert [*model.stream_complete("What is 3 + 4?")][-1].text == model.complete("What is 3 + 4?").text


async def test_the_async_form(model: OpenAILike) -> None:
    whole = (await model.achat(SUM)).message.content
    assert "".join([part.delta or "" async for part in await model.astream_chat(SUM)]) == whole


def test_text_completions(url: str) -> None:
    model = OpenAILike("fake", api_base=f"{url}/v1", api_key="any", temperature=0, max_tokens=12, is_chat_model=False)
    assert [*model.stream_complete("Once upon a time")][-1].text == model.complete("Once upon a time").text


def test_tools_are_called_and_answered(model: OpenAILike) -> None:
    answer = model.predict_and_call([FunctionTool.from_defaults(get_weather)], WEATHER)
    assert [source.tool_name for source in answer.sources] == ["get_weather"]
    assert answer.sources[0].raw_input["kwargs"] == {"city": "Oslo"}
    asked = model.chat_with_tools([FunctionTool.from_defaults(get_weather)], WEATHER, tool_required=True)
    assert [call.tool_name for call in model.get_tool_calls_from_response(asked)] == ["get_weather"]


def test_outputs_have_their_type(model: OpenAILike) -> None:
    made = model.as_structured_llm(Person).chat([ChatMessage("Ada is 36 years old.")])
    assert isinstance(made.raw, Person)
    program = LLMTextCompletionProgram.from_defaults(
        output_cls=Person, prompt_template_str="Who is it?", llm=model.model_copy()
    )
    options = {"extra_body": {"guided_json": Person.model_json_schema()}}
    assert isinstance(program(llm_kwargs=options), Person)


async def test_embeddings(url: str) -> None:
    model = OpenAILikeEmbedding("fake", api_base=f"{url}/v1", api_key="any", embed_batch_size=2)
    first, second, third = model.get_text_embedding_batch(["a cat", "a dog", "a cat"])
    assert first == pytest.approx(third)
    assert len(second) == 256
    assert await model.aget_query_embedding("a cat") == pytest.approx(first)
