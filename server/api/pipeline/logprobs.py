"""Log probabilities in OpenAI's two shapes: tokens as text and, in chat, also as their exact bytes."""

from __future__ import annotations

from server.api.pipeline.generation import Delta
from server.api.wire.chat import ChatLogprobs, TokenLogprob, TopLogprob
from server.api.wire.completions import CompletionLogprobs
from server.text.tokenizer import Tokenizer
from server.types import TokenLogprobs

LEAST = -9999.0  # stands for minus infinity, which JSON does not have


class TokenNames:
    """How tokens are written: as their text, or as `token_id:N`, which also distinguishes tokens of one text."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._tokenizer.token_text(token_id)

    def num_chars(self, token_id: int) -> int:
        """Characters of the token's text, whatever its name."""
        return len(self._tokenizer.token_text(token_id))

    def entry(self, token_id: int, logprob: float) -> dict[str, object]:
        data = self._tokenizer.token_bytes(token_id)
        name = self.name(token_id) if self._as_ids else data.decode("utf-8", errors="replace")
        return {"token": name, "logprob": max(LEAST, logprob), "bytes": list(data)}


def chat_logprobs(names: TokenNames, delta: Delta, num_top: int) -> ChatLogprobs:
    """Entry of each token with its `num_top` best alternatives, best first."""
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **names.entry(token_id, entry.sampled),
                top_logprobs=[TopLogprob(**names.entry(i, value)) for i, value in _top(entry, num_top)],
            )
            for token_id, entry in zip(delta.token_ids, delta.logprobs, strict=True)
        ]
    )


def completion_logprobs(names: TokenNames, delta: Delta, num_top: int, offset: int) -> CompletionLogprobs:
    """Entry of each token with its `num_top` best alternatives and the sampled one. `offset` is in characters."""
    tokens = [names.name(token_id) for token_id in delta.token_ids]
    sizes = [names.num_chars(token_id) for token_id in delta.token_ids]
    alternatives = []
    for token, entry in zip(tokens, delta.logprobs, strict=True):
        best = {names.name(i): max(LEAST, value) for i, value in reversed(_top(entry, num_top))}
        alternatives.append({**best, token: max(LEAST, entry.sampled)})
    return CompletionLogprobs(
        text_offset=[offset + sum(sizes[:i]) for i in range(len(sizes))],
        token_logprobs=[max(LEAST, entry.sampled) for entry in delta.logprobs],
        tokens=tokens,
        top_logprobs=alternatives,
    )


def _top(entry: TokenLogprobs, num_top: int) -> list[tuple[int, float]]:
    return list(zip(entry.top_token_ids, entry.top_logprobs, strict=True))[:num_top]
