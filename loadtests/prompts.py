"""Sessions of turns, which datasets produce. A session is what arrives; a turn is one request of it.

Prompts made up by a dataset are token ids; `vocabulary` gives them a text for endpoints that take no ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IdPrompt:
    """Token ids in parts, so that prompts which share a prefix share its memory."""

    parts: tuple[Ids, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def flat(self) -> list[int]:
        return [token for part in self.parts for token in part]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A user's own text; its length in tokens is known only to the server."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A user's own messages, for chat endpoints."""

    messages: tuple[dict[str, Any], ...]


Prompt = IdPrompt | TextPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Turn:
    """A request. `prompt` is what is new in this turn; the turns before it and their responses come before it."""

    prompt: Prompt
    output_len: int | None  # None: the server decides where it ends
    think_s: float = 0.0  # from the end of the response before to this request


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that follow each other. `arrival_s` is a trace's own timestamp, in seconds."""

    turns: tuple[Turn, ...]
    arrival_s: float | None = None


def single(prompt: Prompt, output_len: int | None, arrival_s: float | None = None) -> Session:
    """A session of one turn."""
    return Session((Turn(prompt, output_len),), arrival_s)


def num_requests(sessions: Sequence[Session]) -> int:
    return sum(len(session.turns) for session in sessions)
