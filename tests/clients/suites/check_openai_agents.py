"""OpenAI's Agents SDK on /v1/responses: tools are called and answered, outputs are typed, turns follow each other."""

from __future__ import annotations

import pydantic
import pytest

from tests.api.serving import Server

agents = pytest.importorskip("agents", reason="the package openai-agents is not installed")

import openai  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]  # its own warnings are not ours


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=150)


async def test_agents_run_on_responses(real_server: Server) -> None:
    asked: list[str] = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city."""
        asked.append(city)
        return "sunny"

    agents.set_tracing_disabled(True)
    settings = agents.ModelSettings(temperature=0, max_tokens=200)
    async with openai.AsyncOpenAI(base_url=f"{real_server.url}/v1", api_key="any", max_retries=0) as client:
        model = agents.OpenAIResponsesModel("fake", client)
        shared = {"name": "A", "instructions": "Be brief.", "model": model, "model_settings": settings}
        weatherman = agents.Agent(**shared, tools=[get_weather])
        result = await agents.Runner.run(weatherman, "What is the weather in Oslo?", max_turns=4)
        assert len(asked) >= 1
        assert [type(item).__name__ for item in result.new_items][:2] == ["ToolCallItem", "ToolCallOutputItem"]
        assert result.final_output
        again = await agents.Runner.run(
            weatherman, "Thank you.", previous_response_id=result.last_response_id, max_turns=4
        )
        assert again.raw_responses[0].usage.input_tokens > result.raw_responses[-1].usage.input_tokens
        streamed = agents.Runner.run_streamed(weatherman, "What is the weather in Oslo?", max_turns=4)
        kinds = [event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"]
        assert kinds.count("response.completed") == len(streamed.raw_responses)
        assert streamed.final_output == result.final_output
        typed = await agents.Runner.run(agents.Agent(**shared, output_type=Person), "Who are you?")
        assert isinstance(typed.final_output, Person)
