"""Splitting of text before byte-level merges, by its name in a GGUF file (`tokenizer.ggml.pre`).

Source of the rows: llama.cpp's src/llama-vocab.cpp (the names, which take whole words first, and which begin with
<bos>). The expressions are those of the tokenizer.json that each name stands for. A name without a row is refused:
merges on text that is split otherwise give other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_REST_AND_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

LLAMA3 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}{_REST}"
QWEN2 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{_REST}"
TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}{_REST_AND_SLASHES}"
GPT4O = rf"{_CASED[0]}{_ENDINGS}?|{_CASED[1]}{_ENDINGS}?|\p{{N}}{{1,3}}{_REST_AND_SLASHES}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to split text. Without an `expression` it is that of GPT-2, which `tokenizers` has."""

    names: tuple[str, ...]
    expression: str = ""
    has_single_digits: bool = False  # digits are cut out one by one first
    is_composed: bool = False  # text is brought to Unicode's NFC first
    ignores_merges: bool = False  # a word of the vocabulary is one token
    adds_bos: bool = False  # unless the file says otherwise

    def normalizer(self) -> Any:
        """Return the normalizer, None where text is not normalized."""
        return normalizers.NFC() if self.is_composed else None

    def splitter(self) -> Any:
        """Return the pre-tokenizer."""
        digits = [pre_tokenizers.Digits(individual_digits=True)] if self.has_single_digits else []
        words = [pre_tokenizers.Split(Regex(self.expression), "isolated")] if self.expression else []
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.expression)
        return pre_tokenizers.Sequence([*digits, *words, whole])


_ROWS = (
    PreTokenizer(("gpt-2", "phi-2", "mpt", "olmo", "exaone4", "modern-bert", "mellum", "jais", "granite-docling")),
    PreTokenizer(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        has_single_digits=True,
    ),
    PreTokenizer(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"),
        LLAMA3,
        ignores_merges=True,
        adds_bos=True,
    ),
    PreTokenizer(("dbrx", "smaug-bpe", "chatglm-bpe"), LLAMA3),
    PreTokenizer(("glm4",), LLAMA3, ignores_merges=True),
    PreTokenizer(("qwen2", "deepseek-r1-qwen", "megrez"), QWEN2, is_composed=True),
    PreTokenizer(("stablelm2", "hunyuan", "solar-open", "grok-2"), QWEN2),
    PreTokenizer(("tekken",), TEKKEN, ignores_merges=True, adds_bos=True),
    PreTokenizer(("gpt-4o", "llama4", "kanana2", "minimax-m2"), GPT4O),
)
PRE_TOKENIZERS = {name: row for row in _ROWS for name in row.names}
