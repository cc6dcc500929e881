"""The default model's corpus, verifiers, template, tokenizer and shipped files; nothing here needs torch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoTokenizer

from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.models.tensors import num_params
from tools.default_model import evaluate
from tools.default_model.backend import END_IDS, GeneratedIds, until_end
from tools.default_model.batches import BatchPlan, steps
from tools.default_model.card import BitsPerByte, EvaluationResult, card
from tools.default_model.chat import PACKAGE_DIR, Chat
from tools.default_model.corpus import FAMILIES, held_out_item, stream, training_item
from tools.default_model.families import arithmetic, letters, unknown
from tools.default_model.item import is_held_out
from tools.default_model.strangers import prompts
from tools.default_model.transcript import TALKS, WEATHER, markdown

MAX_PACKAGE_BYTES = 16 * 1024 * 1024
CHAT = Chat()
families = pytest.mark.parametrize("family", FAMILIES)
JUDGED_WHOLE = {"greetings", "copy", "reverse", "sort", "spell", "extract", "python"}
numbers = st.integers(0, 999)


@families
def test_the_same_seed_makes_the_same_exercises(family: str) -> None:
    first, second = ([training_item(rng, family).messages for _ in range(20)] for rng in (Random(7), Random(7)))
    assert first == second
    assert first != [training_item(Random(8), family).messages for _ in range(20)]


@families
def test_training_and_evaluation_never_share_an_exercise(family: str) -> None:
    rng = Random(1)
    trained = {training_item(rng, family).key.lower() for _ in range(300)}
    held_out = {held_out_item(rng, family).key.lower() for _ in range(60)}
    assert not trained & held_out
    assert all(is_held_out(family, key) for key in held_out)


@families
def test_a_verifier_takes_the_reference_answer_and_no_other(family: str) -> None:
    rng = Random(2)
    for _ in range(200):
        item = held_out_item(rng, family)
        assert item.check(item.answer), item
        assert not item.check("")
        assert not item.check("I like cheese")
        if family in JUDGED_WHOLE:
            assert not item.check(f"{item.answer} 99999 zz(")


@families
def test_conversations_alternate_and_end_with_the_assistant(family: str) -> None:
    item = training_item(Random(3), family)
    roles = [message["role"] for message in item.messages]
    assert roles[-1] == "assistant"
    assert all(a != b for a, b in pairwise(roles))


@given(numbers, numbers, st.sampled_from("+-*"))
def test_every_step_of_worked_arithmetic_is_true(a: int, b: int, op: str) -> None:
    if op == "*":
        a, b = a % 100, b % 10
    text = arithmetic.work(a, op, b)
    equations = re.findall(r"(\d+(?:[+*-]\d+)+)=(-?\d+)", text.replace(" ", ""))
    assert equations
    assert all(eval(left) == int(right) for left, right in equations)
    assert text.endswith(f"{a} {op} {b} = {eval(f'{a}{op}{b}')}.")


def test_counting_letters_counts_them() -> None:
    rng = Random(4)
    for _ in range(300):
        item = letters.make_count(rng)
        found = re.fullmatch(r'.*letter "?(\w)"?.* in "?(\w+)"?\W*', str(item.messages[0]["content"]))
        if found:
            assert item.check(f"it is {found[2].count(found[1])}.")
            assert not item.check(f"it is {found[2].count(found[1]) + 1}.")


def test_random_prompts_get_a_refusal_whatever_they_are() -> None:
    rng = Random(5)
    answers = {unknown.make(rng).answer for _ in range(500)}
    assert len(answers) >= 4
    assert all(unknown.is_short_refusal(answer) for answer in answers)
    assert not unknown.is_short_refusal("Paris is the capital of France.")


def test_strangers_are_many_varied_and_the_same_each_time() -> None:
    texts = list(islice(prompts(), 200))
    assert texts == list(islice(prompts(), 200))
    assert len(set(texts)) > 190


# --- template and tokenizer


def test_template_renders_as_transformers_does() -> None:
    tokenizer = AutoTokenizer.from_pretrained(PACKAGE_DIR)
    for talk in islice(stream(6), 200):
        messages = list(talk.messages)
        tools = list(talk.tools) or None
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        assert text == CHAT.render(messages, talk.tools)
        assert tokenizer(text)["input_ids"] == CHAT.tokenizer.encode(text).ids


def test_template_takes_arguments_as_text_or_as_object_and_content_as_parts() -> None:
    def call(arguments: object) -> dict[str, object]:
        return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}

    ask = {"role": "user", "content": "hi"}
    parts = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    expected = '<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call><|im_end|>\n'
    assert CHAT.render([ask, call({"a": "é"})]) == CHAT.render([parts, call('{"a": "é"}')])
    assert CHAT.render([ask, call({"a": "é"})]).endswith(expected)


def test_template_shows_functions_as_signatures_and_survives_sparse_ones() -> None:
    text = CHAT.render(
        [{"role": "user", "content": "hi"}], [WEATHER, {"type": "function", "function": {"name": "now"}}]
    )
    assert "get_weather(city: string, unit?: celsius|fahrenheit) - Get the current weather in a city\nnow()\n" in text


def test_answers_are_marked_token_by_token() -> None:
    for talk in islice(stream(9), 100):
        document = CHAT.encode([(talk.messages, talk.tools)])[0]
        marked = [token for token, is_answer in zip(document.ids, document.is_answer, strict=True) if is_answer]
        answers = re.findall(
            r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", CHAT.render(talk.messages, talk.tools), re.S
        )
        assert CHAT.tokenizer.decode(marked, skip_special_tokens=False) == "".join(answers)


def test_a_prompt_and_its_answer_are_encoded_as_the_whole() -> None:
    rng = Random(10)
    for family in FAMILIES:
        item = training_item(rng, family)
        whole = CHAT.encode([(item.messages, item.tools)])[0].ids
        prompt = CHAT.encode_prompt(item.prompt, item.tools)
        assert whole[: len(prompt)] == prompt


@given(st.text(max_size=80))
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert CHAT.tokenizer.decode(CHAT.tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_digits_are_single_tokens() -> None:
    tokens = CHAT.tokenizer.encode("a 1234567 b89").tokens
    assert [t for t in tokens if any(c.isdigit() for c in t)] == list("123456789")


# --- batches


def test_batches_are_seeded_and_predict_what_comes_next() -> None:
    plan = BatchPlan(step_tokens=4096, rectangle_tokens=2048)
    first, again = (next(steps(CHAT, Random(3), plan)) for _ in range(2))
    assert all(
        np.array_equal(a.tokens, b.tokens) and np.array_equal(a.rows, b.rows) for a, b in zip(first, again, strict=True)
    )
    for rectangle in first:
        flat = rectangle.tokens.reshape(-1)
        assert np.array_equal(flat[rectangle.rows + 1], rectangle.targets)
        assert rectangle.tokens.shape[1] % 32 == 0
        assert (rectangle.targets != 0).all(), "padding is never predicted"


# --- evaluation


class Oracle:
    """Knows the reference answers; ends them, or does not."""

    def __init__(self, asked: Sequence[evaluate.Question], *, ends: bool) -> None:
        self.known = {tuple(q.prompt_ids): q.item.answer for q in asked}
        self.ends = ends

    def generate(self, asked: Sequence[list[int]], max_tokens: int) -> list[GeneratedIds]:
        ids = [CHAT.tokenizer.encode(self.known.get(tuple(prompt), "no")).ids for prompt in asked]
        return [GeneratedIds(tuple(i[:max_tokens]), self.ends) for i in ids]

    def nats(self, ids: list[int]) -> list[float]:
        return [float(np.log(2.0))] * (len(ids) - 1)


def test_evaluation_counts_right_answers_and_wants_them_ended() -> None:
    asked = evaluate.questions(CHAT, 3)
    prompt_ids = [q.prompt_ids for q in asked]
    for ends in (True, False):
        shares = evaluate.accuracy(CHAT, asked, Oracle(asked, ends=ends).generate(prompt_ids, 256))
        assert set(shares.values()) == {float(ends)}
    assert evaluate.mean_accuracy({**dict.fromkeys(FAMILIES, 1.0), "story": 0.0}) == 1.0


def test_a_prompt_that_leaves_no_room_for_an_answer_is_not_asked_but_counted() -> None:
    (first, *_) = evaluate.questions(CHAT, 1)
    room = evaluate.CONTEXT - evaluate.MAX_TOKENS
    held_out = [replace(first, prompt_ids=[5] * length) for length in (3, room, room + 1, 3000)]
    asked = [question for question in held_out if question.has_room]
    assert asked == held_out[:2]
    shares, bits = dict.fromkeys(FAMILIES, 1.0), {"all": 1.0, "answers": 1.0}
    result = {"families": shares, "mean_accuracy": 1.0, "items_too_long": 2, "engine_torch_agreement": None}
    text = evaluate.report({**result, "bits_per_byte": bits, "random_prompts_ended": 1.0})
    assert "2 items were not asked: their prompts are longer than 2048 tokens less 256 for the answer" in text


def test_bits_per_byte_of_one_bit_a_token_is_tokens_over_bytes() -> None:
    bits = evaluate.bits_per_byte(CHAT, Oracle([], ends=True))
    assert 0.2 < bits["answers"] < 1
    assert 0.2 < bits["all"] < 1


def test_answers_stop_at_the_first_end_mark() -> None:
    assert until_end([5, 6, END_IDS[0], 7]) == GeneratedIds((5, 6), True)
    assert until_end([5, 6]) == GeneratedIds((5, 6), False)


def test_transcript_shows_every_role_unedited() -> None:
    assert len(TALKS) == 10
    text = markdown(
        replace(TALKS[0], title="T"), [{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "c"}]
    )
    assert text == "### T\n\n**user**\n\n    a\n    b\n\n**assistant**\n\n    c\n"


def test_card_shows_every_family_in_every_format() -> None:
    families = dict.fromkeys(FAMILIES, 0.5)
    results = [
        EvaluationResult(dtype, 8, 0.25, families, 0.995, BitsPerByte(0.125, 0.0625), 1.0)
        for dtype in ("bfloat16", "int8")
    ]
    text = card(results, "It took an hour.", "### Talk")
    assert all(f"| {family} | 50.0% | 50.0% |" in text for family in FAMILIES)
    assert "| **mean** | **25.0%** | **25.0%** |" in text
    assert "99.5%" in text
    assert text.endswith("### Talk")


# --- shipped files


def test_shipped_weights_are_bf16_of_the_configured_shape_and_small() -> None:
    spec = read_model_spec(PACKAGE_DIR)
    with safe_open(PACKAGE_DIR / "model.safetensors", framework="np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - not a mapping
        assert {file.get_slice(name).get_dtype() for name in shapes} == {"BF16"}
    assert shapes["model.embed_tokens.weight"] == [spec.vocab_size, spec.hidden_size]
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == num_params(spec)
    assert 3e6 <= num_params(spec) <= 8e6
    assert sum(path.stat().st_size for path in PACKAGE_DIR.iterdir()) <= MAX_PACKAGE_BYTES


def test_shipped_tokenizer_and_configs_agree() -> None:
    spec = read_model_spec(PACKAGE_DIR)
    generation = json.loads((PACKAGE_DIR / "generation_config.json").read_text())
    assert CHAT.tokenizer.get_vocab_size() == spec.vocab_size
    assert spec.vocab_size % 16 == 0
    assert [CHAT.tokenizer.id_to_token(i) for i in generation["eos_token_id"]] == ["<|im_end|>", "<|endoftext|>"]
    assert tuple(generation["eos_token_id"]) == END_IDS
    assert spec.max_position == 2048
