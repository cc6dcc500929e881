"""Tokenizers of GGUF files against llama.cpp: its own cases, and merges by score against their definition.

`llama_cpp.json` names the source and the licence of each part.
"""

from __future__ import annotations

import itertools
import json
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.checkpoint.gguf.pre_tokenizers import PRE_TOKENIZERS
from neuronserve.server.text.detokenizer import TextStream
from neuronserve.server.text.tokenizer import Tokenizer
from tests.checkpoint.gguf.test_tokenizer import read, write

GOLDEN = json.loads((Path(__file__).parent / "llama_cpp.json").read_text(encoding="utf-8"))
TEXTS: list[str] = GOLDEN["texts"]
MARKS = ("<s>", "</s>", "<|", "<unk>", "<0x", "▁")  # in text
LOSSY = ("bert-bge", "nomic-bert-moe")  # of encoders: case, accents or spaces are lost
CASES = [(case, pre) for case in GOLDEN["cases"] for pre in case["pre"]]


def tokenizer_of(root: Path, case: dict[str, Any], pre: str) -> tokenizers.Tokenizer:
    """The tokenizer of a file with a case's vocabulary and switches."""
    vocabulary = GOLDEN["vocabularies"][case["vocabulary"]]

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(vocabulary["model"])
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(vocabulary["tokens"])
        writer.add_token_types(vocabulary["types"])
        if "scores" in vocabulary:
            writer.add_token_scores(vocabulary["scores"])
        if "merges" in vocabulary:
            writer.add_token_merges(vocabulary["merges"])
        for name, token_id in vocabulary["special"].items():
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token_id)
        for name, value in case["switches"].items():
            writer.add_bool(f"tokenizer.ggml.{name}", value)

    return read(write(root / "model.gguf", edit, vocabulary.get("architecture", "llama")))


def test_every_name_of_a_pre_tokenizer_has_a_case() -> None:
    assert {pre for case, pre in CASES if case["vocabulary"] == "gpt-2"} == set(PRE_TOKENIZERS)


@pytest.mark.parametrize(("case", "pre"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_tokens_are_those_of_llama_cpp(tmp_path: Path, case: dict[str, Any], pre: str) -> None:
    """Models whose tokenizers compose characters do so here, too; llama.cpp does not."""
    tokenizer = tokenizer_of(tmp_path, case, pre)
    is_composed = pre in PRE_TOKENIZERS and PRE_TOKENIZERS[pre].is_composed
    for text, ids in zip(TEXTS, case["ids"], strict=True):
        if ids is not None and (not is_composed or unicodedata.is_normalized("NFC", text)):
            assert tokenizer.encode(text).ids == ids, text


@pytest.mark.parametrize(
    "case",
    [case for case in GOLDEN["cases"] if case["vocabulary"] not in LOSSY],
    ids=lambda case: f"{case['vocabulary']} {case['switches']}",
)
def test_texts_come_back_whole_and_streamed(tmp_path: Path, case: dict[str, Any]) -> None:
    """Except for white space behind a token of Phi 3 that takes it in, and for what NFC changes."""
    tokenizer = Tokenizer(tokenizer_of(tmp_path, case, case["pre"][0]))
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        stream = TextStream(tokenizer, (), skip_special_tokens=False)
        streamed = "".join([*map(stream.feed, ids), stream.finish()])
        assert streamed == tokenizer.decode(ids, skip_special_tokens=False)
        is_plain = unicodedata.is_normalized("NFC", text) and not any(mark in text for mark in MARKS)
        assert streamed == text or not is_plain


LETTERS = "ab▁"


@st.composite
def vocabularies(draw: st.DrawFn) -> dict[str, float]:
    """Scores of pieces, each made of two others. Runs of spaces may have equal scores, as Llama's have."""
    pieces = list(LETTERS)
    for _ in range(draw(st.integers(1, 14))):
        piece = draw(st.sampled_from(pieces)) + draw(st.sampled_from(pieces))
        if piece not in pieces:
            pieces.append(piece)
    places = draw(st.permutations([float(i) for i in range(len(pieces))]))
    scores = dict(zip(pieces, places, strict=True))
    if draw(st.booleans()):
        scores |= {piece: -1e9 for piece in pieces if set(piece) == {"▁"}}
    return scores


def merged(text: str, scores: dict[str, float]) -> list[str]:
    """The pieces of a text by definition: of pairs that make a piece the best is merged, of equals the leftmost."""
    pieces = list(text)
    while pairs := [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(pieces)) if a + b in scores]:
        _, i = min(pairs)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return pieces


@given(vocabularies(), st.lists(st.text("ab ", max_size=24), min_size=1, max_size=6), st.booleans())
def test_merges_are_in_the_order_of_scores(
    tmp_path_factory: pytest.TempPathFactory, scores: dict[str, float], texts: list[str], has_prefix: bool
) -> None:
    """Tokens stand in no order of their scores, beside a token for each byte."""
    tokens = ["<unk>", *sorted(scores), *(f"<0x{byte:02X}>" for byte in range(256))]

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([scores.get(token, 0.0) for token in tokens])
        writer.add_token_types([2, *(1 for _ in scores), *(6 for _ in range(256))])
        writer.add_add_bos_token(False)
        writer.add_add_space_prefix(has_prefix)

    path = tmp_path_factory.mktemp("scores") / "model.gguf"
    tokenizer = read(write(path, edit))
    for text in [*texts, "é".join(texts)]:
        pieces = merged(("▁" if has_prefix and text else "") + text.replace(" ", "▁"), scores)
        # A character without a piece is its bytes.
        expected = [token for piece in pieces for token in (("<0xC3>", "<0xA9>") if piece == "é" else (piece,))]
        assert tokenizer.encode(text).tokens == expected
