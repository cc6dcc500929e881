"""Sessions of turns, which datasets produce. A session arrives as a whole; a turn is one request of it.

Random prompts are token ids; `vocabulary` gives them a text for endpoints without ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IdPrompt:
    """Token ids in several tuples, so that prompts with a common prefix share its memory."""

    parts: tuple[Ids, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def flat(self) -> list[int]:
        return [token for part in self.parts for token in part]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A user's text; only the server knows its length in tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A user's messages, for chat endpoints."""

    messages: tuple[dict[str, Any], ...]


Prompt = IdPrompt | TextPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Turn:
    """A request. `prompt` has only the new text; earlier turns and responses precede it."""

    prompt: Prompt
    output_len: int | None  # None: the server decides where it ends
    think_s: float = 0.0  # from the end of the response before to this request


@dataclass(frozen=True, slots=True)
class Session:
    """Consecutive turns. `arrival_s` is a trace's timestamp, in seconds."""

    turns: tuple[Turn, ...]
    arrival_s: float | None = None


def single(prompt: Prompt, output_len: int | None, arrival_s: float | None = None) -> Session:
    """Return a session of one turn."""
    return Session((Turn(prompt, output_len),), arrival_s)


def num_requests(sessions: Sequence[Session]) -> int:
    return sum(len(session.turns) for session in sessions)
