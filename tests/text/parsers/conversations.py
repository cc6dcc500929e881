"""Golden outputs of each family: the text as its models write it, and the message that it is."""

from __future__ import annotations

import json
from typing import NamedTuple

from tests.text.parsers.reading import Form


class Golden(NamedTuple):
    text: str
    form: Form
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, object], ...] = ()  # the arguments parsed, or as text where they are no JSON


OSLO: dict[str, object] = {"city": "Oslo", "days": 3}
ODD: dict[str, object] = {"city": 'O\'s "{lo}" </tool_call> [TOOL_CALLS]\n\\ é \U0001f600', "tags": ["]", "}", ";"]}
ONE, BOTH = (("f", OSLO),), (("f", OSLO), ("g", {}))


def objects(*calls: tuple[str, object], key: str = "arguments") -> list[str]:
    return [json.dumps({"name": name, key: arguments}, ensure_ascii=False) for name, arguments in calls]


F, G = objects(*BOTH)
ODD_CALL = objects(("f", ODD))[0]
LAMA_F, LAMA_G = objects(*BOTH, key="parameters")
CUT = '{"name": "f", "arguments": {"city": "Os'

HERMES, GRANITE, PHI = Form("hermes"), Form("granite"), Form("phi4_mini_json")
MISTRAL, LLAMA, PYTHON, GEMMA = Form("mistral"), Form("llama3_json"), Form("llama4_pythonic"), Form("gemma")
QWEN, HARMONY = Form("qwen3_coder"), Form("openai", "openai_gptoss")
JSON_CALLS = [
    Golden(f"<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{G}\n</tool_call>", HERMES, calls=BOTH),
    Golden(f"<tool_call>{CUT}", HERMES, calls=(("f", '{"city": "Os'),)),
    Golden(f"<tool_call>{ODD_CALL}</tool_call>", HERMES, calls=(("f", ODD),)),
    Golden(f'<|tool_call|> [\n  {F},\n  {{"arguments": {{}}, "name": "g"}}\n]', GRANITE, calls=BOTH),
    Golden(f"Well.\n<tool_call>[{F}]\nDone.", GRANITE, "Well.\n\nDone.", calls=ONE),
    Golden(f"<|tool_call|>[{ODD_CALL}]", GRANITE, calls=(("f", ODD),)),
    Golden(f"<|tool_call|>{F}", GRANITE, f"<|tool_call|>{F}"),
    Golden(f"<|tool_call|>[{F}, what]", GRANITE, "what]", calls=ONE),
    Golden(f"functools[{F}, {G}]", PHI, calls=BOTH),
    Golden(f"Well.\nfunctools[{F}]\nDone.", PHI, "Well.\nDone.", calls=ONE),
    Golden(f"<|tool_call|>[{ODD_CALL}]<|/tool_call|>", PHI, calls=(("f", ODD),)),
    Golden("functools[] This is text", PHI, "functools[] This is text"),
    Golden(f"[TOOL_CALLS] [{F}, {G}]", MISTRAL, calls=BOTH),
    Golden(f'[TOOL_CALLS][{F[:-1]}, "id": "123456789"}}]', MISTRAL, calls=ONE),
    Golden(f"Hm[TOOL_CALLS]f[ARGS]{json.dumps(OSLO)}[TOOL_CALLS]g[ARGS]{{}}", MISTRAL, "Hm", calls=BOTH),
    Golden(f"[TOOL_CALLS]f[CALL_ID]abc123[ARGS]{json.dumps(ODD)}", MISTRAL, calls=(("f", ODD),)),
    Golden(f"[TOOL_CALLS]f{json.dumps(OSLO)}[TOOL_CALLS]g{{}}", MISTRAL, calls=BOTH),
    Golden("[TOOL_CALLS] not one", MISTRAL, "[TOOL_CALLS] not one"),
    Golden('[TOOL_CALLS]f[ARGS]{"city": "Os', MISTRAL, calls=(("f", '{"city": "Os'),)),
    Golden(f"{LAMA_F}; {LAMA_G}", LLAMA, calls=BOTH),
    Golden(f"<|python_tag|>{F} ; {LAMA_G};", LLAMA, calls=BOTH),
    Golden(f"<|python_start|>{LAMA_F}<|python_end|>", LLAMA, calls=ONE),
    Golden(f"{LAMA_F}\n{LAMA_G} That was it.", LLAMA, "That was it.", calls=BOTH),
    Golden('{"name": "Ann", "parameters": {"age": 4}}', LLAMA, '{"name": "Ann", "parameters": {"age": 4}}'),
    Golden('{"name": "f"}', LLAMA, '{"name": "f"}'),
    Golden("{no json} at all", LLAMA, "{no json} at all"),
    Golden(f"It is {LAMA_F}. {{yes}}", LLAMA, "It is . {yes}", calls=ONE),
    Golden(f"It is {{{LAMA_F[1:]}", LLAMA, "It is", calls=ONE),
    Golden('Say { "name": "Ann"}', LLAMA, 'Say { "name": "Ann"}'),
]
PYTHON_CALLS = [
    Golden('[f(city="Oslo", days=3), g()]', PYTHON, calls=BOTH),
    Golden("<|python_start|>[f(city='Oslo',days=3)]<|python_end|> ok", PYTHON, "ok", calls=ONE),
    Golden(
        """[f(city='O\\'s "{lo}" </tool_call> [TOOL_CALLS]\\n\\\\ \\xe9 \\U0001F600', tags=(']', "}", ';',))]""",
        PYTHON,
        calls=(("f", ODD),),
    ),
    Golden(
        "[g(a=None, b=[True, -1.5e3, {'k': 0x10, 2: []}], c=1_000, d='\\ud83d\\ude00', e='\\q')]",
        PYTHON,
        calls=(("g", {"a": None, "b": [True, -1500.0, {"k": 16, "2": []}], "c": 1000, "d": "\U0001f600", "e": "\\q"}),),
    ),
    Golden("[1, 2, 3] is a list", PYTHON, "[1, 2, 3] is a list"),
    Golden("[h(a=1)]", PYTHON, "[h(a=1)]"),
    Golden("f(city='Oslo') is wrong", PYTHON, "f(city='Oslo') is wrong"),
    Golden("[f(city=oslo)] x", PYTHON, "[f(city=oslo)] x"),
    Golden("[f(city='Oslo', days=b'3')] x", PYTHON, "'3')] x", calls=(("f", '{"city": "Oslo", "days": '),)),
    Golden("[f(city='Os", PYTHON, calls=(("f", '{"city": "Os'),)),
    Golden("Sure.\n```tool_code\nf(city='Oslo', days=3)\ng()\n```", GEMMA, "Sure.", calls=BOTH),
    Golden("```tool_code\n[f(city='Oslo', days=3), g()]\n```\nDone.", GEMMA, "Done.", calls=BOTH),
    Golden("[g()]", GEMMA, calls=(("g", {}),)),
    Golden("```tool_code\nprint(1)\n```", GEMMA, "```tool_code\nprint(1)\n```"),
]


def tagged(name: str, **values: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


DAYS = (("f", {"days": 3}),)
TAG_CALLS = [
    Golden(f"Ok.\n{tagged('f', city='Oslo', days='3')}\n{tagged('g')}", QWEN, "Ok.", calls=BOTH),
    Golden(
        tagged("f", days="x", exact="True", unit="null"), QWEN, calls=(("f", dict(days="x", exact=True, unit=None)),)
    ),
    Golden(
        tagged("f", city='two\n\nlines "<b>" </i> <parameter', tags="['a', \"b\"]", unit="C", other="12"),
        QWEN,
        calls=(("f", {"city": 'two\n\nlines "<b>" </i> <parameter', "tags": ["a", "b"], "unit": "C", "other": "12"}),),
    ),
    Golden("<function=g>\n</function>", QWEN, calls=(("g", {}),)),
    Golden(
        "<tool_call>\n<function=f>\n<parameter=days>3</parameter>\n</tool_call>x",
        QWEN,
        "x",
        calls=(("f", {"days": 3}),),
    ),
    Golden(
        f"<tool_call>\n<function=f>\n<parameter=days>\n3\n</function>\n</tool_call>{tagged('g')}",
        QWEN,
        calls=(("f", {"days": 3}), ("g", {})),
    ),
    Golden("<tool_call>\n<function=f>\n<parameter=city>\nOs", QWEN, calls=(("f", '{"city": "Os'),)),
    Golden("<tool_call>\n{}\n</tool_call>", QWEN, "<tool_call>\n{}\n</tool_call>"),
    Golden("<function=", QWEN, "<function="),
]
ANALYSIS = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>" + json.dumps(OSLO)
CHANNELS = [
    Golden(f"{ANALYSIS}<|channel|>final<|message|>Hello!<|return|>", HARMONY, "Hello!", "Let me see."),
    Golden(f"{ANALYSIS}{CALL}<|call|>", HARMONY, "", "Let me see.", ONE),
    Golden(f"{ANALYSIS}{CALL}", HARMONY, "", "Let me see.", ONE),  # the last mark is an end token
    Golden(
        f"{ANALYSIS} to=functions.g<|channel|>commentary json<|message|><|call|>",
        HARMONY,
        "",
        "Let me see.",
        (("g", {}),),
    ),
    Golden(
        f"{ANALYSIS}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}<|call|>",
        HARMONY,
        "I look.",
        "Let me see.",
        ONE,
    ),
    Golden(f"{ANALYSIS}{ANALYSIS}<|channel|>final<|message|>Hi", HARMONY, "Hi", "Let me see.\nLet me see."),
    Golden("no marks", HARMONY, "no marks"),
    Golden("<|channel|>fin", HARMONY, "fin"),
    Golden(f"{ANALYSIS}<|channel|>final<|message|>Hi", Form("openai"), "Let me see.\nHi"),
    Golden(f"{CALL}<|call|>", Form("none", "openai_gptoss"), json.dumps(OSLO)),
]
IBM = Form("granite", "granite")
QWEN3, R1 = Form("hermes", "qwen3"), Form("none", "deepseek_r1")
THOUGHT = "<think>\nIs it <b>?\n</think>\n\n"
REASONING = [
    Golden(f"{THOUGHT}Yes.", QWEN3, "Yes.", "Is it <b>?"),
    Golden(f"\n{THOUGHT}<tool_call>{F}</tool_call>", QWEN3, "", "Is it <b>?", ONE),
    Golden("<think>\n\n</think>\n\nYes.", QWEN3, "Yes."),
    Golden("<think>\nstill", QWEN3, "", "still"),
    Golden("Yes, <think> is a tag.", QWEN3, "Yes, <think> is a tag."),
    Golden("So.\n</think>\n\nYes.", Form("hermes", "qwen3", "...<think>\n"), "Yes.", "So."),
    Golden("<think>\nSo.\n</think>\nYes.", Form("hermes", "qwen3", "...<think>\n"), "Yes.", "So."),
    Golden("Yes </think>.", Form("hermes", "qwen3", "...<think>\n\n</think>\n\n"), "Yes </think>."),
    Golden("So.</think>Yes.", R1, "Yes.", "So."),
    Golden("So", R1, "", "So"),
    Golden("Yes.", Form("none", "deepseek_r1", "<think>\n</think>"), "Yes."),
    Golden("Here is my thought process: a, b.\n\nHere is my response: Yes.", IBM, "Yes.", "a, b."),
    Golden(
        f"Here's my thought process: a.\nHere's my response: <|tool_call|>[{F}]",
        Form("granite", "granite"),
        "",
        "a.",
        ONE,
    ),
    Golden("Here is my response: Yes.", IBM, "Here is my response: Yes."),
    Golden("<think>a</think>\n<response>Yes.</response>", Form("none", "granite_3_3"), "Yes.", "a"),
    Golden("<think>a</think> Yes.</response>", Form("none", "granite_3_3"), "Yes.</response>", "a"),
    Golden("[THINK]So.[/THINK]Yes[TOOL_CALLS]g[ARGS]{}", Form("mistral", "mistral"), "Yes", "So.", (("g", {}),)),
]
GLM, GLM47, SEED, MINIMAX, DSML = (
    Form("glm45"),
    Form("glm47"),
    Form("seed_oss", "seed_oss"),
    Form("minimax_m2"),
    Form("deepseek_v32"),
)
V3, V31, KIMI = Form("deepseek_v3"), Form("deepseek_v31"), Form("kimi_k2")
GEMMA4, LFM, NEMOTRON = Form("gemma4", "gemma4"), Form("lfm2"), Form("nemotron_json")
HUNYUAN, OLMO = Form("hunyuan_a13b", "hunyuan_a13b"), Form("olmo3")
CODE = 'def f(x):\n    return {"a": [1, "b\\n"]}  # <b> & \'c\'\n'
CODED = (("f", {"city": CODE, "days": 3}),)


def of_glm(name: str, line: str = "\n", **values: str) -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{value}</arg_value>{line}" for key, value in values.items()
    )
    return f"<tool_call>{name}{line}{inner}</tool_call>"


def invoked(name: str, mark: str = "", **values: str) -> str:
    attribute = {"city": ' string="true"', "other": ' string="true"'} if mark else {}
    no_text = ' string="false"' if mark else ""
    inner = "".join(
        f'<{mark}parameter name="{key}"{attribute.get(key, no_text)}>{value}</{mark}parameter>\n'
        for key, value in values.items()
    )
    return f'<{mark}invoke name="{name}">\n{inner}</{mark}invoke>\n'


def block(*calls: str, name: str = "minimax:tool_call") -> str:
    return f"<{name}>\n{''.join(calls)}</{name}>"


D = "｜DSML｜"
MORE_TAGS = [
    Golden(f"Ok.\n{of_glm('f', city='Oslo', days='3')}\n{of_glm('g')}", GLM, "Ok.", calls=BOTH),
    Golden(of_glm("f", "", city="Oslo", days="3") + of_glm("g", ""), GLM47, calls=BOTH),
    Golden(of_glm("f", city=CODE, days="3"), GLM, calls=CODED),
    Golden(of_glm("f", "", city=CODE, days="3"), GLM47, calls=CODED),
    Golden(
        of_glm("f", city=of_glm("g", city="x"), exact="true", tags='["a", "b"]', other="12"),
        GLM,
        calls=(("f", {"city": of_glm("g", city="x"), "exact": True, "tags": ["a", "b"], "other": "12"}),),
    ),
    Golden(of_glm("unknown", "", a="1"), GLM47, calls=(("unknown", {"a": "1"}),)),
    Golden("<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Os", GLM, calls=(("f", '{"city": "Os'),)),
    Golden("<tool_call>f\n<arg_key>days</arg_key>\n<arg_value>3\n</tool_call>x", GLM, "x", calls=DAYS),
    Golden("<tool_call>get_wea", GLM47, "<tool_call>get_wea"),
    Golden("<tool_call>not a name\n</tool_call>", GLM, "<tool_call>not a name\n</tool_call>"),
    Golden(
        "<seed:think>So.</seed:think>Ok.\n<seed:tool_call>\n<function=f>\n<parameter=city>Oslo</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        SEED,
        "Ok.",
        "So.",
        ONE,
    ),
    Golden(
        "<seed:tool_call>\n<function=f>\n<parameter=city>\n\nx\n</parameter>\n</function>\n</seed:tool_call>",
        SEED,
        calls=(("f", {"city": "\n\nx\n"}),),
    ),
    Golden(block(invoked("f", city="Oslo", days="3"), invoked("g")), MINIMAX, calls=BOTH),
    Golden(f"Ok.\n\n{block(invoked('f', city=CODE, days='3'))}\nx", MINIMAX, "Ok.\n\n\nx", calls=CODED),
    Golden(
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="city">Os', MINIMAX, calls=(("f", '{"city": "Os'),)
    ),
    Golden("<minimax:tool_call>\nnothing", MINIMAX, "<minimax:tool_call>\nnothing"),
    Golden(block(invoked("f", D, city="Oslo", days="3"), invoked("g", D), name=f"{D}function_calls"), DSML, calls=BOTH),
    Golden(block(invoked("f", D, city=CODE, days="3"), name=f"{D}tool_calls"), DSML, calls=CODED),
    Golden(
        "Hm.\n\n" + block(invoked("g", D, other="12", more='{"a": [1, null]}'), name=f"{D}function_calls"),
        DSML,
        "Hm.",
        calls=(("g", {"other": "12", "more": {"a": [1, None]}}),),
    ),
    Golden(
        block(invoked("f", D, unit="null", exact="true"), name=f"{D}function_calls"),
        DSML,
        calls=(("f", {"unit": None, "exact": True}),),
    ),
]
ARGUMENTS = json.dumps(OSLO)
BEGIN, END_OF_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"


def fenced(name: str, arguments: str) -> str:
    return f"{BEGIN}function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```{END_OF_CALL}"


def bare(name: str, arguments: str) -> str:
    return f"{BEGIN}{name}<｜tool▁sep｜>{arguments}{END_OF_CALL}"


def numbered(name: str, number: int, arguments: str) -> str:
    return f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


CALLS_OF, ENDS_OF = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
SECTION, END_OF_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
NAMED = [
    Golden(f"Ok.{CALLS_OF}{fenced('f', ARGUMENTS)}\n{fenced('g', '{}')}{ENDS_OF}", V3, "Ok.", calls=BOTH),
    Golden(CALLS_OF + fenced("f", json.dumps(ODD)) + ENDS_OF, V3, calls=(("f", ODD),)),
    Golden(f"Ok.{CALLS_OF}{bare('f', ARGUMENTS)}{bare('g', '{}')}{ENDS_OF}", V31, "Ok.", calls=BOTH),
    Golden(CALLS_OF + bare("f", json.dumps(ODD)) + ENDS_OF, V31, calls=(("f", ODD),)),
    Golden(f'{CALLS_OF}{BEGIN}f<｜tool▁sep｜>{{"city": "Os', V31, calls=(("f", '{"city": "Os'),)),
    Golden(f"{CALLS_OF}{BEGIN}f<｜tool▁sep｜>nothing", V31, f"{BEGIN}f<｜tool▁sep｜>nothing"),
    Golden(f"{CALLS_OF}{BEGIN}f{END_OF_CALL}{ENDS_OF}", V31, f"{BEGIN}f{END_OF_CALL}"),
    Golden(
        f"Ok.{SECTION}{numbered('f', 0, ARGUMENTS)}{numbered('g', 1, '{}')}{END_OF_SECTION}", KIMI, "Ok.", calls=BOTH
    ),
    Golden(f"{SECTION}{numbered('f', 12, json.dumps(ODD))}{END_OF_SECTION}", KIMI, calls=(("f", ODD),)),
    Golden(
        f'{SECTION}<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{{"city": "Os',
        KIMI,
        calls=(("f", '{"city": "Os'),),
    ),
    Golden(f"{SECTION}<|tool_call_begin|>functions.f", KIMI, "<|tool_call_begin|>functions.f"),
]
Q = '<|"|>'
OTHERS = [
    Golden(
        f"<|channel>thought\nSo.\n<channel|><|tool_call>call:f{{city:{Q}Oslo{Q},days:3}}<tool_call|>"
        "<|tool_call>call:g{}<tool_call|>",
        GEMMA4,
        "",
        "So.",
        BOTH,
    ),
    Golden(f"<|tool_call>call:f{{city:{Q}{CODE}{Q},days:3}}<tool_call|>", GEMMA4, calls=CODED),
    Golden(
        f"Ok. <|tool_call>call:g{{a:[{Q}b, c{Q},-1.5,true,null],{Q}d e{Q}:{{f:{{}},g:{Q}{Q}}}, h:b c}}<tool_call|>.",
        GEMMA4,
        "Ok. .",
        calls=(("g", {"a": ["b, c", -1.5, True, None], "d e": {"f": {}, "g": ""}, "h": "b c"}),),
    ),
    Golden(f"<|tool_call>call:f{{city:{Q}Os", GEMMA4, calls=(("f", '{"city": "Os'),)),
    Golden("<|tool_call>no call", GEMMA4, "<|tool_call>no call"),
    Golden("<|tool_call_start|>[f(city='Oslo', days=3), g()]<|tool_call_end|>Done.", LFM, "Done.", calls=BOTH),
    Golden(
        'Ok.<|tool_call_start|>[h(a={"b": [1, true, None]})]<|tool_call_end|>',
        LFM,
        "Ok.",
        calls=(("h", {"a": {"b": [1, True, None]}}),),
    ),
    Golden("<|tool_call_start|>[f(city='Os", LFM, calls=(("f", '{"city": "Os'),)),
    Golden("<|tool_call_start|>[1, 2]<|tool_call_end|>", LFM, "<|tool_call_start|>[1, 2]<|tool_call_end|>"),
    Golden("<function_calls>f(city='Oslo', days=3)\ng()</function_calls>", OLMO, calls=BOTH),
    Golden("Ok.\n<function_calls>\ng()\n</function_calls>", OLMO, "Ok.", calls=(("g", {}),)),
    Golden(f"Ok.\n<TOOLCALL>[{F}, {G}]</TOOLCALL>", NEMOTRON, "Ok.", calls=BOTH),
    Golden(f"<TOOLCALL>[{ODD_CALL}]</TOOLCALL>", NEMOTRON, calls=(("f", ODD),)),
    Golden(f"<TOOLCALL>[{CUT}", NEMOTRON, calls=(("f", '{"city": "Os'),)),
    Golden("<TOOLCALL>[]</TOOLCALL>", NEMOTRON, "<TOOLCALL>[]</TOOLCALL>"),
    Golden(f"<think>\nSo.\n</think>\n<tool_calls>[{F}, {G}]</tool_calls>", HUNYUAN, "", "So.", BOTH),
    Golden("<think>\nSo.\n</think>\n<answer>\nYes.\n</answer>", HUNYUAN, "Yes.", "So."),
    Golden("<think>a</think>\n\n<response>\nYes.\n</response>\n", Form("hermes", "ernie45"), "Yes.", "a"),
    Golden(f"<think>a</think>\n\n<tool_call>\n{F}\n</tool_call>\n", Form("hermes", "ernie45"), "", "a", ONE),
]
GOLDEN = JSON_CALLS + PYTHON_CALLS + TAG_CALLS + CHANNELS + REASONING + MORE_TAGS + NAMED + OTHERS
