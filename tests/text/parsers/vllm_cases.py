"""Outputs and the messages that vLLM reads in them, from its own tests of tool parsers.

Source: the project vLLM (github.com/vllm-project/vllm), tests/tool_parsers/test_{hermes,granite,phi4mini,mistral,
llama3_json,llama4_pythonic,pythonic,openai,qwen3coder}_tool_parser.py and test_qwen3_xml_coder_shared.py, under the
Apache License 2.0, copyright contributors to the vLLM project. Taken are the texts and what is expected of them; the
few that are left out look at vLLM's own objects, such as its grammars.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NamedTuple

from neuronserve.server.text.parsers.call_formats import ToolParserName

Calls = list[tuple[str, Any]]  # arguments parsed, or the text of what is no JSON


class Case(NamedTuple):
    """One output. `content` None: vLLM's test says nothing about it.

    `ours` and `ours_content` are what is read here on purpose, where that is something else, and `why` is the reason.
    """

    parser: ToolParserName
    name: str
    text: str
    calls: Calls
    content: str | None = None
    ours: Calls | None = None
    ours_content: str | None = None
    why: str = ""


hermes, granite, phi = partial(Case, "hermes"), partial(Case, "granite"), partial(Case, "phi4_mini_json")
mistral, llama, pythonic = partial(Case, "mistral"), partial(Case, "llama3_json"), partial(Case, "llama4_pythonic")
openai, qwen3 = partial(Case, "openai"), partial(Case, "qwen3_coder")
NOTHING_LOST = "text beside calls stays in the content, streamed or not"
AS_IT_COMES = "a call is sent on as it comes, and cannot be taken back when a later argument turns out broken"
FIRST_MARK = "a closing mark that nothing in the value has opened ends it, so that it can be streamed"

DALLAS = {"city": "Dallas", "state": "TX", "unit": "fahrenheit"}
SF = {"city": "San Francisco", "state": "CA", "unit": "celsius"}
TYPES = {
    "string_field": "hello",
    "int_field": 42,
    "float_field": 3.14,
    "bool_field": True,
    "null_field": None,
    "array_field": ["a", "b", "c"],
    "object_field": {"nested": "value"},
    "empty_array": [],
    "empty_object": {},
}
ESCAPED = {
    "quoted": 'He said "hello"',
    "path": "C:\\Users\\file.txt",
    "newline": "line1\nline2",
    "unicode": "emoji: \U0001f389",
}
ARRAY_FORMS: list[tuple[ToolParserName, str]] = [("granite", "<|tool_call|> "), ("granite", "<tool_call> ")]
ARRAY_FORMS += [("phi4_mini_json", "functools")]
PLAIN = "This is a regular response without any tool calls."
TOKYO = {"name": "get_weather", "arguments": {"city": "Tokyo"}}
ASIA = {"name": "get_time", "arguments": {"timezone": "Asia/Tokyo"}}


def call(name: str, arguments: Any, key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def arrays() -> list[Case]:
    """The forms that are an array behind a mark share their cases."""
    found: list[Case] = []
    for parser, mark in ARRAY_FORMS:
        both = [("get_weather", {"city": "Tokyo"}), ("get_time", {"timezone": "Asia/Tokyo"})]
        one = f"{mark}[{json.dumps(TOKYO)}]"
        found += [
            Case(parser, "no call", PLAIN, [], PLAIN),
            Case(parser, "one call", one, both[:1], ""),
            Case(parser, "parallel calls", f"{mark}[\n  {json.dumps(TOKYO)},\n  {json.dumps(ASIA)}\n]", both, ""),
            Case(parser, "all types", f"{mark}[{call('test_function', TYPES)}]", [("test_function", TYPES)]),
            Case(parser, "no arguments", f"{mark}[{call('refresh', {})}]", [("refresh", {})]),
            Case(parser, "text around", f"Let me check.\n{one}\nI'll get that.", both[:1]),
            Case(parser, "escapes", f"{mark}[{call('test_function', ESCAPED)}]", [("test_function", ESCAPED)]),
            Case(parser, "cut", f'{mark}[{{"name": "func", "arguments": {{', []),
        ]
    swapped = (
        '<|tool_call|> [{"arguments": {"city": "Tokyo"}, "name": "get_weather"}, '
        '{"arguments": {"timezone": "Asia/Tokyo"}, "name": "get_time"}]'
    )
    found += [
        granite("arguments before names", swapped, both),
        granite(
            "two calls in one piece",
            '<|tool_call|>[{"name": "get_weather", "arguments": {"x": 42}}, {"name": "b", "arguments": {"y": 7}}]',
            [("get_weather", {"x": 42}), ("b", {"y": 7})],
        ),
        granite("no array", '<|tool_call|> {"name": "func", "arguments": {}}', []),
        granite("no mark", '[{"name": "func", "arguments": "not a dict"}]', []),
        granite("no arguments and no mark", 'Some text [{"name": "func"}]', []),
        phi("no array", 'functools{"name": "func"}', []),
        phi("empty array", "functools[] This is just text", []),
        phi("no JSON", "functools[ This is just text ]", []),
    ]
    return found


FINAL = {"trigger": True}
CONFIG = {"param": "max_connections"}
BERLIN = {"location": "San Francisco, California, United States", "unit": "celsius"}
HERMES = [
    hermes(
        "text",
        "This is some prior text that has nothing to do with tool calling.",
        [],
        "This is some prior text that has nothing to do with tool calling.",
    ),
    hermes("between tags", f"<tool_call>\n{call('final_answer', FINAL)}\n</tool_call>", [("final_answer", FINAL)]),
    hermes("until the end", f"<tool_call>\n{call('final_answer', FINAL)}", [("final_answer", FINAL)]),
    hermes(
        "no blanks",
        f"<tool_call>{call('get_current_temperature', BERLIN)}</tool_call>",
        [("get_current_temperature", BERLIN)],
    ),
    hermes(
        "content first",
        f"Sure, let me check the weather.<tool_call>{call('w', {'city': 'NYC'})}</tool_call>",
        [("w", {"city": "NYC"})],
        "Sure, let me check the weather.",
    ),
    hermes(
        "several",
        "".join(f"<tool_call>{call('search', {'q': q})}</tool_call>" for q in ("cats", "dogs")),
        [("search", {"q": "cats"}), ("search", {"q": "dogs"})],
    ),
    hermes(
        "content and call in one piece", f"Hi!<tool_call>{call('f', {'x': 1})}</tool_call>", [("f", {"x": 1})], "Hi!"
    ),
    hermes(
        "brace missing",
        '<tool_call>\n{"name": "final_answer", "arguments": {"trigger": true}',
        [],
        ours=[("final_answer", FINAL)],
        ours_content="",
        why="its arguments are whole, and were sent on before the text ended",
    ),
    hermes(
        "serialized",
        f"<tool_call>\n{call('get_db_config', json.dumps(CONFIG))}\n</tool_call>",
        [("get_db_config", CONFIG)],
    ),
    *(
        hermes(f"a string: {text}", f"<tool_call>\n{call('do_thing', text)}\n</tool_call>", [("do_thing", text)])
        for text in ("hello", "{hello world}", "[oops", '{"a": 1} tail text')
    ),
]

ADD, WEATHER = {"a": 3.5, "b": 4}, "get_current_weather"
BASH = """bash{"command": "print(\\"hello world!\\")\\nre.compile(r'{}')"""
COMMAND = {"command": "print(\"hello world!\")\nre.compile(r'{}')"}
TWO = '[TOOL_CALLS] [{"name": "add", "arguments":{"a": 1}}][TOOL_CALLS] [{"name": "sub", "arguments":{"b": 2}}]'
MISTRAL = [
    mistral("text", "This is a test", [], "This is a test"),
    mistral("array without a blank", f"[TOOL_CALLS][{call('add', ADD)}]", [("add", ADD)], ""),
    mistral("array", f"[TOOL_CALLS] [{call(WEATHER, SF)}]", [(WEATHER, SF)], ""),
    mistral(
        "blanks", '[TOOL_CALLS]  [ {"name":"add" , "arguments" : {"a": 3, "b": 4} } ]', [("add", {"a": 3, "b": 4})], ""
    ),
    mistral(
        "texts as arguments",
        '[TOOL_CALLS] [{"name": "add", "arguments":{"a": "3", "b": "4"}}]',
        [("add", {"a": "3", "b": "4"})],
        "",
    ),
    mistral(
        "arguments first", f'[TOOL_CALLS] [{{"arguments":{json.dumps(SF)}, "name": "{WEATHER}"}}]', [(WEATHER, SF)], ""
    ),
    mistral(
        "a name in the arguments",
        '[TOOL_CALLS] [{"arguments":{"name": "John Doe"}, "name": "get_age"}]',
        [("get_age", {"name": "John Doe"})],
        "",
    ),
    mistral(
        "two in an array", f"[TOOL_CALLS] [{call('add', ADD)}, {call(WEATHER, SF)}]", [("add", ADD), (WEATHER, SF)], ""
    ),
    mistral(
        "content first",
        'Hello[TOOL_CALLS] [{"name": "add", "arguments":{"a": 1, "b": 2}}]',
        [("add", {"a": 1, "b": 2})],
        "Hello",
    ),
    mistral(
        "text after it",
        f"[TOOL_CALLS] [{call(WEATHER, DALLAS)}]\nextra trailing data",
        [(WEATHER, DALLAS)],
        "",
        ours=[(WEATHER, DALLAS)],
        ours_content="extra trailing data",
        why=NOTHING_LOST,
    ),
    mistral(
        "two arrays",
        TWO,
        [],
        ours=[("add", {"a": 1}), ("sub", {"b": 2})],
        ours_content="",
        why="vLLM fails the request; both calls can be read",
    ),
    mistral(
        "text in front of the array",
        '[TOOL_CALLS]  junk [{"name": "add", "arguments":{"a": 1, "b": 2}}] trail',
        [("add", {"a": 1, "b": 2})],
    ),
    mistral(
        "no JSON",
        "[TOOL_CALLS] not json at all",
        [],
        "not json at all",
        ours=[],
        ours_content="[TOOL_CALLS] not json at all",
        why="what is no call stays as it is, marks included",
    ),
    mistral("name", f"[TOOL_CALLS]add_this_and_that{json.dumps(ADD)}", [("add_this_and_that", ADD)], ""),
    mistral("name of another", f"[TOOL_CALLS]{WEATHER}{json.dumps(SF)}", [(WEATHER, SF)], ""),
    mistral(
        "two names",
        f"[TOOL_CALLS]add{json.dumps(ADD)}[TOOL_CALLS]{WEATHER}{json.dumps(SF)}",
        [("add", ADD), (WEATHER, SF)],
        "",
    ),
    mistral("content before a name", f"bla[TOOL_CALLS]add{json.dumps(ADD)}", [("add", ADD)], "bla"),
    mistral("cut in a text", f"hi{{hi[TOOL_CALLS]{BASH}", [("bash", json.dumps(COMMAND)[:-2])], "hi{hi"),
    mistral("brackets in a text", f'hi{{hi[TOOL_CALLS]{BASH}"}}', [("bash", COMMAND)], "hi{hi"),
    mistral(
        "name alone",
        "[TOOL_CALLS]toolname_no_args",
        [],
        "",
        ours=[],
        ours_content="[TOOL_CALLS]toolname_no_args",
        why="what is no call stays as it is, marks included",
    ),
]

S1, S2 = ("searchTool", {"query": "test1"}), ("searchTool", {"query": "test2"})
OPEN_INCIDENTS: tuple[str, Any] = ("getOpenIncidentsTool", {})
DEEP = {"level1": {"level2": {"level3": {"level4": {"value": "deep"}}}}}
POOL = {"config": {"database": {"connection": {"pool": {"size": 10}}}}}
BRACKETS = {"query": "test {value} [complex]", "nested": {"inner": "more {brackets}"}}


def lama(*calls: tuple[str, Any], between: str = "; ") -> str:
    return between.join(call(name, arguments, "parameters") for name, arguments in calls)


LLAMA = [
    llama(
        "text around",
        f"Here is the result: {lama(OPEN_INCIDENTS)} Would you like to know more?",
        [OPEN_INCIDENTS],
        "",
        ours=[OPEN_INCIDENTS],
        ours_content="Here is the result:  Would you like to know more?",
        why=NOTHING_LOST,
    ),
    llama(
        "arguments",
        '{"name": "searchTool", "parameters": {"query": "test query", "limit": 10}}',
        [("searchTool", {"query": "test query", "limit": 10})],
    ),
    llama(
        "no JSON", "This is just some text without any tool calls", [], "This is just some text without any tool calls"
    ),
    llama(
        "broken JSON",
        '{"name": "invalidTool", "parameters": {invalid json}',
        [],
        '{"name": "invalidTool", "parameters": {invalid json}',
    ),
    llama("key arguments", call("searchTool", {"query": "test"}), [("searchTool", {"query": "test"})]),
    llama("several", lama(S1, OPEN_INCIDENTS, S2), [S1, OPEN_INCIDENTS, S2]),
    llama("several with blanks", lama(S1, OPEN_INCIDENTS, S2, between=" ; "), [S1, OPEN_INCIDENTS, S2]),
    llama(
        "several in text",
        f"Here are the results: {lama(S1, OPEN_INCIDENTS, S2)} Would you like more?",
        [S1, OPEN_INCIDENTS, S2],
    ),
    *(
        llama(f"between them {sign!r}", lama(S1, OPEN_INCIDENTS, between=sign), [S1, OPEN_INCIDENTS])
        for sign in ("; ", ";", ";\n", "\n")
    ),
    llama("deep", lama(("complexTool", DEEP)), [("complexTool", DEEP)]),
    llama(
        "several deep",
        lama(("simpleTool", {"value": "test"}), ("complexTool", POOL)),
        [("simpleTool", {"value": "test"}), ("complexTool", POOL)],
    ),
    llama("brackets in texts", lama(("searchTool", BRACKETS)), [("searchTool", BRACKETS)]),
    llama(
        "quotes in texts",
        lama(("parserTool", {"text": 'He said "Hello {world}"'})),
        [("parserTool", {"text": 'He said "Hello {world}"'})],
    ),
    llama("no name", '{"parameters": {}}', [], '{"parameters": {}}'),
    llama("no arguments", '{"name": "toolWithoutParams"}', [], '{"name": "toolWithoutParams"}'),
    llama("brace after it", f"{lama(S1)} I used {{searchTool}} for this.", [S1]),
    llama("JSON after it", f'{lama(S1)} The arguments I passed were {{"query": "test"}}', [S1]),
    llama("odd text", "{hello world[A(A=" + "\t)A(A=,\t" * 2, [], "{hello world[A(A=" + "\t)A(A=,\t" * 2),
]

LA = "get_weather(city='LA', metric='C')"
LA_CALL = ("get_weather", {"city": "LA", "metric": "C"})
USER = (
    "register_user(name='Doe', age=9, address={'city': 'LA', 'state': 'CA'}, role=None, passed_test=True, "
    "aliases=['John', 'Johnny'])"
)
USER_CALL = (
    "register_user",
    {
        "name": "Doe",
        "age": 9,
        "address": {"city": "LA", "state": "CA"},
        "role": None,
        "passed_test": True,
        "aliases": ["John", "Johnny"],
    },
)
QUOTED = r"get_weather(city='Martha\'s Vineyard', metric='\"cool units\"')"
QUOTED_CALL = ("get_weather", {"city": "Martha's Vineyard", "metric": '"cool units"'})
STEPS = ("do_something_cool", {"steps": []})
HELP = "How can I help you today?"
UNQUOTED = "[f(a='x 'y' 'z), g(b='p 'q' 'r)]"
PYTHONIC = [
    pythonic("text", HELP, [], HELP),
    pythonic("one call", f"[{LA}]", [LA_CALL], ""),
    pythonic("all types", f"[{USER}]", [USER_CALL], ""),
    pythonic("no parameters", "[get_weather()]", [("get_weather", {})], ""),
    pythonic(
        "empty dict", "[do_something_cool(additional_data={})]", [("do_something_cool", {"additional_data": {}})], ""
    ),
    pythonic("empty list", "[do_something_cool(steps=[])]", [STEPS], ""),
    pythonic("escapes", f"[{QUOTED}]", [QUOTED_CALL], ""),
    pythonic("two calls", f"[{LA}, {USER}]", [LA_CALL, USER_CALL], ""),
    pythonic(
        "two calls without blanks",
        "[get_weather(city='LA',metric='C'),register_user(name='Doe',age=9)]",
        [LA_CALL, ("register_user", {"name": "Doe", "age": 9})],
        "",
    ),
    pythonic("marks", f"<|python_start|>[{LA}]<|python_end|>", [LA_CALL], ""),
    pythonic(
        "mark and two calls",
        f"<|python_start|>[{LA},register_user(name='Doe', age=9)]",
        [LA_CALL, ("register_user", {"name": "Doe", "age": 9})],
        "",
    ),
    pythonic(
        "three calls in one piece",
        f"<|python_start|>[{LA}, get_weather(), do_something_cool(steps=[])]<|python_end|>",
        [LA_CALL, ("get_weather", {}), STEPS],
        "",
    ),
    pythonic("a bad call first", f"[bad(x=b'z'), {LA}]", [LA_CALL]),
    pythonic("a bad call first, in marks", f"<|python_start|>[bad(x=b'z'), {LA}]<|python_end|>", [LA_CALL]),
    pythonic(
        "a number that is none",
        f"[calc(x=1e999), {LA}]",
        [LA_CALL],
        ours=[("calc", {"x": float("inf")}), LA_CALL],
        ours_content="",
        why="1e999 is a number of JSON, whatever a client's type makes of it",
    ),
    pythonic("odd text", "hello world[A(A=" + "\t)A(A=,\t" * 2, [], "hello world[A(A=" + "\t)A(A=,\t" * 2),
    pythonic(
        "a bad call behind a good one",
        f"[{LA}, f(a='x 'y', b='z')]",
        [LA_CALL],
        ours=[LA_CALL, ("f", '{"a": "x "')],
        ours_content="y', b='z')]",
        why=AS_IT_COMES,
    ),
    pythonic(
        "quotes that do not match",
        UNQUOTED,
        [],
        UNQUOTED,
        ours=[("f", '{"a": "x "')],
        ours_content="y' 'z), g(b='p 'q' 'r)]",
        why=AS_IT_COMES,
    ),
    pythonic(
        "brackets that do not match", "[foo(x=1])]", [], ours=[("foo", '{"x": 1')], ours_content="])]", why=AS_IT_COMES
    ),
]

ANALYSIS = "<|channel|>analysis<|message|>User asks about the weather.<|end|><|start|>assistant"


def harmony(name: str, arguments: str, content_type: str = " <|constrain|>json") -> str:
    return f"<|channel|>commentary to=functions.{name}{content_type}<|message|>{arguments}<|call|>"


IN_TOKYO = '{"location": "Tokyo"}'
MANY = [
    ("get_current_weather", IN_TOKYO, " <|constrain|>json"),
    ("get_user_location", IN_TOKYO, " <|constrain|>json"),
    ("no_content_type", IN_TOKYO, ""),
    ("not_json_no_content_type", "foo", ""),
    ("empty_args", "{}", " <|constrain|>json"),
]
HARMONY = [
    openai("text", "<|channel|>final<|message|>This is a test<|return|>", [], "This is a test"),
    *(
        openai(
            f"one call {text!r}",
            ANALYSIS + harmony("get_current_weather", text),
            [("get_current_weather", {"location": "Tokyo"})],
            "",
        )
        for text in (IN_TOKYO, '{\n"location": "Tokyo"\n}')
    ),
    openai(
        "several",
        ANALYSIS + "<|start|>assistant".join(harmony(*each) for each in MANY),
        [(name, text if text == "foo" else json.loads(text)) for name, text, _ in MANY],
        "",
    ),
    openai(
        "no arguments",
        harmony("no_args", ""),
        [("no_args", "")],
        "",
        ours=[("no_args", {})],
        ours_content="",
        why="arguments are JSON where the model wrote none",
    ),
    openai(
        "content",
        ANALYSIS
        + harmony("get_current_weather", IN_TOKYO)
        + "<|start|>assistant<|channel|>final<|message|>This tool call will get the weather.<|return|>",
        [("get_current_weather", {"location": "Tokyo"})],
        "This tool call will get the weather.",
    ),
]


def qwen(name: str, tail: str = "\n</function>\n</tool_call>", /, **values: str) -> str:
    parameters = "".join(f"\n<parameter={key}>\n{value}\n</parameter>" for key, value in values.items())
    return f"<tool_call>\n<function={name}>{parameters}{tail}"


AREA = {"shape": "rectangle", "dimensions": {"width": 10, "height": 20}, "precision": 2}
AREA_TEXT = qwen("calculate_area", shape="rectangle", dimensions='{"width": 10, \n "height": 20}', precision="2")
UNCLOSED = qwen("get_current_weather", **DALLAS).replace("Dallas\n</parameter>", "Dallas")
TYPED = {
    "int_param": 42,
    "float_param": 3.14,
    "bool_param": True,
    "str_param": "hello world",
    "obj_param": {"key": "value"},
}
TYPED_TEXT = qwen(
    "test_types",
    int_param="42",
    float_param="3.14",
    bool_param="true",
    str_param="hello world",
    obj_param='{"key": "value"}',
)
EITHER = {
    "anyof_int": 5,
    "anyof_str": "hello",
    "anyof_array": ["a", "b", "c"],
    "anyof_obj": {"key": "value"},
    "type_as_array": 42,
    "multi_non_null": "some text",
}
EITHER_TEXT = qwen(
    "test_anyof",
    anyof_int="5",
    anyof_str="hello",
    anyof_array='["a", "b", "c"]',
    anyof_obj='{"key": "value"}',
    type_as_array="42",
    multi_non_null="some text",
)
RECORD = {"key": "value", "count": 42}
PARIS, LONDON = ("get_weather", {"city": "Paris"}), ("get_weather", {"city": "London"})
CITIES = f"{qwen('get_weather', city='Paris')}\n{qwen('get_weather', city='London')}"
NO_BRACKET = "<tool_call>\n<function=bad_func_no_gt\n</function>\n</tool_call>\n"
JINJA = (
    "<tool_call>\n<function={{ tc.name }}>\n<parameter={{ k }}>\n{{ v }}\n</parameter>\n</function>\n</tool_call>\n\n"
)
IN_QUOTES = '"<tool_call>\\n",\n"<parameter=query>\\n",\n"\\n</parameter>\\n",\n"</function>\\n",'
IN_LINES = 'T = """\n</parameter>\n<parameter=new_string>\n#!/usr/bin/env python3\n</parameter>\n"""'
IN_CALL = f'doc = """\n{qwen("write_file", path="literal/value.txt", content="hello")}\n"""'
IN_NAME = 'doc = """\n<parameter=path>\nliteral/value\n</parameter>\n"""'


def written(content: str) -> Calls:
    return [("write_file", {"path": "a.py", "content": content})]


QWEN = [
    qwen3(
        "text", "This is a test response without any tool calls", [], "This is a test response without any tool calls"
    ),
    qwen3("one call", qwen("get_current_weather", **DALLAS), [("get_current_weather", DALLAS)], ""),
    qwen3(
        "content first",
        "Sure! Let me check the weather for you." + qwen("get_current_weather", **DALLAS),
        [("get_current_weather", DALLAS)],
        "Sure! Let me check the weather for you.",
    ),
    qwen3("a value of two lines", AREA_TEXT, [("calculate_area", AREA)], ""),
    qwen3(
        "two calls",
        qwen("get_current_weather", **DALLAS) + "\n" + qwen("get_current_weather", **SF),
        [("get_current_weather", DALLAS), ("get_current_weather", SF)],
        "",
    ),
    qwen3("types", TYPED_TEXT, [("test_types", TYPED)]),
    qwen3("types of unions", EITHER_TEXT, [("test_anyof", EITHER)]),
    qwen3(
        "no tags",
        qwen("get_current_weather", "\n</function>", city="Dallas", state="TX")[12:],
        [("get_current_weather", {"city": "Dallas", "state": "TX"})],
    ),
    qwen3(
        "no opening tag",
        "I'll check the weather for you.\n\n" + qwen("get_current_weather", **DALLAS)[12:],
        [("get_current_weather", DALLAS)],
        "I'll check the weather for you.",
    ),
    qwen3(
        "a value that is not closed",
        f"Let me check the weather for you:\n{UNCLOSED}",
        [("get_current_weather", DALLAS)],
        "Let me check the weather for you:",
    ),
    qwen3(
        "no bracket",
        "<tool_call>\n<function=get_current_weather\n<parameter=city>Dallas</parameter>\n</function>\n</tool_call>",
        [],
    ),
    qwen3(
        "no bracket, and a call",
        f"{NO_BRACKET}<tool_call>\n<function=get_current_weather>\n<parameter=city>Dallas</parameter>\n"
        "<parameter=state>TX</parameter>\n</function>\n</tool_call>",
        [("get_current_weather", {"city": "Dallas", "state": "TX"})],
    ),
    qwen3(
        "an object or null",
        "<tool_call>\n<function=update_record>\n"
        f"<parameter=data>{json.dumps(RECORD)}</parameter>\n</function>\n</tool_call>",
        [("update_record", {"data": RECORD})],
    ),
    qwen3(
        "a value on one line",
        "<tool_call>\n<function=greet>\n<parameter=message>hello world</parameter>\n</function>\n</tool_call>",
        [("greet", {"message": "hello world"})],
    ),
    qwen3(
        "single quotes",
        qwen("test_types", obj_param="{'key': 'value'}"),
        [("test_types", {"obj_param": {"key": "value"}})],
    ),
    qwen3("null as a text", qwen("greet", message="null"), [("greet", {"message": "null"})]),
    qwen3("a number as a text or null", qwen("test_anyof", anyof_str="42"), [("test_anyof", {"anyof_str": "42"})]),
    qwen3("a number or null", qwen("test_anyof", anyof_int="42"), [("test_anyof", {"anyof_int": 42})]),
    qwen3("Python's None", qwen("test_anyof", anyof_int="None"), [("test_anyof", {"anyof_int": None})]),
    qwen3(
        "an object in a string",
        qwen("test_types", str_param="hello", obj_param="\"{'key': 'v', 'n': 1}\""),
        [("test_types", {"str_param": "hello", "obj_param": {"key": "v", "n": 1}})],
    ),
    qwen3(
        "JSON's constants in a list",
        qwen("test_anyof", anyof_array='["a", "b", 1, true]'),
        [("test_anyof", {"anyof_array": ["a", "b", 1, True]})],
    ),
    qwen3("two calls in one piece", CITIES, [PARIS, LONDON]),
    qwen3("text after two calls", f"{CITIES}\nAll done!", [PARIS, LONDON], "All done!"),
    qwen3(
        "text after a call", f"{qwen('get_weather', city='Paris')}\nI hope this helps!", [PARIS], "I hope this helps!"
    ),
    qwen3(
        "a template that was not rendered", JINJA + qwen("write_file", path="a.py", content="hello"), written("hello")
    ),
    qwen3(
        "tags without a call",
        "I'll show: <tool_call>example</tool_call>. Now real:\n" + qwen("greet", message="hi"),
        [("greet", {"message": "hi"})],
        "I'll show: <tool_call>example</tool_call>. Now real:",
    ),
    qwen3("marks in a value", qwen("write_file", path="a.py", content=IN_QUOTES), written(IN_QUOTES)),
    qwen3(
        "lines of marks in a value",
        qwen("write_file", path="a.py", content=IN_LINES),
        written(IN_LINES),
        ours=[("write_file", {"path": "a.py", "content": 'T = """', "new_string": "#!/usr/bin/env python3"})],
        why=FIRST_MARK,
    ),
    qwen3("a name of a parameter in a value", qwen("write_file", path="a.py", content=IN_NAME), written(IN_NAME)),
    qwen3("a whole call in a value", qwen("write_file", path="a.py", content=IN_CALL), written(IN_CALL)),
]

CASES = [*HERMES, *arrays(), *MISTRAL, *LLAMA, *PYTHONIC, *HARMONY, *QWEN]
TEXT_OR_NULL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


def properties(**kinds: Any) -> dict[str, Any]:
    given = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in kinds.items()}
    return {"type": "object", "properties": given}


def either(*kinds: str) -> dict[str, Any]:
    return {"anyOf": [{"type": kind} for kind in kinds]}


# Functions with parameters that have types; any other that a case calls has none.
FUNCTIONS: dict[str, dict[str, Any]] = {
    "get_current_weather": properties(city="string", state="string", unit="string"),
    "calculate_area": properties(shape="string", dimensions="object", precision="integer"),
    "test_types": properties(
        int_param="integer", float_param="float", bool_param="boolean", str_param="string", obj_param="object"
    ),
    "test_anyof": properties(
        anyof_int=either("integer", "null"),
        anyof_str=TEXT_OR_NULL,
        anyof_array=either("array", "null"),
        anyof_obj=either("object", "null"),
        type_as_array={"type": ["integer", "null"]},
        multi_non_null=either("string", "integer", "null"),
    ),
    "update_record": properties(data=either("object", "null")),
    "greet": properties(message="string"),
    "write_file": properties(path="string", content="string"),
    "get_weather": properties(city="string"),
    "bad": properties(),
    "calc": properties(),
    "f": properties(),
    "g": properties(),
    "foo": properties(),
    "invalidTool": properties(),
}
