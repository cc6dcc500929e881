"""Tools of /v1/responses beyond functions: custom tools and namespaces, by OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.serving import Server, running_server
from tests.api.test_responses import ask, client_of, in_short

SHELL: Any = {"type": "custom", "name": "shell", "description": "Runs a command."}
TIME: Any = {"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}, "strict": False}
SPACE: Any = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [TIME, SHELL]}
OFFLINE: Any = {"type": "web_search", "external_web_access": False}
TEMPLATE = """{# <tool_call> <think> #}{% for m in messages %}<|pad|>
{%- if m.content == 'tools' %}{{ tools | tojson }}
{%- elif m.content == 'thoughts' %}{{ messages[1].reasoning_content }}
{%- else %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endif %}
{%- if loop.last and m.role == 'tool' %}{{ messages[1].tool_calls | tojson }}{% endif %}<|pad|>{% endfor %}"""


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="module")
def echo(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("template") / "template.jinja"
    file.write_text(TEMPLATE)
    options = ("--device", "echo", "--chat-template", str(file), "--max-model-len", "4096")
    with running_server(checkpoint, *options) as running:
        yield running


@pytest.fixture
def told(echo: Server) -> Iterator[openai.OpenAI]:
    with client_of(echo) as made:
        yield made


def test_custom_calls_are_items_and_their_results_go_back(told: openai.OpenAI) -> None:
    command = 'echo "ä"\n'
    text = called("shell", input=command) + called("time") + called("shell", input="ls")
    options: dict[str, Any] = {"tools": [SHELL, TIME], "max_output_tokens": 400}
    first = ask(told, text, **options)
    assert [item.type for item in first.output] == ["custom_tool_call", "function_call", "custom_tool_call"]
    assert [item.name for item in first.output] == ["shell", "time", "shell"]
    assert (first.output[0].input, first.output[2].input) == (command, "ls")
    events = list(ask(told, text, stream=True, **options))
    custom = ["response.output_item.added", "response.custom_tool_call_input.delta"]
    custom += ["response.custom_tool_call_input.done", "response.output_item.done"]
    assert in_short(events)[2:6] == custom
    assert events[-1].response.output[0].input == command
    done = next(event for event in events if event.type == "response.custom_tool_call_input.done")
    assert done.input == command
    results: Any = [
        {"type": "custom_tool_call_output", "call_id": first.output[0].call_id, "output": "ä"},
        {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "noon"},
    ]
    after = ask(told, results, previous_response_id=first.id, **options)
    assert after.output_text.startswith("noon")
    assert json.dumps({"input": command}, ensure_ascii=False) in after.output_text
    kinds = [item.type for item in told.responses.input_items.list(after.id, order="asc").data]
    assert kinds == ["custom_tool_call_output", "function_call_output"]


def test_tools_of_a_namespace_keep_it(told: openai.OpenAI) -> None:
    options: dict[str, Any] = {"tools": [SPACE, TIME, OFFLINE], "max_output_tokens": 2000}
    shown = json.loads(ask(told, "tools", **options).output_text)
    assert [tool["function"]["name"] for tool in shown] == ["crm__time", "crm__shell", "time"]
    assert "Customers." in shown[1]["function"]["description"]
    first = ask(told, called("crm__time") + called("time") + called("crm__shell", input="ls"), **options)
    named = [(item.namespace, item.name) for item in first.output]
    assert named == [("crm", "time"), (None, "time"), ("crm", "shell")]
    assert first.tools[0].type == "namespace"
    result: Any = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "noon"}
    assert "crm__time" in ask(told, [result], previous_response_id=first.id, **options).output_text


def test_a_choice_may_be_of_a_custom_tool_or_of_a_namespace(client: openai.OpenAI) -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[a-c]{3}"}
    code: Any = {"type": "custom", "name": "code", "format": grammar}
    options: dict[str, Any] = {"tools": [code, {**SPACE, "tools": [TIME]}], "max_output_tokens": 60}
    made = ask(client, "hi", tool_choice={"type": "custom", "name": "code"}, **options)
    assert (made.output[0].type, made.output[0].name, len(made.output[0].input)) == ("custom_tool_call", "code", 3)
    for choice in (
        {"type": "function", "name": "time"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "time"}]},
    ):
        made = ask(client, "hi", tool_choice=choice, parallel_tool_calls=False, **options)
        assert (made.output[0].namespace, made.output[0].name) == ("crm", "time")


def test_reasoning_that_is_asked_for_encrypted_is_given_back_so(told: openai.OpenAI) -> None:
    thinks = "<think>\nlet me see</think>\n\nit is sunny"
    include: Any = ["reasoning.encrypted_content"]
    first = ask(told, thinks, include=include, store=False, max_output_tokens=400)
    thought, reply = first.output
    assert (thought.type, bool(thought.encrypted_content)) == ("reasoning", True)
    sealed: Any = {"type": "reasoning", "summary": [], "encrypted_content": thought.encrypted_content}
    again: Any = [
        {"role": "user", "content": "a"},
        sealed,
        {"role": "assistant", "content": reply.content[0].text},
        {"role": "user", "content": "thoughts"},
    ]
    assert ask(told, again, store=False).output_text == "let me see"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "web_search"}], "tools[0].type"),
        ([TIME, {**SPACE, "tools": [TIME, {"type": "mcp", "server_label": "a"}]}], "tools[1].tools[1].type"),
        ([{**SPACE, "tools": [TIME, TIME]}], "tools[0].tools[1].name"),
        ([SPACE, {**TIME, "name": "crm__time"}], "tools[1].name"),
        ([{**SHELL, "format": {"type": "grammar", "syntax": "lark", "definition": "a"}}], "tools[0].format.syntax"),
        ([{"type": "custom"}], "tools[0].name"),
    ],
    ids=str,
)
def test_a_bad_tool_is_named_by_its_place(told: openai.OpenAI, tools: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(told, "a", tools=tools)
    assert refused.value.param == param
    assert param in refused.value.message
