"""A conversation with a model: its messages, and the request for the next answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ChatSampling:
    """Sampling parameters of a request; None is the endpoint's default."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


@dataclass(slots=True)
class Conversation:
    """Messages in OpenAI's form, of user and assistant in turns, and the system prompt."""

    model: str
    sampling: ChatSampling = ChatSampling()
    system: str = ""
    turns: list[dict[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, the system prompt first."""
        return [{"role": "system", "content": self.system}, *self.turns] if self.system else list(self.turns)

    def ask(self, question: str) -> dict[str, Any]:
        """Add a question; return the body of the request for its answer, streamed and with usage."""
        self.turns.append({"role": "user", "content": question})
        chosen = {name: getattr(self.sampling, name) for name in ChatSampling.__slots__}
        given = {name: value for name, value in chosen.items() if value is not None}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, "messages": self.messages, **stream, **given}

    def take(self, answer: str) -> None:
        """Add the answer, or remove the question if there is no answer."""
        if answer:
            self.turns.append({"role": "assistant", "content": answer})
        else:
            self.turns.pop()

    def take_back(self) -> str | None:
        """Remove the last question and its answer; return the question, None if there is none."""
        if not self.turns:
            return None
        question = self.turns[-2]["content"]
        del self.turns[-2:]
        return question
