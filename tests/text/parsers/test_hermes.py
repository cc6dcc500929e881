"""Tool calls in a model's text: what is one, what is content, and that it never matters how the text was cut."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from neuronserve.server.api.tools.message import MessageReader
from neuronserve.server.text.parsers.call_object import CallObject
from neuronserve.server.text.parsers.json_calls import HERMES
from tests.text.parsers.reading import Form, parser
from tests.text.parsers.reading import read as read_message

Result = tuple[str, list[tuple[str, str]]]
OPEN, CLOSE = HERMES


def read(parts: Sequence[str], max_calls: int | None = None) -> Result:
    message = read_message(parts, Form("hermes", max_calls=max_calls))
    return message.content, message.calls or []


def call(name: str = "f", arguments: str = '{"a": 1}') -> str:
    return f'{OPEN}\n{{"name": "{name}", "arguments": {arguments}}}\n{CLOSE}'


ODD = r'{"q": "}\" </tool_call> {", "l": [1, {"x": null}]}'
WHOLE: list[tuple[str, Result]] = [
    ("", ("", [])),
    ("hello", ("hello", [])),
    (" hello \n", (" hello \n", [])),
    ("a < b, <tool, <tool_call", ("a < b, <tool, <tool_call", [])),
    (call(), ("", [("f", '{"a": 1}')])),
    (f"\n\n{call()}\n", ("", [("f", '{"a": 1}')])),
    (f"Let me see.\n{call()}", ("Let me see.", [("f", '{"a": 1}')])),
    (f"{call()}\n{call('g', '{}')}", ("", [("f", '{"a": 1}'), ("g", "{}")])),
    (f"one {call()} two", ("one  two", [("f", '{"a": 1}')])),
    (f"{call()} two", ("two", [("f", '{"a": 1}')])),
    (call("f", ODD), ("", [("f", ODD)])),
    (OPEN + '{"arguments": {"a": 2}, "id": 7, "name": "late"}' + CLOSE, ("", [("late", '{"a": 2}')])),
    (OPEN + '{"name": "bare"}' + CLOSE, ("", [("bare", "{}")])),
    (OPEN + '{"name": "f", "arguments": "{\\"a\\": 1}"}' + CLOSE, ("", [("f", '{"a": 1}')])),
    (OPEN + '{"name": "f", "arguments": null}' + CLOSE, ("", [("f", "null")])),
    (OPEN + '{"name": "f", "arguments": {"a": 1}\n' + CLOSE + "x", ("x", [("f", '{"a": 1}')])),  # a brace is missing
    (OPEN + '{"name": "f", "arguments": {"a": 1}}}' + CLOSE + "x", ("x", [("f", '{"a": 1}')])),  # and one too many
    (OPEN + '{"name": "f", "arguments": {"a": 1}}', ("", [("f", '{"a": 1}')])),  # no closing tag
    (OPEN + '{"name": "f", "arguments": {"a": "cut', ("", [("f", '{"a": "cut')])),
    (OPEN + "no json" + CLOSE, (OPEN + "no json" + CLOSE, [])),
    (OPEN + '{"name": 5}' + CLOSE, (OPEN + '{"name": 5}' + CLOSE, [])),
    (OPEN + '{"name": ""}' + CLOSE, (OPEN + '{"name": ""}' + CLOSE, [])),
    (OPEN + '{"name": "\\ud800"}' + CLOSE, (OPEN + '{"name": "\\ud800"}' + CLOSE, [])),
    (OPEN + '{"arguments": {}}' + CLOSE, (OPEN + '{"arguments": {}}' + CLOSE, [])),
    (OPEN + '{"name": "f", "arg', (OPEN + '{"name": "f", "arg', [])),  # cut off before it was one
    (OPEN + "[1]" + call(), (OPEN + "[1]", [("f", '{"a": 1}')])),
    (OPEN + call(), (OPEN, [("f", '{"a": 1}')])),
]


@pytest.mark.parametrize(("text", "result"), WHOLE, ids=lambda value: str(value)[:50])
def test_what_is_a_call_and_what_is_content(text: str, result: Result) -> None:
    assert read([text]) == result
    assert read(list(text)) == result


def test_arguments_come_as_early_as_they_can() -> None:
    text = parser(Form("hermes"))
    assert text.feed(OPEN + '\n{"name": "f", "argume').calls == []
    first = text.feed('nts": {"city": "O').calls
    assert [(part.name, part.arguments) for part in first] == [("f", ""), (None, '{"city": "O')]
    assert [part.arguments for part in text.feed("sl").calls] == ["sl"]


def test_each_part_of_a_text_is_a_fragment_of_its_call() -> None:
    """How many parts there are is the engine's pace against the client's, so only here can they be counted."""
    reader = MessageReader(parser(Form("hermes")))
    parts = [OPEN, '{"name": "f", "arguments": ', '{"city": "O', "sl", 'o"}', "}" + CLOSE]
    said = [delta for part in parts for delta in reader.read(part, part is parts[-1]).calls]
    assert [(delta.function.name, delta.function.arguments) for delta in said] == [
        ("f", '{"city": "O'),
        (None, "sl"),
        (None, 'o"}'),
    ]


def test_a_tag_is_held_back_only_while_it_may_be_one() -> None:
    text = parser(Form("hermes"))
    assert text.feed("a <tool").content == "a"
    assert text.feed("box").content == " <toolbox"


def test_calls_beyond_the_most_are_left_out() -> None:
    assert read([f"{call('f')}{call('g')} end"], max_calls=1) == ("end", [("f", '{"a": 1}')])


SIGNS = ["{", "}", "[", "]", '"', "\\", ":", ",", "\n", " ", "<", "</", "1", "null", "é", "\U0001f600"]
WORDS = ["name", "arguments", '{"name": "', '{"name": "f", "arguments": {', '"a": "x"', "}}"]
PIECES = st.sampled_from([OPEN, CLOSE, "<tool", "_call>", call(), call("g"), *SIGNS, *WORDS])


@given(text=st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=30).map("".join), seed=st.integers(0, 2**32))
def test_any_cutting_gives_what_the_whole_gives(text: str, seed: int) -> None:
    rng = random.Random(seed)
    parts, rest = [], text
    while rest:
        size = rng.randint(1, rng.choice((1, 3, 20)))
        parts.append(rest[:size])
        rest = rest[size:]
    whole = read([text])
    assert read(parts) == whole
    assert read(list(text)) == whole


@given(text=st.text(st.characters(exclude_characters="<"), max_size=50))
def test_text_without_tags_goes_through_as_it_is(text: str) -> None:
    assert read([text]) == (text, [])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    calls=st.lists(
        st.tuples(st.text(min_size=1), st.dictionaries(st.text(), VALUES, max_size=4)), min_size=1, max_size=3
    ),
    seed=st.integers(0, 2**32),
    layout=st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}]),
)
def test_any_calls_that_are_written_are_read(
    calls: list[tuple[str, dict[str, object]]], seed: int, layout: dict[str, object]
) -> None:
    calls = [(name, arguments) for name, arguments in calls if name.isascii() or layout.get("ensure_ascii", True)]
    objects = [json.dumps({"name": name, "arguments": arguments}, **layout) for name, arguments in calls]  # type: ignore[arg-type]
    text = "\n".join(f"{OPEN}\n{one}\n{CLOSE}" for one in objects)
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(len(text) + 1), min(5, len(text) + 1)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    content, found = read(parts)
    assert content == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.floats(0, 1))
def test_arguments_so_far_are_those_of_a_parser_of_partial_json(arguments: dict[str, object], share: float) -> None:
    text = json.dumps({"name": "f", "arguments": arguments})
    text = text[: max(1, int(share * len(text)))]
    call = CallObject()
    call.feed(text)
    expected = from_json(text, allow_partial="trailing-strings").get("arguments", {})
    assert from_json(call.take_arguments() or "{}", allow_partial="trailing-strings") == expected


def test_why_arguments_are_not_those_of_a_parser_of_partial_json() -> None:
    """They go on as written, as far as they are written, and end where their object does."""
    for written in ('{"a" : 1.0e1}', '{"a": "\\u0041"}', '{"a": 1, "a": 2}', '{"a": tru'):
        text = f'{{"name": "f", "arguments": {written}'
        assert read([OPEN + text]) == ("", [("f", written)])
        assert json.dumps(from_json(text, allow_partial="trailing-strings")["arguments"]) != written
    assert read([call(), "and text"])[0] == "and text"
    assert from_json('{"name": "f"}and text', allow_partial="trailing-strings") == {"name": "f"}


def test_a_hostile_text_takes_linear_time() -> None:
    def seconds(count: int) -> float:
        begin = time.process_time()
        for part in (OPEN + '{"', OPEN, "<tool_call", '{"name": "f", "arguments": {', "[" * 20):
            read([part * count])
        return time.process_time() - begin

    seconds(100)
    assert seconds(16_000) < 40 * max(seconds(1000), 0.01)
