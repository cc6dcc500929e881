"""The part of a request's body by which it is placed: digests of its prompt's bytes. No tokenizer, no full parsing."""

from __future__ import annotations

import uuid

import msgspec

from ..config import CacheConfig
from ..scheduler.router import Router

CHUNK_BYTES = 512  # of a prompt that share a digest
TOKEN_BYTES = 4  # of English text in common tokenizers: only sums of similar prompts are compared
CHUNK_TOKENS = CHUNK_BYTES // TOKEN_BYTES
NUM_CHUNKS = 31_250  # of prompts that a replica is taken to have cached
# Fields that may hold the prompt, in the order in which chat templates render them; those that keep prompts apart; and
# those that name what a replica has stored.
RENDERED = ("tools", "system", "instructions", "messages", "prompt", "input", "inputs", "texts")
APART, REFERENCES = ("model", "cache_salt"), ("previous_response_id", "conversation")
_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Prompt(msgspec.Struct, frozen=True):
    """Size of a prompt, and digests by which equal beginnings are found."""

    digests: list[bytes] = []  # of its whole chunks, each over all bytes before it
    num_tokens: int = 1  # estimated
    is_continued: bool = False  # refers to a stored response or conversation
    model: str = ""  # that the body names


def prompt_of(body: bytes) -> Prompt:
    """Read a body. One that is no JSON object is taken for a prompt that no other shares."""
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Prompt(num_tokens=1 + len(body) // TOKEN_BYTES)
    text = b"".join(bytes(found.get(name, b"")) for name in RENDERED)
    root = b" ".join(bytes(found.get(name, b"")) for name in APART)
    # The interpreter's keyed hash is three times as fast as BLAKE2, and no other process needs to find the same one.
    digest, digests = hash(root), []
    for begin in range(0, len(text) - CHUNK_BYTES + 1, CHUNK_BYTES):
        digest = hash((digest, text[begin : begin + CHUNK_BYTES]))
        digests.append(digest.to_bytes(8, "big", signed=True))
    is_continued = any(bytes(found.get(name, b"null")) != b"null" for name in REFERENCES)
    model = msgspec.json.decode(found.get("model", b'""'))
    return Prompt(digests, 1 + len(text) // TOKEN_BYTES, is_continued, model if isinstance(model, str) else "")


def new_ledger() -> Router:
    """Return the ledger of a router of replicas, which are added by `join`."""
    return Router(0, CacheConfig(NUM_CHUNKS, CHUNK_TOKENS), name=uuid.uuid4().hex)
