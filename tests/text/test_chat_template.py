"""Templates render as Hugging Face's do, and a hostile one is stopped in time and memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuronserve.server.errors import CheckpointError, InvalidRequest, SettingsError
from neuronserve.server.text.chat_template import ChatTemplate, ChatTemplateError, TemplateInput, load_chat_template
from neuronserve.server.text.template_process import TemplateProcess

HELLO = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(TemplateInput(messages or HELLO, **options))


def test_blocks_leave_no_white_space() -> None:
    source = (
        "{{ bos_token }}\n{%- for m in messages %}\n  {% if loop.first %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}"
    )
    assert render(source) == "<s>hi\n"


def test_loop_controls_are_there() -> None:
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"


def test_json_is_plain() -> None:
    message = [{"role": "user", "content": {"a": "<é>"}}]
    assert render("{{ messages[0].content | tojson }}", message) == '{"a": "<é>"}'
    assert render("{{ messages[0].content | tojson(indent=1) }}", message) == '{\n "a": "<é>"\n}'


def test_the_time_can_be_asked_for() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


def test_a_template_can_refuse() -> None:
    with pytest.raises(ChatTemplateError, match="refused the messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_developer_is_system_to_a_template_that_does_not_know_it() -> None:
    message = [{"role": "developer", "content": "be kind"}]
    assert render("{{ messages[0].role }}", message) == "system"
    assert render("{% if messages[0].role == 'developer' %}{{ messages[0].role }}{% endif %}", message) == "developer"


def test_the_last_message_can_be_left_open() -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    messages = [*HELLO, {"role": "assistant", "content": "Well, "}]
    text = render(source, messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "[user]hi[end][assistant]Well,"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_the_sandbox_holds(attack: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"unsafe|undefined"):
        render(attack)


@pytest.fixture
def process() -> Iterator[list[TemplateProcess]]:
    started: list[TemplateProcess] = []
    yield started
    for one in started:
        one.close()


def test_the_process_renders_and_survives_a_refusal(process: list[TemplateProcess]) -> None:
    template = TemplateProcess(
        "{% if messages[0].content == 'no' %}{{ raise_exception('no!') }}{% endif %}{{ eos }}", {"eos": "é"}
    )
    process.append(template)
    template.start()
    pid = template.pid
    with pytest.raises(InvalidRequest, match="no!") as caught:
        template.render(TemplateInput([{"role": "user", "content": "no"}]))
    assert caught.value.param == "messages"
    assert template.render(TemplateInput(HELLO)) == "é"
    assert pid is not None
    assert template.pid == pid


@pytest.mark.parametrize(
    ("bomb", "complaint"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "took more than 0.5 s"),
        ("{{ 10 ** (10 ** (8 + messages | length)) }}", "took more than 0.5 s"),
        ("{{ 'a' * 10 ** 10 }}", "MemoryError"),
        (
            "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}"
            "{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "MemoryError|took more",
        ),
        ("{{ 'a' * (40000000 * messages | length) }}", "40000004 characters, more than the limit"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_bomb_costs_its_request_a_400_and_nobody_else(
    process: list[TemplateProcess], bomb: str, complaint: str
) -> None:
    source = "{% if messages[0].content == 'boom' %}" + bomb + "{% endif %}fine"
    # What is refused for its size is so however long a busy host takes.
    template = TemplateProcess(source, {}, timeout_s=0.5 if "took more" in complaint else 60.0)
    process.append(template)
    with pytest.raises(InvalidRequest, match=complaint):
        template.render(TemplateInput([{"role": "user", "content": "boom"}]))
    assert template.render(TemplateInput(HELLO)) == "fine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{% for %}", "cannot be compiled"),
        ("{{ 10 ** (10 ** 9) }}", "compiling the chat template took more than 2.5 s"),
    ],
)
def test_a_template_that_does_not_compile_stops_the_start(
    process: list[TemplateProcess], source: str, complaint: str
) -> None:
    template = TemplateProcess(source, {}, timeout_s=0.5)
    process.append(template)
    with pytest.raises(CheckpointError, match=complaint):
        template.start()


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
@pytest.mark.parametrize("ends", ["", "\n", "\n\n", "  ", "\n  "])
def test_a_template_of_its_own_for_tools_is_used_with_tools(
    tmp_path: Path, tools: list[dict[str, Any]] | None, ends: str
) -> None:
    default = ends + "{% for m in messages %}\n{{ m.content }}\n{% endfor %}" + ends
    tool_use = ends + "{%- for t in tools %}[{{ t.function.name }}]{% endfor -%}" + ends + "!" + ends
    config = {"chat_template": [{"name": "default", "template": default}, {"name": "tool_use", "template": tool_use}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    source = load_chat_template(tmp_path)
    assert source is not None
    assert render(source, tools=tools) == render(tool_use if tools else default, tools=tools)


def test_where_the_template_comes_from(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        json.dumps({"chat_template": [{"name": "x", "template": "X"}, {"name": "default", "template": "D"}]})
    )
    assert load_chat_template(tmp_path) == "D"
    config.write_text(json.dumps({"chat_template": "plain"}))
    assert load_chat_template(tmp_path) == "plain"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load_chat_template(tmp_path) == "file"
    assert load_chat_template(tmp_path, "{{ inline }}") == "{{ inline }}"
    assert load_chat_template(tmp_path, str(tmp_path / "chat_template.jinja")) == "file"
    with pytest.raises(SettingsError, match="--chat-template: cannot read"):
        load_chat_template(tmp_path, "/does/not/exist")
