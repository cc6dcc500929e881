"""Tokenizers of GGUF files give the same tokens as those that they were made of, for any text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from neuronserve.server.checkpoint.gguf.directory import gguf_directory
from neuronserve.server.checkpoint.gguf.files import open_gguf
from neuronserve.server.checkpoint.gguf.pre_tokenizers import PRE_TOKENIZERS
from neuronserve.server.checkpoint.gguf.tokenizer import GgufVocabulary, tokenizer_of
from neuronserve.server.errors import CheckpointError
from neuronserve.server.text.chat_template import load_chat_template
from neuronserve.server.text.generation_config import load_generation_defaults
from neuronserve.server.text.tokenizer import load_tokenizer
from tests.checkpoint.gguf.made import finish, write_config

SENTENCES = [
    "The quick brown fox can't jump over 12 lazy dogs, they're 3.14 metres long!",
    "def f(x):\n    return x ** 2  # naïve\n\n",
    "Ünïcödé — 日本語 テキスト, الثعلب البني; 👩‍👩‍👧 emoji",
    "  spaces   and\ttabs\r\n and   more  ",
] * 3
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
Edit = Callable[[gguf.GGUFWriter], object]
Rows = np.zeros((1000, 64), np.float32)


def write(path: Path, write_vocabulary: Edit, architecture: str = "llama") -> Path:
    """A file with a vocabulary and little else."""
    writer = gguf.GGUFWriter(path, architecture)
    sizes = dict(hidden_size=64, num_hidden_layers=1, intermediate_size=64, num_attention_heads=4)
    write_config(
        writer,
        {"model_type": "llama", "max_position_embeddings": 64, "num_key_value_heads": 4, "rms_norm_eps": 1e-5} | sizes,
    )
    writer.add_tensor("token_embd.weight", Rows)
    write_vocabulary(writer)
    finish(writer)
    return path


def byte_level(splitter: Any, normalizer: Any = None) -> tokenizers.Tokenizer:
    """A tokenizer of GPT-2's kind, trained on a few lines."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def parts(tokenizer: tokenizers.Tokenizer) -> tuple[list[str], list[int], list[str]]:
    """Tokens by id, their types, and merges."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=lambda token: vocab[token])
    added = {each.content: 3 if each.special else 4 for each in tokenizer.get_added_tokens_decoder().values()}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return tokens, [added.get(token, 1) for token in tokens], [" ".join(pair) for pair in merges]


def byte_level_vocabulary(tokenizer: tokenizers.Tokenizer, name: str) -> Edit:
    tokens, types, merges = parts(tokenizer)

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_list([*tokens, f"[PAD{len(tokens)}]"])
        writer.add_token_types([*types, 5])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(tokens.index("<s>"))
        writer.add_eos_token_id(tokens.index("</s>"))

    return edit


def sentencepiece(*, has_prefix: bool) -> tuple[tokenizers.Tokenizer, list[str], list[int]]:
    """A tokenizer of SentencePiece's kind, its pieces and their types: special, bytes, then as they were learned."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    letters = [token for token in learned["vocab"] if len(token) == 1]
    merged = dict.fromkeys("".join(pair) for pair in learned["merges"])
    tokens = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *merged, *letters]
    types = [2, *(3 for _ in SPECIAL), *(6 for _ in range(256)), *(1 for _ in (*merged, *letters))]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(pair) for pair in learned["merges"]]
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if has_prefix else spaces
    tail = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in ("<unk>", *SPECIAL)])
    return tokenizer, tokens, types


def sentencepiece_vocabulary(tokens: list[str], types: list[int], *, has_prefix: bool) -> Edit:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores([-float(i) for i in range(len(tokens))])
        writer.add_token_types(types)
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(False)
        writer.add_add_space_prefix(has_prefix)

    return edit


def read(path: Path) -> tokenizers.Tokenizer:
    files = open_gguf([path])
    return tokenizer_of(GgufVocabulary(files), files)


def pairs(root: Path) -> dict[str, tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]]:
    """Tokenizers and what became of them on the way through a file."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
    real = {
        "gpt-2": byte_level(whole),
        "smollm": byte_level(pre_tokenizers.Sequence([digits, whole])),
        **{
            name: byte_level(row.splitter(), row.normalizer())
            for name, row in PRE_TOKENIZERS.items()
            if row.expressions
        },
    }
    found = {
        name: (each, read(write(root / f"{name}.gguf", byte_level_vocabulary(each, name))))
        for name, each in real.items()
        if name in ("gpt-2", "smollm", "qwen2", "gpt-4o")
    }
    for has_prefix in (False, True):
        tokenizer, tokens, types = sentencepiece(has_prefix=has_prefix)
        path = write(root / f"sp{has_prefix}.gguf", sentencepiece_vocabulary(tokens, types, has_prefix=has_prefix))
        found[f"llama {has_prefix}"] = tokenizer, read(path)
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]]:
    return pairs(tmp_path_factory.mktemp("tokenizers"))


TEXT = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(
            [*SPECIAL, "<think>", " ", "  ", "\n\n", "\r\n", "can't", "123", "٣٤", "é", "e\u0301", "▁", "<0x41>"]
        ),
    ),
    max_size=8,
).map("".join)


@given(TEXT)
def test_any_text_is_the_same_tokens_and_back(
    both: dict[str, tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]], text: str
) -> None:
    for name, (real, ours) in both.items():
        expected = real.encode(text)
        assert ours.encode(text).ids == expected.ids, name
        assert ours.decode(expected.ids, skip_special_tokens=False) == real.decode(
            expected.ids, skip_special_tokens=False
        )


END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
EXPRESSIONS = {
    # As the tokenizer.json of each model has it.
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + END,
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + END,
}


def test_expressions_are_those_of_the_models() -> None:
    assert {name: PRE_TOKENIZERS[name].expressions[0] for name in EXPRESSIONS} == EXPRESSIONS


def test_the_text_floor_reads_what_was_made(tmp_path: Path) -> None:
    real = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokens, _, _ = parts(real)

    def edit(writer: gguf.GGUFWriter) -> None:
        byte_level_vocabulary(real, "gpt-2")(writer)
        writer.add_add_bos_token(True)
        writer.add_chat_template([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}])

    directory = gguf_directory(write(tmp_path / "m.gguf", edit), tmp_path / "cache")
    tokenizer = load_tokenizer(directory)
    assert tokenizer.encode("The fox") == [tokens.index("<s>"), *real.encode("The fox").ids]
    assert tokenizer.special == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.vocab_size == len(tokens)
    template = load_chat_template(directory)
    assert template is not None
    assert "plain" in template
    assert "tools" in template
    ends = load_generation_defaults(directory, tokenizer).eos_token_ids
    assert set(ends) == {tokens.index("</s>"), tokens.index("<|im_end|>")}


def strings(key: str, value: list[str]) -> Edit:
    return lambda writer: writer.add_array(f"tokenizer.ggml.{key}", value)


def numbers(key: str, value: int) -> Edit:
    return lambda writer: writer.add_uint32(f"tokenizer.ggml.{key}", value)


def name(value: str, pre: str = "gpt-2") -> Edit:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(value)
        writer.add_tokenizer_pre(pre)

    return edit


def scores(*values: float) -> Edit:
    return lambda writer: writer.add_token_scores(list(values))


TOKENS, MERGES = strings("tokens", ["a", "b", "ab"]), strings("merges", ["a b"])
REFUSED = [
    ((name("t5"), TOKENS), "scores must have a finite number"),
    ((name("t5"), TOKENS, scores(0.0, 0.0, 0.0), strings("precompiled_charsmap", ["x"])), "charsmap must be bytes"),
    ((name("gpt2"), MERGES), "tokens must be"),
    ((name("gpt2", "new"), TOKENS, MERGES), "pre is 'new'"),
    ((name("gpt2"), TOKENS), "merges must be a list"),
    ((name("gpt2"), TOKENS, strings("merges", ["ab"])), "has 'ab', which is not two texts"),
    ((name("gpt2"), TOKENS, strings("merges", ["a c"])), "make no tokenizer"),
    ((name("gpt2"), TOKENS, MERGES, lambda writer: writer.add_token_types([1])), "type of each of 3 tokens"),
    ((name("gpt2"), TOKENS, MERGES, numbers("eos_token_id", 3)), "eos_token_id is 3: there are 3 tokens"),
    ((name("gpt2"), strings("tokens", ["a", "b", "a"]), MERGES), "tokens has 'a' more than once"),
    ((name("llama"), TOKENS), "scores must have a finite number for each of 3 tokens"),
    ((name("llama"), TOKENS, scores(0.0, 1.0)), "scores must have a finite number for each of 3 tokens"),
    ((name("llama"), TOKENS, scores(0.0, 1.0, float("nan"))), "scores must have a finite number for each of 3 tokens"),
    ((name("llama"), strings("tokens", ["a", "a" * 257]), scores(0.0, 1.0)), "tokens has one of 257 characters"),
    *(((name(kind), TOKENS, MERGES), f"model is '{kind}'") for kind in ("rwkv", "plamo2", "no_vocab")),
]


@pytest.mark.parametrize(("edits", "message"), REFUSED, ids=[row[1] for row in REFUSED])
def test_vocabularies_that_make_no_tokenizer_are_refused(tmp_path: Path, edits: tuple[Edit, ...], message: str) -> None:
    path = write(tmp_path / "m.gguf", lambda writer: [edit(writer) for edit in edits])
    with pytest.raises(CheckpointError) as caught:
        gguf_directory(path, tmp_path / "cache")
    assert message in str(caught.value)
