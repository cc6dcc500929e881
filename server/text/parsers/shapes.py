"""Forms of calls and reasoning as data, from which `lark.py` makes grammars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Arguments = Literal["json", "keywords", "quoted", "parameters"]
NAME = "NAME"  # placeholder of the function's name
KEY, IS_TEXT = "KEY", "IS_TEXT"  # placeholders of a parameter's name, and of true for text and false for other values


@dataclass(frozen=True, slots=True)
class ParameterShape:
    """Form of one argument that is no member of a JSON object: `head value tail`, with `between` before the next."""

    head: str = "KEY="
    tail: str = ""
    between: str = ", "
    quote: str = ""  # around text; "": text is as in JSON, or reaches to `tail`


@dataclass(frozen=True, slots=True)
class CallShape:
    """`opening head(arguments)tail between head(arguments)tail closing`."""

    head: str
    tail: str
    between: str | None = "\n"  # None: there is at most one call
    opening: str = ""
    closing: str = ""
    arguments: Arguments = "json"
    parameter: ParameterShape = ParameterShape()
    lead: str = ""  # if no mark is a token: the character with which text before a call cannot begin


@dataclass(frozen=True, slots=True)
class Thinking:
    """Reasoning between two marks before the answer."""

    opening: tuple[str, ...]  # alternatives
    closing: tuple[str, ...]
    is_assumed: bool = False  # the model may leave out the opening mark
    resume: str = ""  # text between the closing mark and the answer or its calls
    answer: str = ""  # text before an answer that is no call
    end: str = ""  # text after such an answer
    others: tuple[str, ...] = ()  # beginnings of an output without reasoning; () = all but the opening mark

    def is_open(self, prompt: str, continued: str = "") -> bool | None:
        """Return whether the output begins within reasoning that `prompt` has opened; None: the model decides.

        `continued` is a message at the prompt's end that the output continues.
        """
        if continued:
            return max(map(continued.rfind, self.opening)) > max(map(continued.rfind, self.closing))
        end = prompt.rstrip()
        if end.endswith(self.opening):
            return True
        if end.endswith(self.closing):
            return False
        return self.is_assumed or None
