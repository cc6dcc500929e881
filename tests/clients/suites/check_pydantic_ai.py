"""Pydantic AI: agents with tools and types, over chats and over responses."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

MODELS = (OpenAIChatModel, OpenAIResponsesModel)
SETTINGS: Any = {"temperature": 0, "max_tokens": 200}


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


@pytest.fixture(params=MODELS, ids=lambda kind: kind.__name__)
def model(request: pytest.FixtureRequest, url: str) -> Any:
    return request.param("fake", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="any"))


async def test_answers_whole_and_streamed(model: Any) -> None:
    agent = Agent(model, model_settings=SETTINGS)
    whole = await agent.run("What is 3 + 4?")
    assert "7" in whole.output
    assert whole.usage.output_tokens > 0
    async with agent.run_stream("What is 3 + 4?") as stream:
        assert "".join([part async for part in stream.stream_text(delta=True)]) == whole.output
    again = await agent.run("What is 5 + 1?", message_history=whole.all_messages())
    assert again.usage.input_tokens > whole.usage.input_tokens


async def test_tools_are_called_and_answered(model: Any) -> None:
    asked: list[str] = []
    agent = Agent(model, model_settings=SETTINGS)

    @agent.tool_plain
    def get_weather(city: str) -> dict[str, Any]:
        """Get the current weather in a city."""
        asked.append(city)
        return {"temperature": 17, "condition": "cloudy"}  # as the built-in model was taught

    assert "cloudy" in (await agent.run("What is the weather in Oslo?")).output
    async with agent.run_stream("What is the weather in Oslo?") as stream:
        assert "cloudy" in await stream.get_output()
    assert asked == ["Oslo", "Oslo"]


@pytest.mark.parametrize("kind", [NativeOutput, ToolOutput])
async def test_outputs_have_their_type(model: Any, kind: Any) -> None:
    agent = Agent(model, output_type=kind(Person), model_settings=SETTINGS, retries=0)
    assert isinstance((await agent.run("Ada is 36 years old.")).output, Person)
