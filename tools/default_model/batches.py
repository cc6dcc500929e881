"""Endless training batches: documents of similar length share a rectangle, without seeing each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

import numpy as np
from numpy.typing import NDArray

from tools.default_model.chat import Chat, Document
from tools.default_model.corpus import Conversation, conversation
from tools.default_model.families.unknown import NOISE
from tools.default_model.item import assistant, user

Ints = NDArray[np.int64]
WIDTH_STEP = 32  # rectangles are a multiple of this many tokens wide
DRAWN_AT_ONCE = 256
POOLED_STEPS = 10
TOKEN_NOISE_SHARE = 0.015  # conversations with a prompt of random tokens


@dataclass(frozen=True, slots=True)
class Rectangle:
    """`tokens` `[B, T]`; the model predicts `targets` `[N]` at the flat positions `rows` `[N]`."""

    tokens: Ints
    rows: Ints
    targets: Ints


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Sizes in tokens; `prompt_share` of the tokens that are not the assistant's are predicted too."""

    step_tokens: int = 6144
    rectangle_tokens: int = 4096
    max_length: int = 2048
    prompt_share: float = 0.02


def steps(chat: Chat, rng: Random, plan: BatchPlan) -> Iterator[list[Rectangle]]:
    """Yield the rectangles of one optimizer step after another; `rng` alone decides their contents."""
    step: list[Rectangle] = []
    for rectangle in _rectangles(chat, rng, plan):
        step.append(rectangle)
        if sum(r.tokens.size for r in step) >= plan.step_tokens:
            yield step
            step = []


def _rectangles(chat: Chat, rng: Random, plan: BatchPlan) -> Iterator[Rectangle]:
    """Yield rectangles; documents of several steps are pooled, so that those of a rectangle have similar lengths."""
    while True:
        pool: list[Document] = []
        while sum(len(d.ids) for d in pool) < POOLED_STEPS * plan.step_tokens:
            pool += [d for d in chat.encode(_conversations(chat, rng)) if len(d.ids) <= plan.max_length]
        groups = list(_groups(pool, plan.rectangle_tokens))
        rng.shuffle(groups)
        yield from (_rectangle(group, rng, plan) for group in groups)


def _conversations(
    chat: Chat, rng: Random
) -> list[tuple[tuple[dict[str, object], ...], tuple[dict[str, object], ...]]]:
    talks = islice(_mixed(chat, rng), DRAWN_AT_ONCE)
    return [(talk.messages, talk.tools) for talk in talks]


def _mixed(chat: Chat, rng: Random) -> Iterator[Conversation]:
    while True:
        if rng.random() < TOKEN_NOISE_SHARE:
            yield Conversation((user(token_noise(chat, rng)), assistant(NOISE)))
        else:
            yield conversation(rng)


def token_noise(chat: Chat, rng: Random) -> str:
    """Return random entries of the vocabulary as text, short more often than long."""
    count = 2 + int(300 * rng.random() ** 2.5)
    ids = [rng.randrange(8, chat.tokenizer.get_vocab_size()) for _ in range(count)]
    return str(chat.tokenizer.decode(ids))


def _groups(documents: list[Document], most: int) -> Iterator[list[Document]]:
    """Yield groups of similar length whose rectangle holds at most `most` tokens (or one document).

    Rectangles wider than 512 hold fewer: attention keeps a value for every pair of positions.
    """
    group: list[Document] = []
    for document in sorted(documents, key=lambda d: -len(d.ids)):
        width = _width(len(group[0].ids)) if group else 0
        if group and width * max(1, width / 512) * (len(group) + 1) > most:
            yield group
            group = []
        group.append(document)
    yield group


def _width(length: int) -> int:
    return -(-length // WIDTH_STEP) * WIDTH_STEP


def _rectangle(group: list[Document], rng: Random, plan: BatchPlan) -> Rectangle:
    width = _width(max(len(d.ids) for d in group))
    tokens = np.zeros((len(group), width), np.int64)
    is_wanted = np.zeros((len(group), width), bool)
    chance = np.random.default_rng(rng.getrandbits(64)).random((len(group), width)) < plan.prompt_share
    for row, document in enumerate(group):
        length = len(document.ids)
        tokens[row, :length] = document.ids
        is_wanted[row, : length - 1] = np.array(document.is_answer[1:]) | chance[row, 1:length]
    rows = np.flatnonzero(is_wanted)
    return Rectangle(tokens, rows, tokens.reshape(-1)[rows + 1])
