"""Outputs and the messages that vLLM reads in them, of the forms whose calls stand between marks.

Source: the project vLLM (github.com/vllm-project/vllm), tests/tool_parsers/test_{glm4_moe,deepseekv32,gemma4,olmo3,
hunyuan_a13b}_tool_parser.py, under the Apache License 2.0, copyright contributors to the vLLM project. Taken are the
texts and what is expected of them.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from tests.text.parsers.vllm_cases import DALLAS, NOTHING_LOST, PLAIN, Case, properties

glm, dsml, gemma = partial(Case, "glm45"), partial(Case, "deepseek_v32"), partial(Case, "gemma4")
olmo, hunyuan = partial(Case, "olmo3"), partial(Case, "hunyuan_a13b")
AS_IT_COMES = "a call is sent on as it comes, so one that breaks off has been sent"


def of_glm(name: str, **values: str) -> str:
    inner = "\n".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>" for key, value in values.items())
    return f"<tool_call>{name}\n{inner}\n</tool_call>"


WEATHER = {"city": "Beijing", "date": "2025-08-01"}
SHANGHAI = {"city": "Shanghai", "date": "2025-08-01"}
ORLANDO = {"city": "Orlando", "state": "FL", "unit": "fahrenheit"}
GLM = [
    glm("no call", "This is a test", [], "This is a test"),
    glm("one call", of_glm("get_current_weather", **DALLAS), [("get_current_weather", DALLAS)], ""),
    glm(
        "two calls",
        f"{of_glm('get_current_weather', **DALLAS)}\n{of_glm('get_current_weather', **ORLANDO)}",
        [("get_current_weather", DALLAS), ("get_current_weather", ORLANDO)],
    ),
    glm(
        "text before", f"I will help you get the weather.{of_glm('get_weather', **WEATHER)}", [("get_weather", WEATHER)]
    ),
    glm("no arguments", "<tool_call>get_current_time\n</tool_call>", [("get_current_time", {})]),
    glm(
        "text between",
        f"I will help.\n\n{of_glm('get_weather', **WEATHER)}\n\nmeaningwhile.\n\n{of_glm('get_weather', **SHANGHAI)}",
        [("get_weather", WEATHER), ("get_weather", SHANGHAI)],
        "I will help.\n\n",
        ours=[("get_weather", WEATHER), ("get_weather", SHANGHAI)],
        ours_content="I will help.\n\nmeaningwhile.",
        why=NOTHING_LOST,
    ),
    glm(
        "cut",
        of_glm("get_weather", **WEATHER).removesuffix("\n</tool_call>"),
        [],
        ours=[("get_weather", '{"city": "Beijing", "date": "2025-08-01"')],
        why=AS_IT_COMES,
    ),
]


def of_dsml(name: str, *parameters: tuple[str, bool, str]) -> str:
    inner = "".join(
        f'<｜DSML｜parameter name="{key}" string="{json.dumps(is_text)}">{value}</｜DSML｜parameter>\n'
        for key, is_text, value in parameters
    )
    return f'<｜DSML｜invoke name="{name}">\n{inner}</｜DSML｜invoke>\n'


def in_block(*calls: str) -> str:
    return f"<｜DSML｜function_calls>\n{''.join(calls)}</｜DSML｜function_calls>"


SAN, NEW = of_dsml("get_place", ("location", True, "SF")), of_dsml("get_place", ("location", True, "NYC"))
PATCHES = [{"op": "replace", "path": "/schedule", "value": "quiet"}]
DSML = [
    dsml("no call", "just some text", [], "just some text"),
    dsml("no arguments", in_block(of_dsml("get_time")), [("get_time", {})], ""),
    dsml("two calls", in_block(SAN, NEW), [("get_place", {"location": "SF"}), ("get_place", {"location": "NYC"})]),
    dsml("text before", "Sure, let me check! " + in_block(NEW), [("get_place", {"location": "NYC"})]),
    dsml(
        "types of the schema",
        in_block(of_dsml("toggle", ("enabled", False, "true"), ("count", False, "42"))),
        [("toggle", {"enabled": True, "count": 42})],
    ),
    dsml("text that is a number", in_block(of_dsml("toggle", ("count", True, "42"))), [("toggle", {"count": 42})]),
    dsml(
        "objects and arrays",
        in_block(of_dsml("set_timer", ("wait", False, '{"type":"for"}'), ("patches", False, json.dumps(PATCHES)))),
        [("set_timer", {"wait": {"type": "for"}, "patches": PATCHES})],
    ),
]


def of_gemma(text: str) -> str:
    return f"<|tool_call>call:{text}<tool_call|>".replace("'", '<|"|>')


GEMMA: list[Case] = [
    gemma("no call", PLAIN, [], PLAIN),
    gemma("one call", of_gemma("get_weather{location:'London'}"), [("get_weather", {"location": "London"})], ""),
    gemma("comma in text", of_gemma("f{location:'Paris, France'}"), [("f", {"location": "Paris, France"})]),
    gemma(
        "numbers and constants",
        of_gemma("set_status{is_active:true,count:42,score:3.14,none:null}"),
        [("set_status", {"is_active": True, "count": 42, "score": 3.14, "none": None})],
    ),
    gemma(
        "nested",
        of_gemma("complex_function{nested:{inner:'value'},list:['a','b']}"),
        [("complex_function", {"nested": {"inner": "value"}, "list": ["a", "b"]})],
    ),
    gemma(
        "keys between marks",
        of_gemma("f{outer:{inner:{'3':'new text'}}}"),
        [("f", {"outer": {"inner": {"3": "new text"}}})],
    ),
    gemma("bracket in text", of_gemma("f{a:[['a]b','c'],'tail']}"), [("f", {"a": [["a]b", "c"], "tail"]})]),
    gemma("empty value", of_gemma("f{key:}"), [("f", {"key": ""})]),
    gemma("dot and hyphen", of_gemma("weather.get-it{}"), [("weather.get-it", {})]),
    gemma(
        "cut",
        '<|tool_call>call:get_weather{location:<|"|>London',
        [],
        ours=[("get_weather", '{"location": "London')],
        why=AS_IT_COMES,
    ),
]
USER: dict[str, Any] = {
    "name": "John Doe",
    "age": 37,
    "address": {"city": "San Francisco", "state": "CA"},
    "role": None,
    "passed_test": True,
    "aliases": ["John", "Johnny"],
}
SIMPLE = ("get_weather", {"city": "San Francisco", "metric": "celsius"})
SIMPLE_TEXT = "get_weather(city='San Francisco', metric='celsius')"
USER_TEXT = "register_user(" + ", ".join(f"{key}={value!r}" for key, value in USER.items()) + ")"
OLMO = [
    olmo("no call", "How can I help you today?", [], "How can I help you today?"),
    *(
        olmo(name, f"<function_calls>{text}</function_calls>", calls, "")
        for name, text, calls in (
            ("one call", SIMPLE_TEXT, [SIMPLE]),
            ("types", USER_TEXT, [("register_user", USER)]),
            ("constants of JSON", USER_TEXT.replace("None", "null").replace("True", "true"), [("register_user", USER)]),
            ("no arguments", "get_weather()", [("get_weather", {})]),
            ("empty list", "do_it(steps=[])", [("do_it", {"steps": []})]),
            ("two calls", f"{SIMPLE_TEXT}\n{USER_TEXT}", [SIMPLE, ("register_user", USER)]),
        )
    ),
]
ARRAY = [{"name": "get_weather", "arguments": SIMPLE[1]}, {"name": "register_user", "arguments": USER}]
LEVELS = {"level1": {"level2": {"level3": {"value": 123}}}}
HUNYUAN = [
    hunyuan("no call", PLAIN, [], PLAIN),
    hunyuan("two calls", f"<tool_calls>{json.dumps(ARRAY)}</tool_calls>", [SIMPLE, ("register_user", USER)], ""),
    hunyuan(
        "text before",
        'I will call the tool now. <tool_calls>[{"name": "get_weather", "arguments": {"city": "Boston"}}]</tool_calls>',
        [("get_weather", {"city": "Boston"})],
    ),
    hunyuan(
        "nested",
        f"<tool_calls>{json.dumps([{'name': 'complex_tool', 'arguments': LEVELS}])}</tool_calls>",
        [("complex_tool", LEVELS)],
    ),
    hunyuan(
        "no arguments",
        '<tool_calls>[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": 42}}]</tool_calls>',
        [("a", {}), ("b", {"x": 42})],
    ),
]
CASES = [*GLM, *DSML, *GEMMA, *OLMO, *HUNYUAN]
FUNCTIONS: dict[str, dict[str, Any]] = {
    "toggle": properties(enabled="boolean", count="integer"),
    "set_timer": properties(wait={"anyOf": [{"type": "object"}]}, patches="array"),
}
