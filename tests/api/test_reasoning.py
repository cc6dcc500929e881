"""Budgets of reasoning, and formats behind it, with a real engine: the shipped model, whose tags are renamed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import Server, running_server
from tests.api.test_tools import TOOLS

CHAT = "/v1/chat/completions"
OPEN_ID, CLOSE_ID = 3, 4  # of `<tools>` and `</tools>`, renamed
QUESTION = [{"role": "user", "content": "What is the weather in Oslo?"}]
OPENED = (
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{# tools are written as <tool_call> #}<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory, kernel_cache: str) -> Iterator[Server]:
    """The shipped model with `<think>` and `</think>` as tokens; few blocks, so that sequences preempt each other."""
    model = tmp_path_factory.mktemp("model") / "model"
    shutil.copytree(DEFAULT_MODEL, model)
    text = (model / "tokenizer.json").read_text()
    (model / "tokenizer.json").write_text(text.replace('"<tools>"', '"<think>"').replace('"</tools>"', '"</think>"'))
    (model / "chat_template.jinja").write_text(TEMPLATE + OPENED)
    options = ("--kernel-cache-dir", kernel_cache, "--num-gpu-blocks-override", "24", "--block-size", "16")
    with running_server(
        model, *options, "--trust-request-chat-template", "--max-model-len", "256", program="neuronserve"
    ) as running:
        yield running


def ask(server: Server, **options: Any) -> dict[str, Any]:
    body = {"messages": QUESTION, "max_tokens": 40, "temperature": 1.2, "return_token_ids": True, "seed": 5, **options}
    answer = httpx.post(server.url + CHAT, json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return dict(choice)


@pytest.mark.parametrize("budget", [0, 1, 6])
def test_reasoning_ends_with_its_budget_at_the_latest(thinker: Server, budget: int) -> None:
    for seed in range(4):
        ids = ask(thinker, thinking_token_budget=budget, seed=seed)["token_ids"]
        assert CLOSE_ID in ids[: budget + 1]
    message = ask(thinker, thinking_token_budget=budget)["message"]
    assert (budget == 0) == ("reasoning_content" not in message)


def test_nothing_is_forced_before_the_budget_is_used_up(thinker: Server) -> None:
    free = ask(thinker)["token_ids"]
    assert ask(thinker, thinking_token_budget=-1)["token_ids"] == free
    assert ask(thinker, thinking_token_budget=200)["token_ids"] == free
    cut = ask(thinker, thinking_token_budget=10)["token_ids"]
    assert cut[:10] == free[:10]


def test_a_model_that_opens_its_reasoning_itself_is_counted_from_there(thinker: Server) -> None:
    body = {"chat_template": TEMPLATE + "{# <think> #}", "thinking_token_budget": 3, "logit_bias": {str(OPEN_ID): 100}}
    ids = ask(thinker, **body, max_tokens=6)["token_ids"]
    assert ids[0] == OPEN_ID
    assert CLOSE_ID in ids[1:5]


def test_a_template_that_switches_thinking_off_leaves_nothing_to_count(thinker: Server) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert ask(thinker, thinking_token_budget=0, **off)["token_ids"] == ask(thinker, **off)["token_ids"]


def test_a_format_and_forced_calls_come_behind_the_reasoning(thinker: Server) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {**schema, "additionalProperties": False}}}
    answer = ask(thinker, response_format=form, thinking_token_budget=5, max_tokens=120)
    assert answer["message"]["reasoning_content"]
    assert set(json.loads(answer["message"]["content"])) == {"n"}
    named = {"type": "function", "function": {"name": "set_timer"}}
    called = ask(thinker, tools=TOOLS, tool_choice=named, thinking_token_budget=5, max_tokens=120)["message"]
    assert called["reasoning_content"]
    (call,) = called["tool_calls"]
    assert call["function"]["name"] == "set_timer"
    assert set(json.loads(call["function"]["arguments"])) == {"minutes"}


def test_what_holds_for_the_whole_output_holds_for_the_reasoning(thinker: Server) -> None:
    few = [CLOSE_ID, *range(30, 60)]
    assert set(ask(thinker, allowed_token_ids=few)["token_ids"]) <= set(few)
    message = ask(thinker, bad_words=["e", "a"], logit_bias={str(CLOSE_ID): 3.0}, max_tokens=60)
    assert CLOSE_ID in message["token_ids"]
    text = message["message"].get("reasoning_content", "") + message["message"]["content"]
    assert not set("ea") & set(text)
    body = {"messages": QUESTION, "bad_words": ["e"], "thinking_token_budget": 5}
    refused = httpx.post(thinker.url + CHAT, json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "bad_words")


def test_budgets_hold_through_preemption(thinker: Server) -> None:
    options = [{"thinking_token_budget": 20 + i % 3, "seed": i, "max_tokens": 90, "ignore_eos": True} for i in range(8)]
    alone = [ask(thinker, **each)["token_ids"] for each in options]
    with ThreadPoolExecutor(len(options)) as pool:
        together = list(pool.map(lambda each: ask(thinker, **each)["token_ids"], options))
    assert together == alone
    for each, ids in zip(options, together, strict=True):
        assert CLOSE_ID in ids[: each["thinking_token_budget"] + 1]
    metrics = httpx.get(thinker.url + "/metrics", timeout=60).text
    (line,) = [line for line in metrics.splitlines() if line.startswith("vllm:num_preemptions_total")]
    assert float(line.split()[-1]) > 0
