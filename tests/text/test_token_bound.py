"""The lower bound of a text's tokens is one, for every kind of tokenizer that it says anything about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.text.tokenizer import Tokenizer, load_tokenizer

TEXTS = st.lists(
    st.text(max_size=20)
    | st.sampled_from(
        [
            "the ",
            "hello",
            "1" * 50,
            " " * 40,
            "\n\n",
            "e\u0301" * 5,
            "\u8a9e\u8a9e",
            "<|mark|>",
            "<｜ä｜>",
            "\u2581",
            "\u3000" * 9,
        ]
    ),
    max_size=12,
).map("".join)
CORPUS = ["the hello hello world 1111 22  \n\n the the \u8a9e \u8a9e\u8a9e caf\u00e9 e\u0301e\u0301"] * 50


def trained(kind: str) -> Tokenizer:
    """A small tokenizer of one kind."""
    backend = Backend(models.BPE(byte_fallback=kind == "fallback"))
    marks = [AddedToken("<|mark|>", normalized=False), AddedToken("<｜ä｜>", lstrip=kind == "strips", normalized=False)]
    if kind == "fallback":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        alphabet, bytes_of = [], [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        if kind == "composes":
            backend.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(r"\s+|\d|\w+"), "removed" if kind == "removes" else "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
        backend.decoder = decoders.ByteLevel()
        alphabet, bytes_of = pre_tokenizers.ByteLevel.alphabet(), []
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=bytes_of, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens(marks)
    return Tokenizer(backend)


TOKENIZERS = {kind: trained(kind) for kind in ("plain", "composes", "fallback", "strips", "removes")}
TOKENIZERS["shipped"] = load_tokenizer(DEFAULT_MODEL)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=TEXTS)
def test_no_text_has_fewer_tokens(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("kind", ["plain", "composes", "fallback", "strips", "shipped"])
def test_a_text_of_one_character_is_known_to_be_long(kind: str) -> None:
    text = "7" * 10_000
    assert TOKENIZERS[kind].fewest_tokens(text) >= len(text) / 10


def test_nothing_is_said_of_a_tokenizer_that_leaves_characters_out() -> None:
    assert TOKENIZERS["removes"].fewest_tokens("7" * 10_000) == 0
