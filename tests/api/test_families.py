"""Outputs of each family from the outside: the official client, and a model that writes what it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from neuronserve.server.text.parsers.call_formats import CALLS
from neuronserve.server.text.parsers.formats import REASONING
from tests.api.serving import Server, running_server
from tests.text.parsers.conversations import CUT, GOLDEN, OSLO, F, Golden
from tests.text.parsers.reading import FUNCTIONS, read

CHAT = "/v1/chat/completions"
TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": spec}} for name, spec in FUNCTIONS.items()]
MESSAGES = "{% for m in messages %}<|pad|>{{ m.content }}<|pad|>{% endfor %}{% if tools %}{% endif %}"
SIGNS = {
    "hermes": "<tool_call>",
    "granite": "<|tool_call|><|start_of_role|>",
    "phi4_mini_json": "functools[",
    "mistral": "[TOOL_CALLS] [ARGS]",
    "llama3_json": '"parameters": dictionary of argument',
    "llama4_pythonic": "[func_name1(",
    "gemma": "tool_code",
    "qwen3_coder": "<function= <parameter=",
    "openai": "<|channel|> commentary",
    "qwen3": "<think>",
    "deepseek_r1": "</think><｜Assistant｜>",
    "openai_gptoss": "<|channel|>analysis",
    "none": "",
}
REASONING_SIGNS = {
    "granite": "Here is my thought process",
    "granite_3_3": "<think></think><response></response>",
    "mistral": "[THINK]",
}


def template(golden: Golden) -> str:
    """A template with the family's signs, which the output's prompt is made by."""
    form = golden.form
    tools = SIGNS[form.tools] if form.tools in SIGNS else " ".join(CALLS[form.tools].signs[0])
    reasoning = REASONING_SIGNS.get(form.reasoning, SIGNS.get(form.reasoning))
    signs = tools + (" ".join(REASONING[form.reasoning].signs[0]) if reasoning is None else reasoning)
    return MESSAGES + "{# " + signs + " #}" + form.prompt


# What a template of these signs stands for, and a model that has a tokenizer would write and stop after.
SERVED = [golden for golden in GOLDEN if (golden.form.tools == "openai") == (golden.form.reasoning == "openai_gptoss")]


@pytest.fixture(scope="module")
def echo(checkpoint: Path) -> Iterator[Server]:
    options = ("--device", "echo", "--trust-request-chat-template", "--max-model-len", "2048")
    with running_server(checkpoint, *options) as running:
        yield running


@pytest.fixture
def chat(echo: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{echo.url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client.chat.completions


def asked(golden: Golden, **more: Any) -> dict[str, Any]:
    extra = {"chat_template": template(golden), **more.pop("extra_body", {})}
    tools = {"tools": TOOLS} if golden.form.tools != "none" else {}
    messages = [{"role": "user", "content": golden.text}]
    return {"model": "fake", "messages": messages, **tools, "extra_body": extra, **more}


def said(message: Any) -> tuple[str, str, list[tuple[str, str]]]:
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return message.content or "", getattr(message, "reasoning_content", None) or "", calls


def added_up(chunks: Any) -> dict[int, tuple[str, str, list[tuple[str, str]], str]]:
    """Content, reasoning, calls and finish reason of each choice of a stream."""
    choices: dict[int, list[Any]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            one = choices.setdefault(choice.index, ["", "", [], ""])
            one[0] += choice.delta.content or ""
            one[1] += getattr(choice.delta, "reasoning_content", None) or ""
            one[3] = choice.finish_reason or one[3]
            for part in choice.delta.tool_calls or ():
                if part.function.name is not None:
                    assert part.index == len(one[2])
                    one[2].append([part.function.name, ""])
                one[2][part.index][1] += part.function.arguments
    return {i: (c, r, [(name, text) for name, text in calls], end) for i, (c, r, calls, end) in choices.items()}


@pytest.mark.parametrize("golden", SERVED, ids=lambda golden: f"{golden.form.tools}-{golden.text[:30]!r}")
def test_an_output_is_a_message_whole_and_streamed(chat: Any, golden: Golden) -> None:
    expected = read([golden.text], golden.form)
    message = (expected.content, expected.reasoning, expected.calls or [])
    (choice,) = chat.create(**asked(golden)).choices
    assert said(choice.message) == message
    assert choice.finish_reason == ("tool_calls" if expected.calls else "stop")
    assert added_up(chat.create(**asked(golden), stream=True)) == {0: (*message, choice.finish_reason)}


@pytest.mark.slow
@pytest.mark.parametrize("golden", SERVED, ids=lambda golden: f"{golden.form.tools}-{golden.text[:30]!r}")
def test_an_output_is_the_items_of_a_response(echo: Server, golden: Golden) -> None:
    expected = read([golden.text], golden.form)
    given: Any = asked(golden, include=["message.output_text.logprobs"])
    (message,) = given.pop("messages")
    tools = [{"type": "function", **tool["function"]} for tool in given.pop("tools", ())]
    with openai.OpenAI(base_url=f"{echo.url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        *_, last = client.responses.create(**given, input=message["content"], tools=tools, stream=True)
        stored = client.responses.retrieve(last.response.id)
    items = stored.output
    reasoning = "".join(item.content[0].text for item in items if item.type == "reasoning")
    calls = [(item.name, item.arguments) for item in items if item.type == "function_call"]
    assert (stored.output_text, reasoning, calls) == (expected.content, expected.reasoning, expected.calls or [])
    assert stored.usage.output_tokens_details.reasoning_tokens >= len(expected.reasoning)  # a token is a byte
    assert (stored.usage.output_tokens_details.reasoning_tokens > 0) == bool(expected.reasoning)
    assert [item.type for item in items if item.type == "reasoning"] == ["reasoning"][: bool(reasoning)]
    entries = [entry for item in items if item.type == "message" for entry in item.content[0].logprobs]
    assert len(entries) >= len(stored.output_text)
    assert len(entries) <= stored.usage.output_tokens - stored.usage.output_tokens_details.reasoning_tokens


THINKS = next(golden for golden in SERVED if golden.form.reasoning == "qwen3" and golden.calls)


def test_several_choices_are_read_each_on_its_own(chat: Any) -> None:
    whole = chat.create(**asked(THINKS), n=3, logprobs=True)
    assert len({choice.message.tool_calls[0].id for choice in whole.choices}) == 3
    streamed = added_up(chat.create(**asked(THINKS), n=3, logprobs=True, stream=True))
    assert [(*said(choice.message), choice.finish_reason) for choice in whole.choices] == [
        streamed[i] for i in range(3)
    ]
    for choice in whole.choices:
        assert b"".join(bytes(entry.bytes) for entry in choice.logprobs.content[:-1]) == THINKS.text.encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "golden", [golden for golden in SERVED if golden.calls][::4], ids=lambda golden: golden.form.tools
)
def test_the_length_may_cut_anywhere(chat: Any, golden: Golden) -> None:
    for size in range(1, len(golden.text.encode()), 9):
        expected = read([golden.text.encode()[:size].decode(errors="ignore")], golden.form)
        (choice,) = chat.create(**asked(golden, max_tokens=size)).choices
        content, reasoning, calls = said(choice.message)
        assert choice.finish_reason == "length"
        assert (content.rstrip("\ufffd"), reasoning.rstrip("\ufffd")) == (expected.content, expected.reasoning)
        assert [name for name, _ in calls] == [name for name, _ in expected.calls or ()]
        assert added_up(chat.create(**asked(golden, max_tokens=size), stream=True))[0][:3] == (
            content,
            reasoning,
            calls,
        )


def test_a_stop_string_is_found_in_what_the_model_writes(chat: Any) -> None:
    (choice,) = chat.create(**asked(THINKS), stop=['"arguments"']).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert said(choice.message)[1] == "Is it <b>?"


def test_reasoning_is_left_out_where_it_is_not_wanted(chat: Any) -> None:
    options = asked(THINKS, extra_body={"include_reasoning": False})
    (choice,) = chat.create(**options).choices
    assert said(choice.message) == ("", "", [("f", json.dumps(OSLO))])
    assert added_up(chat.create(**options, stream=True))[0][1] == ""


def test_calls_that_may_not_come_are_content(chat: Any) -> None:
    golden = THINKS._replace(form=THINKS.form)
    (choice,) = chat.create(**asked(golden), tool_choice="none").choices
    assert said(choice.message) == (f"<tool_call>{F}</tool_call>", "Is it <b>?", [])


def test_the_template_gets_what_decides_about_thinking(echo: Server) -> None:
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "chat_template": MESSAGES + "{{ enable_thinking }}{{ reasoning_effort }}<think>{{ '\\n' }}",
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low",
        "return_token_ids": True,
    }
    told = httpx.post(echo.url + CHAT, json=body, timeout=60).json()
    assert bytes(token for token in told["prompt_token_ids"] if token < 256)
    assert told["choices"][0]["message"]["reasoning_content"] == "x"
    assert told["choices"][0]["message"]["content"] == ""


def test_a_budget_needs_reasoning_that_can_be_ended(echo: Server) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "thinking_token_budget": 5}
    plain = httpx.post(echo.url + CHAT, json=body, timeout=60)
    marked = httpx.post(echo.url + CHAT, json={**body, "chat_template": MESSAGES + "<think>"}, timeout=60)
    for answer, words in ((plain, "--reasoning-parser"), (marked, "no token")):
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "thinking_token_budget")
        assert words in error["message"]
    unbounded = httpx.post(
        echo.url + CHAT, json={**body, "thinking_token_budget": -1, "chat_template": MESSAGES + "<think>"}, timeout=60
    )
    assert unbounded.status_code == 200


@pytest.mark.slow
def test_the_settings_go_before_the_template(checkpoint: Path) -> None:
    options = ("--device", "echo", "--chat-template", MESSAGES + "<tool_call><think>", "--reasoning-parser", "none")
    text = f"<think>a</think>{CUT}"
    with (
        running_server(checkpoint, *options, "--tool-call-parser", "none") as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        told = http.get("/server_info").json()
        shown = http.get("/inventory").json()["parsers"]
        refused = http.post(CHAT, json={"messages": [{"role": "user", "content": "x"}], "tools": TOOLS})
        answer = http.post(CHAT, json={"messages": [{"role": "user", "content": text}]}).json()
    assert (told["tool_call_parser"], told["reasoning_parser"]) == ("none", "none")
    assert shown == {"tool_calls": "none", "reasoning": "none"}
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    assert answer["choices"][0]["message"]["content"] == text
