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
_RUNS = "|".join(rf"\s{{{size}}}(?!\S)" for size in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
JAIS2 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_RUNS}|\s"
QWEN2 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{_REST}"
TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}{_REST_AND_SLASHES}"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT4O = rf"{_CASED[0]}{_ENDINGS}?|{_CASED[1]}{_ENDINGS}?|\p{{N}}{{1,3}}{_REST_AND_SLASHES}"
_LETTERS_AND_MARKS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
QWEN35 = rf"{_ENDINGS}|{_LETTERS_AND_MARKS}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SEED = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
EXAONE_MOE = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
MINICPM5 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}+{_REST}"
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_HAN = r"\p{Han}+"
KIMI = "|".join(
    (
        _HAN,
        *(
            rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}&&[^\p{{Han}}]]{first}[{_LOWER}&&[^\p{{Han}}]]{second}{_ENDINGS}?"
            for first, second in (("*", "+"), ("+", "*"))
        ),
        rf"\p{{N}}{{1,3}}{_REST}",
    )
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# Letters with a case, as DeepSeek LLM's tokenizer.json lists them.
_WITH_CASE = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_WITH_CASE}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK,
    r"\p{N}+",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    rf"{_CASED[0]}{_ENDINGS}?|{_CASED[1]}{_ENDINGS}?|\p{{N}}{_REST_AND_SLASHES}",
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to split text: each expression splits the parts of those before it; without one, as GPT-2 does."""

    names: tuple[str, ...]
    expressions: tuple[str, ...] = ()
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
        words = [pre_tokenizers.Split(Regex(each), "isolated") for each in self.expressions]
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.expressions)
        return pre_tokenizers.Sequence([*digits, *words, whole])


_ROWS = (
    PreTokenizer(
        (
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "exaone4",
            "modern-bert",
            "mellum",
            "jais",
            "granite-docling",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "trillion",
        )
    ),
    PreTokenizer(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        has_single_digits=True,
    ),
    PreTokenizer(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0", "jina-v5-nano"),
        (LLAMA3,),
        ignores_merges=True,
        adds_bos=True,
    ),
    PreTokenizer(("dbrx", "smaug-bpe", "chatglm-bpe"), (LLAMA3,)),
    PreTokenizer(("jais-2",), (JAIS2,)),
    PreTokenizer(("glm4", "glm5"), (LLAMA3,), ignores_merges=True),
    PreTokenizer(("qwen2", "deepseek-r1-qwen", "megrez", "f2llmv2"), (QWEN2,), is_composed=True),
    PreTokenizer(("stablelm2", "hunyuan", "solar-open", "grok-2"), (QWEN2,)),
    PreTokenizer(("tekken",), (TEKKEN,), ignores_merges=True, adds_bos=True),
    PreTokenizer(("qwen35",), (QWEN35,), is_composed=True),
    PreTokenizer(("seed-coder",), (SEED,)),
    PreTokenizer(("bailingmoe", "bailingmoe2", "llada-moe"), (BAILING,)),
    PreTokenizer(("exaone-moe",), (EXAONE_MOE,)),
    PreTokenizer(("laguna",), (r"[^\n]+|[\n]+", QWEN2)),
    PreTokenizer(("minicpm5",), (r"\p{N}{1,3}", MINICPM5), ignores_merges=True),
    PreTokenizer(("bloom", "poro-chat", "gpt3-finnish"), (BLOOM,)),
    PreTokenizer(("viking",), (BLOOM, r"\p{N}")),
    PreTokenizer(("kimi-k2",), (KIMI,)),
    PreTokenizer(("youtu",), YOUTU, ignores_merges=True),
    PreTokenizer(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), DEEPSEEK_V3),
    PreTokenizer(("deepseek-llm",), DEEPSEEK_LLM),
    PreTokenizer(("deepseek-coder",), DEEPSEEK_CODER),
    PreTokenizer(("falcon",), (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    # The name of files that state none.
    PreTokenizer(("default",), (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    PreTokenizer(("gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"), (GPT4O,)),
)
PRE_TOKENIZERS = {name: row for row in _ROWS for name in row.names}
