"""Parsers of a chat template, by excerpts of the families' published templates."""

from __future__ import annotations

import subprocess
import sys

import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.text.chat_template import load_chat_template
from neuronserve.server.text.parsers.formats import parsers_for

HERMES = "For each call, return a json object within XML tags:\\n<tool_call>\\n{...}\\n</tool_call>"
TEMPLATES: list[tuple[str, tuple[str, str]]] = [
    ("", ("none", "none")),
    ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}", ("none", "none")),
    (HERMES, ("hermes", "none")),
    (HERMES + "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}", ("hermes", "qwen3")),
    ("'<tool_call>\\n<function=' + name + '>\\n' '<parameter=' + key + '>\\n'", ("qwen3_coder", "none")),
    ("<tool_call> <function= <parameter= {{ '<think>\\n' }}", ("qwen3_coder", "qwen3")),
    ("{{ '<｜Assistant｜>' }}{% set content = content.split('</think>')[-1] %}", ("none", "deepseek_r1")),
    ("<|start_of_role|>assistant<|end_of_role|><|tool_call|>", ("granite", "none")),
    ("<|start_of_role|> <|tool_call|> Here is my thought process: ... Here is my response:", ("granite", "granite")),
    ("<|start_of_role|>assistant <tool_call>{...}</tool_call>", ("hermes", "none")),
    ("<|tool_call|><|start_of_role|> <think></think> <response></response>", ("granite", "granite_3_3")),
    ("<tool_call>name\n<arg_key>key</arg_key>\n<arg_value>", ("glm45", "none")),
    ("<tool_call>name<arg_key>key</arg_key><arg_value> <think>", ("glm47", "qwen3")),
    ("<seed:tool_call> <function=f> <parameter=p> <seed:think>", ("seed_oss", "seed_oss")),
    ("<minimax:tool_call> <invoke name= <think> <response>", ("minimax_m2", "qwen3")),
    ("<｜tool▁call▁begin｜> ```json <｜Assistant｜> </think>", ("deepseek_v3", "deepseek_r1")),
    ("<｜tool▁call▁begin｜> <｜tool▁sep｜> <｜Assistant｜> <think></think>", ("deepseek_v31", "deepseek_r1")),
    (
        "{%- set dsml_token = '｜DSML｜' -%} 'parameter name=\"' <｜Assistant｜> </think>",
        ("deepseek_v32", "deepseek_r1"),
    ),
    ("<|tool_calls_section_begin|><|tool_call_begin|><|tool_call_argument_begin|>", ("kimi_k2", "none")),
    ("'<|tool_call>call:' + name '<|channel>thought\n<channel|>'", ("gemma4", "gemma4")),
    ("List of tools: <|tool_list_start|>[", ("lfm2", "none")),
    ('<TOOLCALL>[{{"name": "tool_name1" <think>', ("nemotron_json", "qwen3")),
    ("<tool_calls>[{...}]</tool_calls> <think> <answer> </answer>", ("hunyuan_a13b", "hunyuan_a13b")),
    ("set cls_token <tool_call> <think> <response> </response>", ("hermes", "ernie45")),
    ("<function_calls></function_calls> <think>", ("olmo3", "qwen3")),
    ("<tool_calls>\n{...}\n</tool_calls>", ("none", "none")),  # MiniMax-M1
    ("formatted as functools[{'name': ...}, ...]", ("phi4_mini_json", "none")),
    ("{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}", ("phi4_mini_json", "none")),
    ('{{- "[TOOL_CALLS] [" }}{{- tool_call.function|tojson }}', ("mistral_array", "none")),
    ('{{- "[TOOL_CALLS]" + name + "[ARGS]" + arguments }}', ("mistral", "none")),
    ("[TOOL_CALLS] [ARGS] [THINK] [/THINK]", ("mistral", "mistral")),
    ('{"name": function name, "parameters": dictionary of argument name and its value}', ("llama3_json", "none")),
    ('"parameters": dictionary of argument name and its value <|python_start|>', ("llama3_json", "none")),
    ("[func_name1(param1=value1, param2=value2), func_name2(...)] <|header_start|>", ("llama4_pythonic", "none")),
    ("[func_name1(params_name1=params_value1...), func_name2(params)] <start_of_turn>", ("llama4_pythonic", "none")),
    ("wrapped in ```tool_code", ("gemma", "none")),
    ("<|start|>assistant<|channel|>analysis<|message|> ... commentary to=functions.", ("openai", "openai_gptoss")),
]


@pytest.mark.parametrize(("template", "expected"), TEMPLATES, ids=lambda value: str(value)[:60])
def test_a_template_decides(template: str, expected: tuple[str, str]) -> None:
    assert parsers_for(template) == expected


def test_a_model_without_a_template_has_none() -> None:
    assert parsers_for(None) == ("none", "none")


def test_the_default_model_writes_hermes() -> None:
    assert parsers_for(load_chat_template(DEFAULT_MODEL)) == ("hermes", "none")


def test_asking_is_cheap() -> None:
    """A command that only lists models loads no server, no tokenizer and no grammar for it."""
    code = (
        "import sys, neuronserve.server.text.parsers.formats\n"
        "print([name for name in sys.modules if name.split('.')[0] in "
        "{'numpy', 'tokenizers', 'llguidance', 'fastapi', 'pydantic', 'jinja2', 'msgspec'}])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
