"""The chats of the default model's card run through, a tool call and a filled schema among them."""

from __future__ import annotations

import json

import jsonschema
import openai
import pytest

from tools.default_model.transcript import SCHEMA, TALKS, Talk, converse, markdown


@pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.title)
def test_a_chat_runs_through(client: openai.OpenAI, talk: Talk) -> None:
    messages = converse(client, "fake", talk)
    roles = [message["role"] for message in messages]
    assert roles.count("user") == len(talk.turns)
    assert roles[-1] == "assistant"
    assert all(message.get("content") or message.get("tool_calls") for message in messages)
    assert markdown(talk, messages).startswith(f"### {talk.title}\n")
    if talk.tools:
        assert roles == ["user", "assistant", "tool", "assistant"]
    if talk.response_format:
        jsonschema.validate(json.loads(messages[-1]["content"]), SCHEMA)


def test_there_are_ten_and_all_kinds_are_among_them() -> None:
    assert len(TALKS) == 10
    assert any(talk.tools for talk in TALKS)
    assert any(talk.response_format for talk in TALKS)
    assert any(talk.system for talk in TALKS)
    assert any(len(talk.turns) > 3 for talk in TALKS)
