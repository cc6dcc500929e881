"""Tokenizers beside BPE in bytes: WordPiece ("bert"), unigrams ("t5"), and BPE with a list of merges ("gemma4").

Files have WordPiece's tokens in SentencePiece's spelling: ▁ before a word, and nothing before a continuation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

SPACE = "▁"
CONTINUES = "##"


def spaced_bpe(
    vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], unknown: str | None
) -> tokenizers.Tokenizer:
    """Return BPE over the whole text, in which a space is a letter; a character without a piece becomes bytes."""
    tokenizer = tokenizers.Tokenizer(
        models.BPE(dict(vocab), list(merges), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def word_pieces(vocab: Mapping[str, int], unknown: str, lowers: bool, strips_accents: bool) -> tokenizers.Tokenizer:
    """Return BERT's tokenizer: words and punctuation, each in the longest pieces."""
    pieces = {_own(token): number for token, number in vocab.items()}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(pieces, unk_token=unknown, continuing_subword_prefix=CONTINUES))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowers, strip_accents=strips_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUES)
    return tokenizer


def _own(token: str) -> str:
    """Return the spelling of BERT's own vocabulary. Tokens in brackets stay."""
    if token.startswith(SPACE):
        return token[1:]
    return token if token.startswith("[") and token.endswith("]") else CONTINUES + token


def spaces(charsmap: bytes, is_single: bool) -> normalizers.Sequence:
    """Return SentencePiece's normalizer: a table of characters that are replaced, and spaces if one stands for all."""
    single = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), SPACE)]
    return normalizers.Sequence(
        [*([normalizers.Precompiled(charsmap)] if charsmap else []), *(single if is_single else [])]
    )


def unigram(
    pieces: Sequence[tuple[str, float]], unknown: int | None, normalizer: normalizers.Sequence, has_prefix: bool
) -> tokenizers.Tokenizer:
    """Return SentencePiece's unigrams: the pieces of a text with the highest sum of scores."""
    tokenizer = tokenizers.Tokenizer(models.Unigram(list(pieces), unknown, False))
    tokenizer.normalizer = normalizer
    scheme = "always" if has_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    return tokenizer
