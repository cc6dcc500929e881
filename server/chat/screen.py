"""What a person sees of a chat: the answer as it comes, reasoning apart from it, and what it took."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from rich.console import Console
from rich.style import Style

from neuronserve.server.chat.endpoint import Event, Usage

REASONING = Style(dim=True, italic=True)
ASIDE = Style(dim=True)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` without what a terminal would obey: a model may write escape sequences."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


class Answer:
    """One answer while it comes. After an interruption or an error, `text` is what came until then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.text = ""
        self._usage: Usage | None = None
        self._begin = time.perf_counter()
        self._first_s: float | None = None

    def show(self, events: Iterable[Event]) -> None:
        """Write all of it."""
        was_reasoning = False
        for event in events:
            delta, self._usage = event.delta, event.usage or self._usage
            thought = delta.reasoning_content or delta.reasoning
            if (thought or delta.content) and self._first_s is None:
                self._first_s = time.perf_counter() - self._begin
            if thought:
                self._write(thought, REASONING)
                was_reasoning = True
            if delta.content:
                if was_reasoning:
                    self._write("\n\n")
                    was_reasoning = False
                self.text += delta.content
                self._write(delta.content)

    @property
    def summary(self) -> str:
        """Tokens, their pace, the time of the first; seconds and dollars of the modelled part, if the server says."""
        if self._usage is None or self._first_s is None:
            return ""
        seconds = time.perf_counter() - self._begin
        number = self._usage.completion_tokens
        rate = f", {(number - 1) / (seconds - self._first_s):.1f} a second" if number > 1 else ""
        words = f"{self._usage.prompt_tokens} + {number} tokens{rate}, first after {1e3 * self._first_s:.0f} ms"
        if (modelled := self._usage.neuronserve) is not None:
            price = "" if modelled.cost_usd is None else f", ${modelled.cost_usd:.8f}"
            words += f"; on the part {1e3 * modelled.device_seconds:.1f} ms{price}"
        return words

    def _write(self, text: str, style: Style | None = None) -> None:
        self._console.print(printable(text), end="", style=style, markup=False, highlight=False, soft_wrap=True)
