"""Anthropic's client with its helper that runs tools, which sends only the new messages of a turn where it may."""

from __future__ import annotations

import anthropic
from anthropic import beta_tool

QUESTION = "What is the weather in Oslo?"


def runner(client: anthropic.Anthropic, asked: list[str], **options: object) -> object:
    @beta_tool
    def get_weather(city: str) -> str:
        """Get the current weather in a city."""
        asked.append(city)
        return '{"temperature": 17, "condition": "cloudy"}'

    return client.beta.messages.tool_runner(
        model="fake",
        max_tokens=200,
        tools=[get_weather],
        messages=[{"role": "user", "content": QUESTION}],
        extra_body={"temperature": 0},
        **options,  # type: ignore[call-overload]
    )


def prompt_tokens(message: anthropic.types.beta.BetaMessage) -> int:
    return message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_tools_are_run_to_the_answer() -> None:
    with anthropic.Anthropic(max_retries=0) as client:
        asked: list[str] = []
        first, second = runner(client, asked)  # type: ignore[misc]
        assert "cloudy" in second.content[0].text
        assert prompt_tokens(second) > prompt_tokens(first)  # the history is there
        assert asked == ["Oslo"]
        asked.clear()
        for stream in runner(client, asked, stream=True):  # type: ignore[attr-defined]
            message = stream.get_final_message()
        assert "cloudy" in message.content[0].text
        assert asked == ["Oslo"]
