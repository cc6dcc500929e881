"""Text windows to measure a model on: the documents of a file, cut into sequences of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import SettingsError
from ..text.tokenizer import Tokenizer
from ..typed_json import JsonError, decode

Window = tuple[int, ...]  # token ids of one sequence


class _Document(msgspec.Struct):
    text: str


def read_documents(path: Path) -> list[str]:
    """Read the `text` of every line of a .jsonl file, or the whole of any other file. Raises SettingsError."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingsError(f"--text: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"--text: {path} is not UTF-8: {error.reason} at byte {error.start}") from error
    if path.suffix != ".jsonl":
        return [content]
    return [_text(path, number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]


def _text(path: Path, number: int, line: str) -> str:
    try:
        return decode(line, _Document).text
    except JsonError as error:
        raise SettingsError(f"--text: {path}:{number}: {error}") from error


def windows(tokenizer: Tokenizer, documents: list[str], num_tokens: int, window_len: int) -> list[Window]:
    """Return the first `num_tokens` tokens, in sequences of at most `window_len` that never span two documents.

    Raises SettingsError when there are fewer.
    """
    cut: list[Window] = []
    left = num_tokens
    for window in _windows(tokenizer, documents, window_len):
        cut.append(window[:left])
        left -= len(cut[-1])
        if left == 0:
            return cut
    raise SettingsError(f"--text: has {num_tokens - left} tokens, but num_tokens is {num_tokens}")


def _windows(tokenizer: Tokenizer, documents: list[str], window_len: int) -> Iterator[Window]:
    for document in documents:
        ids = tokenizer.encode(document)
        yield from (tuple(ids[start : start + window_len]) for start in range(0, len(ids), window_len))
