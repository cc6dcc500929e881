"""Log-probabilities in OpenAI's two shapes: tokens as text and, in chat, also as their exact bytes.

Log-probabilities of a prompt have vLLM's shape; if the prompt is echoed, they stand before those of the output.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ...text.tokenizer import Tokenizer
from ...types import TokenLogprobs
from ..wire.chat import ChatLogprobs, TokenLogprob, TopLogprob
from ..wire.completions import CompletionLogprobs
from ..wire.generation import GenerationRequest
from ..wire.usage import PromptLogprob, PromptLogprobs
from .deltas import Delta
from .prompts import Prompt

LEAST = -9999.0  # minus infinity, which JSON does not have
Entry = tuple[int, TokenLogprobs | None]  # a token; None for the first of a prompt, which has no prediction


class TokenNames:
    """Names of tokens: their text, the bytes of a part of a character, or `token_id:N`, which is unique."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        """Return the name; bytes that are no text are written as OpenAI writes them, `bytes:\\xe2\\x82`."""
        if self._as_ids:
            return _by_id(token_id)
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + data.decode("ascii", errors="backslashreplace")

    def text(self, token_id: int) -> str:
        """Return the token's text."""
        return self._tokenizer.token_text(token_id)

    def entry(self, token_id: int, logprob: float) -> dict[str, object]:
        data = self._tokenizer.token_bytes(token_id)
        name = _by_id(token_id) if self._as_ids else data.decode("utf-8", errors="replace")
        return {"token": name, "logprob": max(LEAST, logprob), "bytes": list(data)}


def _by_id(token_id: int) -> str:
    return f"token_id:{token_id}"


class TextOffsets:
    """Offsets of a choice's tokens in its text, in characters; all tokens of one character have its offset."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._next = 0

    def of(self, token_ids: Sequence[int], skips_special: bool = True) -> list[int]:
        """Return the offset of each of the next tokens; a token that the text leaves out has no length."""
        offsets = []
        for token_id in token_ids:
            offsets.append(self._next)
            if not self._tokenizer.is_silent(token_id, skips_special):
                self._next += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return offsets

    def of_prompt(self, token_ids: Sequence[int], num_chars: int) -> list[int]:
        """Return the offsets in a prompt that has `num_chars` characters in the text; the output follows it."""
        offsets = [min(offset, num_chars) for offset in self.of(token_ids)]
        self._next = num_chars
        return offsets


def num_shown(body: GenerationRequest, num_top: int | None) -> int:
    """Number of alternatives to each token: the tokens that the request names and the token itself, else the best."""
    return 1 + len(body.logprob_token_ids) if body.logprob_token_ids else num_top or 0


def chat_logprobs(names: TokenNames, delta: Delta, num_top: int) -> ChatLogprobs:
    """Return an entry for each token with its `num_top` alternatives, best first."""
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **names.entry(token_id, entry.sampled),
                top_logprobs=[TopLogprob(**names.entry(i, value)) for i, value in _top(entry, num_top)],
            )
            for token_id, entry in zip(delta.token_ids, delta.logprobs, strict=True)
        ]
    )


def echoed(prompt: Prompt, delta: Delta) -> list[Entry]:
    """Return the prompt's tokens as entries; `delta` has their log-probabilities."""
    return list(zip(prompt.token_ids, (None, *delta.prompt_logprobs), strict=True))


def completion_logprobs(
    names: TokenNames, entries: Sequence[Entry], num_top: int, offsets: Sequence[int]
) -> CompletionLogprobs:
    """Return an entry for each token with its `num_top` alternatives and itself. `offsets` are in characters."""
    return CompletionLogprobs(
        text_offset=list(offsets),
        token_logprobs=[None if entry is None else max(LEAST, entry.sampled) for _, entry in entries],
        tokens=[names.name(token_id) for token_id, _ in entries],
        top_logprobs=[None if entry is None else _by_name(names, i, entry, num_top) for i, entry in entries],
    )


def _by_name(names: TokenNames, token_id: int, entry: TokenLogprobs, num_top: int) -> dict[str, float]:
    """Return the log-probabilities of the token and its alternatives, best first, under distinct names."""
    found: dict[str, float] = {}
    for i, value in {token_id: entry.sampled, **dict(_top(entry, num_top))}.items():
        name = names.name(i)
        found[_by_id(i) if name in found else name] = max(LEAST, value)
    return found


def prompt_logprobs(names: TokenNames, prompt: Prompt, delta: Delta, num_top: int) -> PromptLogprobs:
    """Return vLLM's `prompt_logprobs`: each token of the prompt, then the `num_top` best at its place, by token id."""
    return [
        None if entry is None else _ranked(names, token_id, entry, num_top) for token_id, entry in echoed(prompt, delta)
    ]


def _ranked(names: TokenNames, token_id: int, entry: TokenLogprobs, num_top: int) -> dict[str, PromptLogprob]:
    found = [(token_id, entry.sampled, entry.rank)]
    found += [(i, value, rank) for rank, (i, value) in enumerate(_top(entry, num_top), 1) if i != token_id]
    return {
        str(i): PromptLogprob(logprob=max(LEAST, value), rank=rank, decoded_token=names.text(i))
        for i, value, rank in found
    }


def _top(entry: TokenLogprobs, num_top: int) -> list[tuple[int, float]]:
    return list(zip(entry.top_token_ids, entry.top_logprobs, strict=True))[:num_top]
