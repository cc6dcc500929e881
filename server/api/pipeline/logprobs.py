"""Log probabilities in OpenAI's two shapes: tokens as text and, in chat, also as their exact bytes."""

from __future__ import annotations

from server.api.pipeline.generation import Delta
from server.api.wire.chat import ChatLogprobs, TokenLogprob, TopLogprob
from server.api.wire.completions import CompletionLogprobs
from server.text.tokenizer import Tokenizer
from server.types import TokenLogprobs

LEAST = -9999.0  # stands for minus infinity, which JSON does not have


def chat_logprobs(tokenizer: Tokenizer, delta: Delta, num_top: int) -> ChatLogprobs:
    """Entry of each token with its `num_top` best alternatives, best first."""
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **_entry(tokenizer, token_id, entry.sampled),
                top_logprobs=[TopLogprob(**_entry(tokenizer, i, value)) for i, value in _top(entry, num_top)],
            )
            for token_id, entry in zip(delta.token_ids, delta.logprobs, strict=True)
        ]
    )


def completion_logprobs(tokenizer: Tokenizer, delta: Delta, num_top: int, offset: int) -> CompletionLogprobs:
    """Entry of each token with its `num_top` best alternatives and the sampled one. `offset` is in characters."""
    tokens = [tokenizer.token_text(token_id) for token_id in delta.token_ids]
    offsets = [offset + sum(map(len, tokens[:i])) for i in range(len(tokens))]
    alternatives = []
    for token, entry in zip(tokens, delta.logprobs, strict=True):
        best = {tokenizer.token_text(i): max(LEAST, value) for i, value in reversed(_top(entry, num_top))}
        alternatives.append({**best, token: max(LEAST, entry.sampled)})
    return CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[max(LEAST, entry.sampled) for entry in delta.logprobs],
        tokens=tokens,
        top_logprobs=alternatives,
    )


def _top(entry: TokenLogprobs, num_top: int) -> list[tuple[int, float]]:
    return list(zip(entry.top_token_ids, entry.top_logprobs, strict=True))[:num_top]


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, object]:
    data = tokenizer.token_bytes(token_id)
    return {"token": data.decode("utf-8", errors="replace"), "logprob": max(LEAST, logprob), "bytes": list(data)}
