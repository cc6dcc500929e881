"""Requests of Anthropic's clients beyond plain text, by Anthropic's client and a model that repeats its prompt."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.api.serving import Server, running_server
from tests.api.test_messages import PATH, TOOLS, ask

THINKS = "<think>\nlet me see</think>\n\nit is sunny"
# A message "tools" is answered with the tools of the prompt, "thoughts" with the reasoning of earlier answers.
TEMPLATE = """{# <tool_call> <think> #}{% set last = messages[-1].content %}{% for m in messages %}<|pad|>
{%- if last == 'tools' %}{{ tools | tojson }}
{%- elif last == 'thoughts' %}
{%- set found = messages | selectattr('reasoning_content') | map(attribute='reasoning_content') | list %}
{{- found | tojson }}
{%- else %}{{ m.content }}{% endif %}<|pad|>{% endfor %}"""
BASH: Any = {"type": "bash_20250124", "name": "bash"}
EDITOR: Any = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 900}
MEMORY: Any = {"type": "memory_20250818", "name": "memory"}
COMPUTER: Any = {"type": "computer_20251124", "name": "computer", "display_width_px": 800, "display_height_px": 600}


@pytest.fixture(scope="module")
def echo(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("template") / "template.jinja"
    file.write_text(TEMPLATE)
    options = ("--device", "echo", "--chat-template", str(file), "--max-model-len", "16384")
    with running_server(checkpoint, *options, "--num-gpu-blocks-override", "4096") as running:
        yield running


@pytest.fixture(scope="module")
def told(echo: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=echo.url, api_key="any", max_retries=0, timeout=60) as made:
        yield made


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def answer(told: anthropic.Anthropic, *messages: Any, **fields: Any) -> str:
    """The text of the answer to these messages."""
    made = told.beta.messages.create(model="fake", max_tokens=8000, messages=list(messages), **fields)
    return "".join(block.text for block in made.content if block.type == "text")


def refused(told: anthropic.Anthropic, *messages: Any, **fields: Any) -> str:
    with pytest.raises(anthropic.BadRequestError) as error:
        answer(told, *messages, **fields)
    return str(error.value.body["error"]["message"])  # type: ignore[index]


def test_documents_and_search_results_are_text(told: anthropic.Anthropic) -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "the moon"}
    document: Any = {"type": "document", "source": plain, "title": "Of moons", "context": "a book"}
    blocks: Any = {"type": "content", "content": [{"type": "text", "text": "is stone"}]}
    search: Any = {
        "type": "search_result",
        "source": "https://a.example",
        "title": "Stones",
        "content": [{"type": "text", "text": "are old"}],
    }
    text = answer(
        told, user(document, {"type": "document", "source": blocks}, search, {"type": "text", "text": "Why?"})
    )
    for part in ("title: Of moons", "context: a book", "the moon", "is stone", "source: https://a.example", "are old"):
        assert part in text
    assert text.startswith("<document>")
    assert text.endswith("</search_result>\nWhy?")
    call: Any = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [document, search]}
    assert "the moon" in answer(told, user(search), {"role": "assistant", "content": [call]}, user(result), tools=TOOLS)


@pytest.mark.parametrize(
    ("block", "named"),
    [
        (
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}},
            "source.type",
        ),
        ({"type": "document", "source": {"type": "url", "url": "https://a.example"}}, "source.type"),
        ({"type": "document", "source": {"type": "text"}}, "source.data is required"),
        ({"type": "document"}, "source is required"),
        (
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "a"},
                "citations": {"enabled": True},
            },
            "citations.enabled",
        ),
        ({"type": "search_result", "content": [], "title": "a"}, "source is required"),
        ({"type": "container_upload", "file_id": "a"}, ".type"),
    ],
    ids=str,
)
def test_what_is_no_text_is_refused_by_its_place(told: anthropic.Anthropic, block: Any, named: str) -> None:
    assert f"messages[0].content[1].{named}".replace("..", ".") in refused(
        told, user({"type": "text", "text": "a"}, block)
    )


def test_tools_that_clients_run_have_their_schemas_from_here(told: anthropic.Anthropic) -> None:
    text = answer(told, user({"type": "text", "text": "tools"}), tools=[BASH, EDITOR, MEMORY, COMPUTER, *TOOLS])
    for part in ('"bash"', "restart", "str_replace", "insert_text", "900 characters", "/memories", "800 x 600 pixels"):
        assert part in text
    assert '"zoom"' in text
    assert '"weather"' in text
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    made = told.beta.messages.create(
        model="fake", max_tokens=400, messages=[user({"type": "text", "text": call})], tools=[BASH]
    )  # type: ignore[list-item]
    assert [(block.name, block.input) for block in made.content if block.type == "tool_use"] == [
        ("bash", {"command": "ls"})
    ]
    for kind in ("web_search_20250305", "code_execution_20250825", "tool_search_tool_regex_20251119", "bash_20990101"):
        message = refused(told, user({"type": "text", "text": "a"}), tools=[{"type": kind, "name": "a"}])
        assert "tools[0].type" in message or "tools[0]" in message


def test_a_deferred_tool_is_offered_once_a_result_refers_to_it(told: anthropic.Anthropic) -> None:
    deferred, search = {**TOOLS[0], "defer_loading": True}, {**TOOLS[0], "name": "find_tools"}
    question, tools = user({"type": "text", "text": "tools"}), [search, deferred]
    assert '"weather"' not in answer(told, question, tools=tools)
    call: Any = {"type": "tool_use", "id": "a", "name": "find_tools", "input": {}}
    found = [{"type": "tool_reference", "tool_name": "weather"}]
    result = {"type": "tool_result", "tool_use_id": "a", "content": found}
    history = ({"role": "assistant", "content": [call]}, user(result))
    assert '"weather"' in answer(told, question, *history, question, tools=tools)
    assert "weather" in answer(told, question, *history, tools=tools)  # as the text of the result
    remote = {**TOOLS[0], "allowed_callers": ["code_execution_20250825"]}
    assert "tools[0].allowed_callers" in refused(told, question, tools=[remote])


def test_thinking_of_earlier_turns_is_cleared_as_the_client_says(told: anthropic.Anthropic) -> None:
    history: list[Any] = []
    for number in range(3):
        thinking = {"type": "thinking", "thinking": f"t{number}", "signature": ""}
        history += [user({"type": "text", "text": "a"})]
        history += [{"role": "assistant", "content": [thinking, {"type": "text", "text": "b"}]}]
    history.append(user({"type": "text", "text": "thoughts"}))

    def kept(edit: dict[str, Any] | None) -> str:
        fields = {} if edit is None else {"context_management": {"edits": [edit]}}
        return answer(told, *history, **fields)

    clear = {"type": "clear_thinking_20251015"}
    assert (
        kept(None) == kept({**clear, "keep": "all"}) == kept({**clear, "keep": {"type": "all"}}) == '["t0", "t1", "t2"]'
    )
    assert kept({**clear, "keep": {"type": "thinking_turns", "value": 2}}) == '["t1", "t2"]'
    assert kept(clear) == '["t2"]'
    message = refused(told, *history, context_management={"edits": [{"type": "clear_tool_uses_20250919"}]})
    assert "context_management.edits[0].type" in message
    bad = {"edits": [{**clear, "keep": {"type": "thinking_turns", "value": 0}}]}
    assert "context_management.edits[0].keep" in refused(told, *history, context_management=bad)


@pytest.mark.parametrize("is_stream", [False, True])
def test_thinking_that_is_not_displayed_comes_back_by_its_signature(told: anthropic.Anthropic, is_stream: bool) -> None:
    thinking: Any = {"type": "adaptive", "display": "omitted"}
    question: Any = [{"role": "user", "content": THINKS}]
    made = ask(told, is_stream, {"model": "fake", "max_tokens": 400, "messages": question, "thinking": thinking})
    block, text = made.content
    assert (block.type, text.to_dict()["text"]) == ("thinking", "it is sunny")
    assert block.to_dict()["thinking"] == ""
    again: Any = [*question, {"role": "assistant", "content": [each.to_dict() for each in made.content]}]
    assert answer(told, *again, user({"type": "text", "text": "thoughts"})) == '["let me see"]'
    again[1]["content"][0]["signature"] = "of another server"
    assert answer(told, *again, user({"type": "text", "text": "thoughts"})) == "[]"


def test_a_thread_is_refused_so_that_the_client_sends_all_messages(echo: Server) -> None:
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        body = {"model": "fake", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}], "thread": thread}
        refusal = httpx.post(echo.url + PATH, json=body)
        assert refusal.status_code == 400
        assert refusal.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}


def test_tokens_that_are_cached_are_counted_where_a_client_marks_them(told: anthropic.Anthropic) -> None:
    text = {"type": "text", "text": "x" * 200}
    marked: Any = user({**text, "cache_control": {"type": "ephemeral"}})
    plain = told.messages.create(model="fake", max_tokens=4, messages=[user({**text, "text": "y" * 200})])  # type: ignore[list-item]
    assert (plain.usage.cache_creation_input_tokens, plain.usage.input_tokens > 200) == (0, True)
    first = told.messages.create(model="fake", max_tokens=4, messages=[marked]).usage
    second = told.messages.create(model="fake", max_tokens=4, messages=[marked]).usage
    assert first.cache_creation_input_tokens
    assert first.cache_creation_input_tokens > 100
    assert second.cache_read_input_tokens
    assert not second.cache_creation_input_tokens
    counts = (
        (each.input_tokens, each.cache_creation_input_tokens or 0, each.cache_read_input_tokens or 0)
        for each in (first, second)
    )
    assert len({sum(each) for each in counts}) == 1


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (
            {"tools": [{**TOOLS[0], "strict": True, "input_schema": {"type": "object", "minProperties": -1}}]},
            "tools[0].input_schema",
        ),
        ({"tools": [{**TOOLS[0], "defer_loading": True}, TOOLS[0], TOOLS[0]]}, "tools[2].name"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"minItems": -1}}}},
            "output_config.format.schema",
        ),
        ({"output_format": {"type": "json_schema", "schema": {"minItems": -1}}}, "output_config.format.schema"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"compaction": {"type": "enabled"}}, "compaction"),
    ],
    ids=str,
)
def test_errors_name_the_fields_that_the_client_has_sent(
    real_server: Server, fields: dict[str, Any], named: str
) -> None:
    body = {"model": "fake", "max_tokens": 4, "system": "s", "messages": [{"role": "user", "content": "a"}], **fields}
    refusal = httpx.post(real_server.url + PATH, json=body)
    message = refusal.json()["error"]["message"]
    assert (refusal.status_code, named in message) == (400, True), message
    assert "json_schema.schema" not in message
    assert "function" not in message.partition(":")[0]


def test_models_are_listed_in_the_form_that_the_client_knows(echo: Server, told: anthropic.Anthropic) -> None:
    (model,) = told.models.list()
    assert (model.id, model.type, model.max_input_tokens) == ("fake", "model", 16384)
    assert told.models.retrieve("fake") == model
    with pytest.raises(anthropic.NotFoundError) as missing:
        told.models.retrieve("other")
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    assert told.models.list(after_id="fake").data == []
    assert httpx.get(f"{echo.url}/v1/models").json()["object"] == "list"


def test_an_image_is_refused_by_its_place(told: anthropic.Anthropic) -> None:
    data = base64.b64encode(b"a").decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    assert "messages[1].content[0].type" in refused(told, user({"type": "text", "text": "a"}), user(image))


REFUSES = "{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"


@pytest.mark.slow
@pytest.mark.parametrize("strict", [REFUSES, ""], ids=["refuses", "leaves out"])
def test_a_system_message_in_the_middle_reaches_models_that_have_none_there(
    checkpoint: Path, tmp_path: Path, strict: str
) -> None:
    each = strict + "{% if m.role != 'system' or loop.first %}{{ m.role }}: {{ m.content }};{% endif %}"
    template = tmp_path / "template.jinja"
    template.write_text("<|pad|>{% for m in messages %}" + each + "{% endfor %}<|pad|>")
    user_a, assistant, user_c = (
        {"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))
    )
    late: Any = {"role": "system", "content": "L"}
    options = ("--device", "echo", "--chat-template", str(template))
    with (
        running_server(checkpoint, *options) as server,
        anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        text = answer(client, user_a, late, assistant, late, user_c, system="S")
        assert text == "system: S;user: a\n<system>\nL\n</system>;assistant: b;user: <system>\nL\n</system>\nc;"
        counts = [
            client.messages.count_tokens(model="fake", messages=messages).input_tokens  # type: ignore[arg-type]
            for messages in ([user_a, late], [user_a])
        ]
        assert counts[0] - counts[1] == len("\n<system>\nL\n</system>")
        image: Any = {"type": "image", "source": {"type": "url", "url": "https://a.example"}}
        assert "messages[3].content[0].type" in refused(client, user_a, assistant, late, user(image))
