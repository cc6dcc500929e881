"""Loading tokenizers, their exact bytes, and refusing files that cannot be used; generation defaults too."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.errors import CheckpointError
from neuronserve.server.text import tokenizer as tokenizer_module
from neuronserve.server.text.generation_config import load_generation_defaults
from neuronserve.server.text.tokenizer import load_tokenizer
from tests.api.serving import VOCAB_SIZE, write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def own_checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path)


def write(directory: Path, name: str, content: Any) -> None:
    (directory / name).write_text(json.dumps(content))


def test_special_tokens_and_size_come_from_the_files(checkpoint: Path) -> None:
    tokenizer = load_tokenizer(checkpoint)
    assert tokenizer.vocab_size == VOCAB_SIZE
    assert tokenizer.special == {"eos_token": "<|eos|>"}
    assert tokenizer.eos_token_id == 258


def test_a_special_token_may_be_written_as_an_object(own_checkpoint: Path) -> None:
    write(own_checkpoint, "tokenizer_config.json", {"eos_token": {"content": "<|end|>"}, "bos_token": None})
    assert load_tokenizer(own_checkpoint).eos_token_id == 257


def test_bytes_of_tokens_concatenate_to_the_text(checkpoint: Path) -> None:
    tokenizer = load_tokenizer(checkpoint)

    @given(st.text())
    def check(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(tokenizer.token_bytes(i) for i in ids) == text.encode()
        assert tokenizer.decode(ids, skip_special_tokens=False) == text

    check()


def test_ids_outside_the_vocabulary_are_nothing(checkpoint: Path) -> None:
    tokenizer = load_tokenizer(checkpoint)
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.is_silent(10**6)


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": "1.0"}', b"\x80\x04pickle", b"[" * 100_000])
def test_a_broken_tokenizer_file_is_named(own_checkpoint: Path, content: bytes) -> None:
    (own_checkpoint / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"^tokenizer\.json: cannot be read"):
        load_tokenizer(own_checkpoint)


def test_an_oversized_tokenizer_file_is_refused_unread(own_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_TOKENIZER_BYTES", 1000)
    with pytest.raises(CheckpointError, match="larger than the 1000 bytes allowed"):
        load_tokenizer(own_checkpoint)


def test_a_checkpoint_without_any_tokenizer_says_so(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"model_type": "llama"})
    with pytest.raises(CheckpointError, match=r"^tokenizer\.json: is missing in .*, and so is any of"):
        load_tokenizer(tmp_path)


def test_the_name_of_a_directory_need_not_be_utf_8(tmp_path: Path) -> None:
    plain, named = tmp_path / "plain", tmp_path / os.fsdecode(b"mod\xe8le")
    plain.mkdir()
    write_checkpoint(plain)
    try:
        plain.rename(named)
    except OSError:
        pytest.skip("files have names of UTF-8 alone here")
    assert load_tokenizer(named).vocab_size == VOCAB_SIZE


def test_an_older_format_that_cannot_be_converted_says_why(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"not sentencepiece")
    write(tmp_path, "config.json", {"model_type": "llama"})
    with pytest.raises(CheckpointError, match=r"^tokenizer\.json: is missing, and converting another format failed"):
        load_tokenizer(tmp_path)


def test_an_older_format_is_converted(tmp_path: Path) -> None:
    vocab = {"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}
    write(tmp_path, "vocab.json", vocab)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    write(tmp_path, "config.json", {"model_type": "gpt2"})
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("abb") == [3, 2]
    assert tokenizer.eos_token_id == 0


def test_end_tokens_of_all_files_count_once(own_checkpoint: Path) -> None:
    write(own_checkpoint, "config.json", {"eos_token_id": 256})
    defaults = load_generation_defaults(own_checkpoint, load_tokenizer(own_checkpoint))
    assert defaults.eos_token_ids == (258, 257, 256)


def test_default_sampling_is_read(own_checkpoint: Path) -> None:
    write(
        own_checkpoint, "generation_config.json", {"temperature": 0.6, "top_p": 0.95, "top_k": -1, "max_new_tokens": 9}
    )
    defaults = load_generation_defaults(own_checkpoint, load_tokenizer(own_checkpoint))
    assert (defaults.temperature, defaults.top_p, defaults.top_k, defaults.max_new_tokens) == (0.6, 0.95, 0, 9)
    assert defaults.min_p is None


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"temperature": -1}, "temperature is -1: expected `float` >= 0.0"),
        ({"top_p": 0}, "top_p is 0: expected `float` > 0.0"),
        ({"top_k": 1.5}, "top_k"),
        ({"temperature": True}, "temperature"),
        ({"eos_token_id": "2"}, "eos_token_id is '2': expected `int | array | null`"),
        ({"eos_token_id": [1, -2]}, "eos_token_id[1] is -2: expected `int` >= 0"),
        ([], "expected `object`, got `array`"),
    ],
)
def test_defaults_that_cannot_be_used_stop_the_start(own_checkpoint: Path, content: Any, complaint: str) -> None:
    write(own_checkpoint, "generation_config.json", content)
    with pytest.raises(CheckpointError, match=r"^generation_config\.json: ") as caught:
        load_generation_defaults(own_checkpoint, load_tokenizer(own_checkpoint))
    assert complaint in str(caught.value)
