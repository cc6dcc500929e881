"""An agent: the model calls functions until it has an answer.

export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none
python examples/tool_agent.py "What is the weather in Oslo?"
"""

from __future__ import annotations

import json
import sys
from typing import Any

from openai import OpenAI

MAX_TURNS = 4
WEATHER = {"Oslo": (17, "cloudy"), "Lisbon": (24, "sunny")}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Current weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def get_weather(city: str) -> dict[str, Any]:
    """Return the weather; a real function would ask a service."""
    temperature, condition = WEATHER.get(city, (12, "windy"))
    return {"temperature": temperature, "condition": condition}


def answer(client: OpenAI, model: str, question: str) -> str:
    """Return the model's final answer. Raises RuntimeError if it keeps calling functions."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(MAX_TURNS):
        chat = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, temperature=0, max_tokens=80)
        message = chat.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            print(f"{call.function.name}({call.function.arguments}) -> {result}", file=sys.stderr)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
    raise RuntimeError(f"no answer after {MAX_TURNS} turns")


def main(question: str) -> None:
    client = OpenAI()  # address and key are in OPENAI_BASE_URL and OPENAI_API_KEY
    print(answer(client, client.models.list().data[0].id, question))


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is the weather in Oslo?")
