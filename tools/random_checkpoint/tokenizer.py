"""A byte-level BPE tokenizer of any vocabulary size, made without a corpus: the same on every machine.

Ids: the 256 bytes, then merges of lowercase letters from likely to unlikely, then the special tokens. It round-trips
any text, since every byte has an id.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

END_OF_TEXT = "<|endoftext|>"
START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
SPECIAL = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)

LETTERS = "etaoinshrdlcumwfgypbvkjxqz"  # English, by frequency
MIN_VOCAB = 256 + len(SPECIAL)
MAX_VOCAB = MIN_VOCAB + 26 + 2 * 26**2 + 2 * 26**3 + 26**4

# The pre-tokenizer pattern of Llama 3: contractions, words, up to three digits, punctuation, line ends, blanks.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def special_token_ids(vocab: int) -> dict[str, int]:
    """Return the ids of the special tokens, the last of the vocabulary."""
    return {token: vocab - len(SPECIAL) + i for i, token in enumerate(SPECIAL)}


def tokenizer_json(vocab: int) -> dict[str, Any]:
    """Return tokenizer.json with exactly `vocab` entries, special tokens included.

    Raises ValueError if `vocab` cannot hold the bytes, or exceeds the number of merges.
    """
    if not MIN_VOCAB <= vocab <= MAX_VOCAB:
        raise ValueError(f"vocabulary must be between {MIN_VOCAB} and {MAX_VOCAB}, not {vocab}")
    merges = list(itertools.islice(_merges(), vocab - MIN_VOCAB))
    tokens = [*_byte_characters(), *(a + b for a, b in merges)]
    added = [_added_token(token, i) for token, i in special_token_ids(vocab).items()]
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }


def tokenizer_config(max_position: int) -> dict[str, Any]:
    """Return tokenizer_config.json with a ChatML chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_position,
        "bos_token": None,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def generation_config(vocab: int) -> dict[str, Any]:
    """Return generation_config.json: sampling defaults, and both tokens that end a text."""
    ids = special_token_ids(vocab)
    return {
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.95,
        "eos_token_id": [ids[END_OF_TURN], ids[END_OF_TEXT]],
        "pad_token_id": ids[END_OF_TEXT],
    }


def _added_token(token: str, token_id: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": token} | flags


def _byte_characters() -> list[str]:
    """Return the printable character of each byte in a byte-level vocabulary, as in GPT-2."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = itertools.count(0x100)
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _merges() -> Iterator[tuple[str, str]]:
    """Yield pairs of tokens to merge, likely ones first; their parts have been merged before them."""
    blank = _byte_characters()[0x20]
    rank = {letter: i for i, letter in enumerate(LETTERS)}
    pairs = sorted(itertools.product(LETTERS, LETTERS), key=lambda p: (rank[p[0]] + rank[p[1]], rank[p[0]]))
    yield from ((blank, letter) for letter in LETTERS)
    yield from pairs
    yield from ((blank + a, b) for a, b in pairs)
    yield from ((a + b, c) for (a, b) in pairs for c in LETTERS)
    yield from ((blank + a + b, c) for (a, b) in pairs for c in LETTERS)
    yield from ((a + b, c + d) for (a, b) in pairs for (c, d) in pairs)
