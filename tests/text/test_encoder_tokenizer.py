"""Texts and pairs for encoders: special tokens, token types, and the length that they are held to."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronserve.server.errors import CheckpointError
from neuronserve.server.text.encoder_tokenizer import EncoderTokenizer, stated_length
from neuronserve.server.text.tokenizer import Tokenizer
from tests.encoders import tiny_tokenizer, write_json

CLS, SEP = 2, 3


def tokenizer(max_length: int = 16, is_lower_case: bool = False) -> EncoderTokenizer:
    return EncoderTokenizer(Tokenizer(tiny_tokenizer()), max_length, is_lower_case)


def letters(ids: tuple[int, ...]) -> str:
    return "".join(tiny_tokenizer().id_to_token(i).removeprefix("##") for i in ids)


def test_a_text_has_its_special_tokens_and_no_types() -> None:
    (found,) = tokenizer().encode(["ab"])
    assert letters(found.token_ids) == "[CLS]ab[SEP]"
    assert found.token_types == ()
    assert letters(tokenizer().encode([""])[0].token_ids) == "[CLS][SEP]"


def test_a_pair_has_types() -> None:
    (found,) = tokenizer().encode([("ab", "c")])
    assert letters(found.token_ids) == "[CLS]ab[SEP]c[SEP]"
    assert found.token_types == (0, 0, 0, 0, 1, 1)


def test_a_long_text_keeps_its_beginning_and_special_tokens() -> None:
    (found,) = tokenizer(5).encode(["abcdefgh"])
    assert letters(found.token_ids) == "[CLS]abc[SEP]"


def test_the_longer_text_of_a_pair_is_cut_first() -> None:
    (found,) = tokenizer(8).encode([("ab", "cdefghij")])
    assert letters(found.token_ids) == "[CLS]ab[SEP]cde[SEP]"
    (found,) = tokenizer(7).encode([("abcdefgh", "jihgfedc")])
    assert letters(found.token_ids) == "[CLS]ab[SEP]ji[SEP]"


def test_texts_may_be_lowered() -> None:
    first, second = tokenizer(is_lower_case=True).encode(["Ab", ("A", "B")])
    assert letters(first.token_ids) == "[CLS]ab[SEP]"
    assert letters(second.token_ids) == "[CLS]a[SEP]b[SEP]"


def test_the_special_tokens_must_fit() -> None:
    with pytest.raises(CheckpointError, match="adds 3 special tokens: the limit is 3"):
        tokenizer(3)


@pytest.mark.parametrize(("stated", "length"), [(512, 512), (1e30, None), (512.0, 512), (None, None)])
def test_the_length_that_the_files_state(tmp_path: Path, stated: float | None, length: int | None) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"model_max_length": stated})
    assert stated_length(tmp_path) == length
    assert stated_length(tmp_path / "nowhere") is None
