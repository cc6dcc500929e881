"""Custom tools, which take one text: functions to the model, and what OpenAI's client knows on the wire."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.api.bad_requests import CHAT
from tests.api.serving import Server, running_server

REGEX = "[a-c]{3}-[0-9]{2}"
SHELL = {"type": "custom", "custom": {"name": "shell", "description": "Runs a command."}}
CODE = {
    "type": "custom",
    "custom": {"name": "code", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": REGEX}}},
}
TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}
COMMAND = 'echo "ä\\n"\n'


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="module")
def echo(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that answers with its last message; a call in a message is written out as a prompt has it."""
    file = tmp_path_factory.mktemp("template") / "template.jinja"
    call = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    message = "<|pad|>{{ m.content }}" + call + "<|pad|>"
    file.write_text("{# <tool_call> #}{{ tools | tojson }}{% for m in messages %}" + message + "{% endfor %}")
    options = ("--device", "echo", "--chat-template", str(file), "--max-model-len", "4096")
    with running_server(checkpoint, *options) as running:
        yield running


def ask(echo: Server, text: str, **body: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 400, "return_token_ids": True, **body}
    answer = httpx.post(echo.url + CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_call_has_its_text_as_it_is_and_functions_stay_what_they_are(echo: Server) -> None:
    text = called("shell", input=COMMAND) + called("time") + called("shell", input="ls")
    choice = ask(echo, text, tools=[SHELL, TIME])["choices"][0]
    first, second, third = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert (first["type"], first["custom"]) == ("custom", {"name": "shell", "input": COMMAND})
    assert (second["type"], second["function"]) == ("function", {"name": "time", "arguments": "{}"})
    assert third["custom"]["input"] == "ls"
    assert len({first["id"], second["id"], third["id"]}) == 3


def test_a_stream_has_each_custom_call_whole(echo: Server) -> None:
    text = called("shell", input=COMMAND) + called("time") + called("shell", input="ls")
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 400, "tools": [SHELL, TIME], "stream": True}
    events = httpx.post(echo.url + CHAT, json=body).text.split("\n\n")
    chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    custom = [(call["index"], call["custom"]["input"]) for call in calls if call.get("type") == "custom"]
    assert custom == [(0, COMMAND), (2, "ls")]
    assert {call["index"] for call in calls if "function" in call} == {1}


@pytest.mark.parametrize(
    ("text", "tools", "content"),
    [
        (called("time"), [TIME], None),
        (called("shell", input="ls"), [SHELL], None),
        (f"Wait.{called('time')}", [TIME], ""),
        ("no call", [TIME], ""),
        ("no tools", None, ""),
    ],
)
def test_a_stream_that_begins_with_a_call_opens_with_null(echo: Server, text: str, tools: Any, content: Any) -> None:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 400, "tools": tools, "stream": True}
    events = httpx.post(echo.url + CHAT, json=body).text.split("\n\n")
    choices = [json.loads(event[6:])["choices"][0] for event in events if event.startswith("data: {")]
    assert choices[0]["delta"] == {"role": "assistant", "content": content}
    assert [choice["delta"].get("role") for choice in choices[1:]] == [None] * (len(choices) - 1)
    is_call = bool(tools) and "tool_call" in text
    assert choices[-1]["finish_reason"] == ("tool_calls" if is_call else "stop")
    assert not (is_call and choices[-1]["delta"])  # the end comes apart from the calls


def test_the_model_knows_it_as_a_function_and_an_earlier_call_as_one_of_that(echo: Server) -> None:
    call = {"id": "call_1", "type": "custom", "custom": {"name": "shell", "input": COMMAND}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "user", "content": "hi"}]
    ids = ask(echo, "", messages=messages, tools=[SHELL])["prompt_token_ids"]
    prompt = httpx.post(f"{echo.url}/detokenize", json={"tokens": ids}).json()["prompt"]
    tools = json.loads(prompt[: prompt.index("<|pad|>")])
    assert tools[0]["function"]["parameters"]["required"] == ["input"]
    assert (tools[0]["function"]["name"], tools[0]["function"]["description"]) == ("shell", "Runs a command.")
    assert json.dumps({"input": COMMAND}, ensure_ascii=False) in prompt


def test_a_text_keeps_to_its_regex(client: openai.OpenAI) -> None:
    for choice in ({"type": "custom", "custom": {"name": "code"}}, "required"):
        answer = client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "hi"}],
            tools=[CODE],  # type: ignore[list-item]
            tool_choice=choice,  # type: ignore[arg-type]
            parallel_tool_calls=False,
            temperature=1.3,
            max_tokens=200,
        )
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.type == "custom"
        assert call.custom.name == "code"
        assert re.fullmatch(REGEX, call.custom.input)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"syntax": "lark", "definition": "start: /a/"}, "tools[0].custom.format.grammar.syntax"),
        ({"syntax": "regex", "definition": "(?=a)b"}, "tools[0].custom.format.grammar.definition"),
        ({"syntax": "ebnf", "definition": "a"}, "tools[0].custom.format.grammar.syntax"),
        ({"syntax": "regex"}, "tools[0].custom.format.grammar.definition"),
    ],
    ids=str,
)
def test_a_format_that_cannot_be_kept_is_refused(real_server: Server, tool: dict[str, str], param: str) -> None:
    given = {"type": "custom", "custom": {"name": "a", "format": {"type": "grammar", "grammar": tool}}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [given], "tool_choice": "required"}
    answer = httpx.post(real_server.url + CHAT, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
