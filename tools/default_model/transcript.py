"""Print ten varied chats with a running server as Markdown: `python -m tools.default_model.transcript URL`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from openai import OpenAI

from tools.default_model.item import Message, Tool, assistant_text

WEATHER: Tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
WEATHER_RESULT = '{"temperature": 17, "condition": "cloudy"}'


@dataclass(frozen=True, slots=True)
class Talk:
    """User messages, turn after turn, and the request fields sent with them."""

    title: str
    turns: tuple[str, ...]
    tools: tuple[Tool, ...] = ()
    response_format: dict[str, Any] | None = None
    system: str = ""


TALKS = (
    Talk("Who is there", ("Hello!", "Who are you?", "What can you do?")),
    Talk("A story", ("Tell me a story about a fox named Ruby and a lantern.",)),
    Talk("Sums", ("What is 347 + 285?", "503 minus 78?", "what is 47 times 6")),
    Talk(
        "Letters",
        ("Spell lantern backwards.", "How many r's are in strawberry?", "Sort these words: pear, kite, apple"),
    ),
    Talk(
        "Facts",
        ("What is the capital of Norway?", "Which month comes after April?", "How many minutes are in 3 hours?"),
    ),
    Talk(
        "Memory",
        ("Hi, my name is Tamsin.", "I live in Lisbon.", "What is 12 + 7?", "What is my name?", "Where do I live?"),
    ),
    Talk("A tool", ("What is the weather in Oslo?",), tools=(WEATHER,)),
    Talk(
        "Structured output",
        ("Extract name, age, city as JSON: Marek is 42 years old and lives in Prague. Marek is a pilot.",),
        response_format=JSON_FORMAT,
    ),
    Talk(
        "Summary and code",
        (
            "Summarize in one sentence: Nora is a baker. One day Nora lost a key and looked for it everywhere. "
            "In the end it was in the garden, and Nora was happy.",
            "Python one-liner to reverse the string name",
        ),
        system="You are a helpful assistant.",
    ),
    Talk("Out of its world", ("Explain quantum physics.", "¿Dónde está la biblioteca?", "x7$$ qqq 0x1f ;;")),
)


def converse(client: OpenAI, model: str, talk: Talk) -> list[Message]:
    """Return the conversation with the server's greedy answers; tool calls get fixed results."""
    messages: list[Message] = [{"role": "system", "content": talk.system}] if talk.system else []
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 300}
    if talk.tools:
        options["tools"] = list(talk.tools)
    if talk.response_format:
        options["response_format"] = talk.response_format
    for turn in talk.turns:
        messages.append({"role": "user", "content": turn})
        _answer(client, model, messages, options)
    return messages


def _answer(client: OpenAI, model: str, messages: list[Message], options: dict[str, Any]) -> None:
    """Append the assistant's message and, if it called tools, their results and its next message."""
    for _ in range(3):
        chat: Any = client.chat.completions
        answer = chat.create(model=model, messages=messages, **options).choices[0].message
        messages.append(answer.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        if not answer.tool_calls:
            return
        calls = answer.tool_calls
        messages += [{"role": "tool", "tool_call_id": call.id, "content": WEATHER_RESULT} for call in calls]


def markdown(talk: Talk, messages: list[Message]) -> str:
    lines = [f"### {talk.title}", ""]
    for message in messages:
        text = assistant_text(message) if message["role"] == "assistant" else str(message["content"])
        lines += [f"**{message['role']}**", "", *(f"    {line}" for line in text.split("\n")), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the server, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    args = parser.parse_args()
    client = OpenAI(base_url=args.url, api_key=args.api_key, timeout=120)
    model = client.models.list().data[0].id
    for talk in TALKS:
        print(markdown(talk, converse(client, model, talk)))


if __name__ == "__main__":
    main()
