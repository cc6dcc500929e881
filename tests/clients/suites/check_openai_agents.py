"""OpenAI's Agents SDK, on responses and on chats: tools, types, turns that follow each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import agents
import openai
import pydantic
import pytest

WEATHER = "What is the weather in Oslo?"
SETTINGS = agents.ModelSettings(temperature=0, max_tokens=200)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


@agents.function_tool
def get_weather(city: str) -> str:
    """Get the current weather in a city."""
    assert city == "Oslo"
    return '{"temperature": 17, "condition": "cloudy"}'  # as the built-in model was taught


@pytest.fixture(params=[agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel], ids=["responses", "chat"])
async def agent(request: pytest.FixtureRequest) -> AsyncIterator[dict[str, Any]]:
    """Arguments of an agent."""
    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(max_retries=0) as client:
        yield {"name": "A", "model": request.param("fake", client), "model_settings": SETTINGS}


async def test_tools_are_called_and_answered(agent: dict[str, Any]) -> None:
    weatherman = agents.Agent(**agent, tools=[get_weather])
    result = await agents.Runner.run(weatherman, WEATHER, max_turns=4)
    kinds = ["ToolCallItem", "ToolCallOutputItem", "MessageOutputItem"]
    assert [type(item).__name__ for item in result.new_items] == kinds
    assert "cloudy" in result.final_output
    streamed = agents.Runner.run_streamed(weatherman, WEATHER, max_turns=4)
    seen = [event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"]
    assert seen.count("response.completed") == len(streamed.raw_responses) == 2
    assert streamed.final_output == result.final_output


async def test_turns_follow_each_other(agent: dict[str, Any]) -> None:
    first = await agents.Runner.run(agents.Agent(**agent), "My name is Ada.")
    second = await agents.Runner.run(
        agents.Agent(**agent), [*first.to_input_list(), {"role": "user", "content": "What is my name?"}]
    )
    assert second.raw_responses[0].usage.input_tokens > first.raw_responses[0].usage.input_tokens
    if first.last_response_id:
        stored = await agents.Runner.run(
            agents.Agent(**agent), "What is my name?", previous_response_id=first.last_response_id
        )
        assert stored.final_output == second.final_output


async def test_outputs_have_their_type(agent: dict[str, Any]) -> None:
    typed = await agents.Runner.run(agents.Agent(**agent, output_type=Person), "Ada is 36 years old.")
    assert isinstance(typed.final_output, Person)
