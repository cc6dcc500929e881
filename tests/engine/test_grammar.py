"""Grammars in the engine: the masks, the store of compiled ones, the queue before the scheduler."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronserve.server.engine.grammar_masks import GrammarMasks
from neuronserve.server.engine.grammar_store import GrammarStore
from neuronserve.server.settings.model import DEFAULT_MODEL as MODEL
from neuronserve.server.text.grammar import GrammarError, compile_grammar, grammar_text, load_grammar_tokenizer
from neuronserve.server.text.tokenizer import load_tokenizer
from neuronserve.server.types import SamplingParams, ScheduledSeq

TOKENIZER = load_tokenizer(MODEL)
END, OTHER_END = 2, 0
PADDED = 2112  # a vocabulary with rows that the tokenizer knows nothing of


@pytest.fixture(scope="module")
def store() -> GrammarStore:
    return GrammarStore(MODEL, MODEL)


def sampled(grammar: str, text: str = "", **sampling: Any) -> ScheduledSeq:
    """A sequence that has generated `text`, about to draw."""
    history = [50, 51, *TOKENIZER.encode(text)]
    params = SamplingParams(max_tokens=99, grammar=grammar, eos_token_ids=(END, OTHER_END), **sampling)
    return ScheduledSeq("r", (history[-1],), len(history) - 1, [[1]], True, params, history, 2)


def allowed(store: GrammarStore, *seqs: ScheduledSeq, masks: GrammarMasks | None = None) -> list[set[int]]:
    """Tokens that each of `seqs` may draw; all of them where nothing rules."""
    masks = masks or GrammarMasks(store, len(seqs), PADDED)
    assert masks.fill(seqs) == {}
    logits = np.zeros((len(seqs), PADDED), np.float32)
    for row in range(len(seqs)):
        masks.forbid(row, logits[row])
    return [set(np.flatnonzero(np.isfinite(row)).tolist()) for row in logits]


JSON = grammar_text("json", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


def test_the_mask_follows_the_output_and_ends_with_the_models_ends_alone(store: GrammarStore) -> None:
    text = '{"a": 12}'
    ids = TOKENIZER.encode(text)
    properties = {"a": {"type": "integer"}}
    closed = grammar_text(
        "json", {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False}
    )
    for count, following in enumerate([*ids, END]):
        seq = sampled(closed, TOKENIZER.decode(ids[:count]))
        (tokens,) = allowed(store, seq)
        assert following in tokens
    assert tokens == {END, OTHER_END}


def test_rows_without_a_grammar_have_no_mask(store: GrammarStore) -> None:
    free, bound, other = allowed(store, sampled(""), sampled(JSON), sampled(""))
    assert len(free) == len(other) == PADDED
    assert len(bound) < 10


@pytest.mark.parametrize("grammar", ["start: /(?s:.*)/", "start: <[*]>"])
def test_ids_beyond_the_tokenizer_are_never_allowed(store: GrammarStore, grammar: str) -> None:
    (tokens,) = allowed(store, sampled(grammar_text("lark", grammar)))
    assert len(tokens) > 1000
    assert max(tokens) < TOKENIZER.vocab_size


@pytest.mark.parametrize("vocab_size", [500, 512, 1000])
def test_a_model_with_fewer_ids_than_its_tokenizer_gets_its_own_alone(store: GrammarStore, vocab_size: int) -> None:
    masks = GrammarMasks(store, 1, vocab_size)
    assert masks.fill([sampled(JSON)]) == {}
    logits = np.zeros(vocab_size, np.float32)
    masks.forbid(0, logits)
    (all_tokens,) = allowed(store, sampled(JSON))
    assert set(np.flatnonzero(np.isfinite(logits)).tolist()) == {token for token in all_tokens if token < vocab_size}


def test_what_was_kept_of_a_matcher_changes_nothing(store: GrammarStore) -> None:
    """Kept, rebuilt after a preemption, or met under the id of another request: the same mask."""
    masks = GrammarMasks(store, 1, PADDED)
    for text in ("", '{"', '{"a', '{"a": 1', '{"a', '{"a": 1, "zz": [1, {"q": nul', ""):
        assert allowed(store, sampled(JSON, text), masks=masks) == allowed(store, sampled(JSON, text))
    growing = sampled(JSON)
    ids = TOKENIZER.encode('{"a": 17, "b": [')
    for count in range(len(ids)):
        assert allowed(store, growing, masks=masks) == allowed(store, sampled(JSON, TOKENIZER.decode(ids[:count])))
        growing.history.append(ids[count])  # type: ignore[attr-defined]


def test_min_tokens_holds_ends_back_unless_nothing_else_is_left(store: GrammarStore) -> None:
    some = grammar_text("regex", "a+")
    (early,) = allowed(store, sampled(some, "aa", min_tokens=9))
    (late,) = allowed(store, sampled(some, "aa"))
    assert not early & {END, OTHER_END}
    assert late == early | {END, OTHER_END}
    one = grammar_text("regex", "a")
    assert allowed(store, sampled(one, "a", min_tokens=9)) == [{END, OTHER_END}]


def test_past_its_end_a_grammar_allows_ends_for_ever(store: GrammarStore) -> None:
    seq = sampled(grammar_text("regex", "a"), "a", ignore_eos=True)
    for token in (END, OTHER_END, END):
        assert allowed(store, seq) == [{END, OTHER_END}]
        seq.history.append(token)  # type: ignore[attr-defined]


def test_a_grammar_that_costs_too_much_ends_its_own_row_only(store: GrammarStore) -> None:
    bomb = grammar_text("regex", "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}")
    masks = GrammarMasks(store, 2, PADDED)
    faults: dict[int, str] = {}
    for count in range(1, 60):
        faults = masks.fill([sampled(bomb, "a" * count), sampled(JSON)])
        if faults:
            break
    assert list(faults) == [0]
    assert "too many expressions" in faults[0]


def test_json_has_spaces_but_is_not_padded(store: GrammarStore) -> None:
    value = {"a": 1, "b": [True, {"c": "x"}]}
    grammar = grammar_text("json", {"type": "object"})
    for text in (json.dumps(value), json.dumps(value, separators=(",", ":")), '{ "a" : [ 1 , 2 ] }'):
        (tokens,) = allowed(store, sampled(grammar, text))
        assert tokens == {END, OTHER_END}
    blanks = {TOKENIZER.encode(text)[0] for text in (" ", "\n", "\t")}
    (tokens,) = allowed(store, sampled(grammar, "{ "))
    assert not tokens & blanks


def test_the_store_keeps_what_was_used_last_and_all_that_is_awaited() -> None:
    texts = [grammar_text("regex", f"{i:03}" + "x" * 50) for i in range(30)]
    store = GrammarStore(MODEL, MODEL, max_kept_chars=4 * len(texts[0]))
    for text in (*texts[:4], texts[0], texts[4]):
        store.matcher(text)
    assert [store.is_ready(texts[i]) for i in (0, 2, 3, 4)] == [True] * 4
    awaited = [text for text in texts[5:] if not store.is_ready(text)][-4:]
    while not all([store.is_ready(text) for text in awaited]):
        time.sleep(0.01)


def test_a_store_that_forgets_compiles_again_what_is_asked_for(store: GrammarStore) -> None:
    text = grammar_text("choice", ["some", "other"])
    store.matcher(text)
    store.forget()
    assert not store.is_ready(text)
    store.matcher(text)
    assert store.is_ready(text)


def test_a_tokenizer_that_has_gone_ends_requests_and_not_the_engine(tmp_path: Path) -> None:
    masks = GrammarMasks(GrammarStore(tmp_path, tmp_path), 2, PADDED)
    assert list(masks.fill([sampled(JSON), sampled("")])) == [0]


def test_the_store_compiles_once_and_gives_each_its_own_matcher(store: GrammarStore) -> None:
    text = grammar_text("choice", ["one", "two"])
    first, second = store.matcher(text), store.matcher(text)
    assert store.is_ready(text)
    assert first.consume_tokens(TOKENIZER.encode("one"))
    assert first.is_stopped()
    assert not second.is_stopped()
    with pytest.raises(GrammarError, match="unclosed"):
        store.matcher(grammar_text("regex", "("))
    assert compile_grammar(load_grammar_tokenizer(MODEL, MODEL), text).is_error() is False
