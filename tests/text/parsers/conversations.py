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
GOLDEN = JSON_CALLS + PYTHON_CALLS + TAG_CALLS + CHANNELS + REASONING
