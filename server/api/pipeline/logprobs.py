"""Log probabilities in OpenAI's two shapes: tokens as text and, in chat, also as their exact bytes.

Those of prompts are in vLLM's shape, and among the output's where the prompt is echoed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from server.api.pipeline.deltas import Delta
from server.api.pipeline.prompts import Prompt
from server.api.wire.chat import ChatLogprobs, TokenLogprob, TopLogprob
from server.api.wire.completions import CompletionLogprobs
from server.api.wire.generation import GenerationRequest
from server.api.wire.usage import PromptLogprob, PromptLogprobs
from server.text.tokenizer import Tokenizer
from server.types import TokenLogprobs

LEAST = -9999.0  # stands for minus infinity, which JSON does not have
Entry = tuple[int, TokenLogprobs | None]  # a token; None for a prompt's first, which nothing predicts


class TokenNames:
    """How tokens are written: as their text, or as `token_id:N`, which also distinguishes tokens of one text."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._tokenizer.token_text(token_id)

    def text(self, token_id: int) -> str:
        """The token's text, whatever its name."""
        return self._tokenizer.token_text(token_id)

    def offsets(self, token_ids: Sequence[int], first: int) -> list[int]:
        """Where each token begins, in characters, and where the last one ends, when the first begins at `first`."""
        return list(itertools.accumulate((len(self.text(i)) for i in token_ids), initial=first))

    def entry(self, token_id: int, logprob: float) -> dict[str, object]:
        data = self._tokenizer.token_bytes(token_id)
        name = self.name(token_id) if self._as_ids else data.decode("utf-8", errors="replace")
        return {"token": name, "logprob": max(LEAST, logprob), "bytes": list(data)}


def num_shown(body: GenerationRequest, num_top: int | None) -> int:
    """Number of alternatives to each token: the tokens that the request names, else the `num_top` best."""
    return len(body.logprob_token_ids) if body.logprob_token_ids else num_top or 0


def chat_logprobs(names: TokenNames, delta: Delta, num_top: int) -> ChatLogprobs:
    """Entry of each token with its `num_top` alternatives, in the order of the engine."""
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
    """The prompt's tokens as entries, where their log-probabilities are in `delta`."""
    return list(zip(prompt.token_ids, (None, *delta.prompt_logprobs), strict=True))


def completion_logprobs(
    names: TokenNames, entries: Sequence[Entry], num_top: int, offsets: Sequence[int]
) -> CompletionLogprobs:
    """Entry of each token with its `num_top` alternatives and itself. `offsets` are in characters."""
    alternatives: list[dict[str, float] | None] = []
    for token_id, entry in entries:
        if entry is None:
            alternatives.append(None)
            continue
        best = {names.name(i): max(LEAST, value) for i, value in reversed(_top(entry, num_top))}
        alternatives.append({**best, names.name(token_id): max(LEAST, entry.sampled)})
    return CompletionLogprobs(
        text_offset=list(offsets),
        token_logprobs=[None if entry is None else max(LEAST, entry.sampled) for _, entry in entries],
        tokens=[names.name(token_id) for token_id, _ in entries],
        top_logprobs=alternatives,
    )


def prompt_logprobs(names: TokenNames, prompt: Prompt, delta: Delta, num_top: int) -> PromptLogprobs:
    """vLLM's `prompt_logprobs`: each token of the prompt, then the `num_top` best at its place, by token id."""
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
