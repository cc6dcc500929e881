"""Each family's outputs, whole and cut anywhere; that nothing raises, nothing is lost, and time is linear."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.text.parsers.call_formats import CALLS, ToolParserName
from neuronserve.server.text.parsers.formats import REASONING, ReasoningParserName
from tests.text.parsers.conversations import GOLDEN, Golden
from tests.text.parsers.reading import Form, cut, every_split, parser, read

FORMS = [
    *(Form(name) for name in CALLS),
    *(Form("none", name) for name in REASONING),
    *dict.fromkeys(golden.form for golden in GOLDEN if golden.form.reasoning != "none" and not golden.form.prompt),
]
MARKS = sorted({tag for row in (*CALLS.values(), *REASONING.values()) for tag in row.tags})


def parsed(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"{golden.form.tools}-{golden.text[:40]!r}")
def test_a_familys_output_is_the_same_message_however_it_is_cut(golden: Golden) -> None:
    whole = read([golden.text], golden.form)
    assert (whole.content, whole.reasoning) == (golden.content, golden.reasoning)
    assert tuple((name, parsed(arguments)) for name, arguments in whole.calls or ()) == golden.calls
    for parts in every_split(golden.text):
        assert read(parts, golden.form) == whole, parts


@given(st.sampled_from(GOLDEN), st.integers(0, 2**32))
def test_parts_of_any_sizes(golden: Golden, seed: int) -> None:
    assert read(cut(golden.text, seed), golden.form) == read([golden.text], golden.form)


def test_every_family_has_golden_outputs() -> None:
    assert {golden.form.tools for golden in GOLDEN if golden.calls} >= set(CALLS) - {"mistral_array"}
    assert {golden.form.reasoning for golden in GOLDEN if golden.reasoning} >= set(REASONING)


TEXTS = st.lists(
    st.one_of(
        st.sampled_from(MARKS),
        st.sampled_from(GOLDEN).map(lambda golden: golden.text),
        st.sampled_from(GOLDEN).flatmap(lambda golden: st.integers(1, 60).map(lambda size: golden.text[:size])),
        st.sampled_from([*"{}[]()<>,;:'\"\\=\n `", "f(", "name=", "\\u", "\\", "é\U0001f600"]),
        st.text(max_size=4),
    ),
    max_size=8,
).map("".join)


@given(TEXTS, st.sampled_from(FORMS), st.integers(0, 2**32))
def test_anything_is_read_and_cutting_changes_nothing(text: str, form: Form, seed: int) -> None:
    whole = read([text], form)
    assert read(cut(text, seed), form) == whole
    assert read(list(text), form) == whole


@given(
    st.text(st.characters(exclude_characters="<[{f`H", exclude_categories=["Cs"]), max_size=60), st.sampled_from(FORMS)
)
def test_text_without_marks_goes_through_as_it_is(text: str, form: Form) -> None:
    message = read([text], form)
    if form.reasoning == "deepseek_r1" and form.tools != "openai":
        assert (message.reasoning, message.content) == (text.strip(), "")
    else:
        assert (message.content, message.calls) == (text, None)


CALL_TEXTS = [golden.text for golden in GOLDEN if golden.calls]
SKIPPING = {"hermes", "qwen3_coder", "openai"}  # what stands between parts of a call, or in a header, is left out


@given(
    st.sampled_from([name for name in CALLS if name not in SKIPPING]),
    st.lists(st.sampled_from([*MARKS, *CALL_TEXTS, *"{}[]", '{"name": "f", "argum', "[f(", "[f(city="]), max_size=8),
)
def test_no_word_is_lost(name: ToolParserName, pieces: list[str]) -> None:
    """Words between the pieces are in the content, a name or arguments, whatever the pieces are."""
    words = [f"word{i}x" for i in range(len(pieces))]
    text = "".join(f" {word} {piece}" for word, piece in zip(words, pieces, strict=True))
    message = read([text], Form(name))
    found = message.content + "".join(call_name + arguments for call_name, arguments in message.calls or ())
    assert [word for word in words if word not in found] == []


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.tools}-{form.reasoning}")
def test_a_hostile_text_takes_linear_time(form: Form) -> None:
    pieces = [*MARKS, *(golden.text for golden in GOLDEN if golden.form.tools == form.tools)]
    pieces += ["[" * 20, "{" * 20, "(", "\\", " ", "[f(city=", "<function=", "<parameter=", "functools["]

    def seconds(count: int) -> float:
        begin = time.process_time()
        for piece in pieces:
            text = piece[:60] * (count // len(piece[:60]))
            read([text], form)
        return time.process_time() - begin

    seconds(300)
    assert seconds(16_000) < 60 * max(seconds(1000), 0.01)


def test_arguments_of_every_family_come_as_early_as_they_can() -> None:
    """The first half of a call has the name and what there is of the city, if the family's values need not be whole."""
    for golden in GOLDEN:
        if golden.form.reasoning != "none" or "Oslo" not in golden.text or not golden.calls:
            continue
        early = parser(golden.form).feed(golden.text[: golden.text.index("Oslo") + 2])
        said = "".join(part.arguments for part in early.calls)
        assert next(part.name for part in early.calls) == "f", golden.text
        assert said.endswith('"Os'), golden.text


def test_calls_beyond_the_most_are_left_out() -> None:
    for golden in GOLDEN:
        if len(golden.calls) > 1:
            message = read([golden.text], Form(golden.form.tools, golden.form.reasoning, golden.form.prompt, 1))
            assert len(message.calls or ()) == 1


def test_names_of_parsers_are_those_of_the_rows() -> None:
    assert {*CALLS, "none"} == set(ToolParserName.__args__)  # type: ignore[attr-defined]
    assert {*REASONING, "none"} == set(ReasoningParserName.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("reasoning", "prompt", "continued", "is_open"),
    [
        ("qwen3", "x<|im_start|>assistant\n", "", None),
        ("qwen3", "x<|im_start|>assistant\n<think>\n", "", True),
        ("qwen3", "x<|im_start|>assistant\n<think>\n\n</think>\n\n", "", False),
        ("qwen3", "what is <think>?<|im_start|>assistant\n", "", None),
        ("deepseek_r1", "what is </think>?", "", True),
        ("deepseek_r1", "x</think>", "", False),
        ("deepseek_r1", "x The answer is", "The answer is", False),
        ("deepseek_r1", "x <think>a", "<think>a", True),
        ("qwen3", "x <think>a</think>b", "<think>a</think>b", False),
        ("openai_gptoss", "x<|end|><|start|>assistant", "", None),
    ],
)
def test_where_an_output_begins(
    reasoning: ReasoningParserName, prompt: str, continued: str, is_open: bool | None
) -> None:
    """Within reasoning, outside of it, or the model decides; what users write does not matter."""
    assert REASONING[reasoning].thinking.is_open(prompt, continued) is is_open
