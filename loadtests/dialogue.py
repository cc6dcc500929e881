"""Conversation of one session: each prompt contains the turns and responses before it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import SpecError
from .openai_api import Backend, assistant_message, user_message
from .prompts import ChatPrompt, IdPrompt, Ids, Prompt, TextPrompt, Turn
from .response import StreamedResponse
from .vocabulary import Vocabulary


class Dialogue:
    """Turns and responses so far."""

    def __init__(self, backend: Backend, vocabulary: Vocabulary) -> None:
        self._is_chat = backend == "openai-chat"
        self._vocabulary = vocabulary
        self._parts: list[Ids] = []
        self._messages: list[dict[str, Any]] = []

    def prompt(self, turn: Turn) -> dict[str, Any]:
        """Add a turn. Returns the prompt of its request: {"prompt": ...} or {"messages": [...]}."""
        if self._is_chat:
            self._messages.extend(_messages(turn.prompt, self._vocabulary))
            return {"messages": self._messages}
        if isinstance(turn.prompt, ChatPrompt):
            raise SpecError("the dataset has messages, which only backend openai-chat can send")
        if isinstance(turn.prompt, TextPrompt):
            return {"prompt": turn.prompt.text}
        self._parts.extend(turn.prompt.parts)
        return {"prompt": IdPrompt(tuple(self._parts)).flat()}

    def add_response(self, turn: Turn, response: StreamedResponse) -> None:
        """Keep the response for later turns. If a server returns no ids, random ids keep the length."""
        if self._is_chat:
            self._messages.append(assistant_message(response.text))
        elif response.token_ids:
            self._parts.append(tuple(response.token_ids))
        else:
            length = turn.output_len or len(response.token_times)
            self._parts.append(self._vocabulary.draw(np.random.default_rng(len(self._parts)), length))


def _messages(prompt: Prompt, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    if isinstance(prompt, ChatPrompt):
        return list(prompt.messages)
    text = prompt.text if isinstance(prompt, TextPrompt) else vocabulary.text(prompt.flat())
    return [user_message(text)]
