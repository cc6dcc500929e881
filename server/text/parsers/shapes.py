"""How calls and reasoning are written, as data: what a grammar for them is made of (`lark.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Arguments = Literal["json", "keywords", "parameters"]
NAME = "NAME"  # stands for the function's name


@dataclass(frozen=True, slots=True)
class CallShape:
    """`opening head(arguments)tail between head(arguments)tail closing`."""

    head: str
    tail: str
    between: str | None = "\n"  # None: there is never more than one call
    opening: str = ""
    closing: str = ""
    arguments: Arguments = "json"
    lead: str = ""  # without a mark that is a token: the character that text in front of a call cannot begin with


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning between two marks in front of the answer."""

    opening: tuple[str, ...]  # any of these
    closing: tuple[str, ...]
    is_assumed: bool = False  # the model may leave out the opening mark
    resume: str = ""  # what comes between the closing mark and the answer or its calls
    answer: str = ""  # what comes before an answer that is no call
    end: str = ""  # what closes such an answer
    others: tuple[str, ...] = ()  # what an output without reasoning begins with; () = anything but the opening mark

    def is_open(self, prompt: str, continued: str = "") -> bool | None:
        """Whether the output begins within reasoning that `prompt` ends in; None: the model decides.

        `continued` is a message at its end that the output goes on with.
        """
        if continued:
            return max(map(continued.rfind, self.opening)) > max(map(continued.rfind, self.closing))
        end = prompt.rstrip()
        if end.endswith(self.opening):
            return True
        if end.endswith(self.closing):
            return False
        return self.is_assumed or None
