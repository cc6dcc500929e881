"""Grammars of calls and of reasoning in llguidance's Lark, from their shapes (`shapes.py`).

A mark is one token if the vocabulary has it, so that no text can be mistaken for it, else its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..grammar import GrammarError, json_schema, quoted
from .property_rules import keyword_rules, parameter_rules
from .shapes import NAME, CallShape, Thinking

ANYTHING = "<[*]>*"  # also tokens without text


@dataclass(frozen=True, slots=True)
class Function:
    """One function that may be called, with the JSON schema of its arguments."""

    name: str
    schema: dict[str, Any]


class Marks:
    """Marks of a family in a vocabulary. `token_id` returns the token of a text, None = there is none.

    `barred` are tokens that may not occur within reasoning.
    """

    def __init__(self, tags: Sequence[str], token_id: Callable[[str], int | None], barred: Sequence[int] = ()) -> None:
        self.barred = tuple(barred)
        self._ids = {tag: found for tag in tags if (found := token_id(tag)) is not None}
        self._split = re.compile("(" + "|".join(map(re.escape, self._ids)) + ")") if self._ids else None

    def text(self, text: str) -> str:
        """Return `text` as a sequence of tokens and literals; "" for none."""
        parts = self._split.split(text) if self._split else [text]
        return " ".join(f"<[{self._ids[part]}]>" if part in self._ids else quoted(part) for part in parts if part)

    def first(self, text: str) -> int | None:
        """Return the token of the mark that `text` begins with; None if there is none."""
        return next((found for tag, found in self._ids.items() if text.startswith(tag)), None)

    def alone(self, text: str) -> int | None:
        """Return the token whose text is all of `text`; None if there is none."""
        return self._ids.get(text)


def call_rules(shape: CallShape, marks: Marks, functions: Sequence[Function], is_parallel: bool) -> list[str]:
    """Return the rules of `calls` to `functions`. Raises GrammarError when the shape cannot hold a schema."""
    is_single = shape.between is None or not is_parallel
    more = "" if is_single else f" ({marks.text(shape.between or '')} call)*"
    rules = [
        f"calls: {marks.text(shape.opening)} call{more} {marks.text(shape.closing)}",
        "call: " + " | ".join(f"f{i}" for i in range(len(functions))),
    ]
    for i, function in enumerate(functions):
        head, tail = (marks.text(text.replace(NAME, function.name)) for text in (shape.head, shape.tail))
        rules.append(f"f{i}: {head} a{i} {tail}")
        if shape.arguments == "json":
            rules.append(f"a{i}: %json {json_schema(function.schema)}")
        else:
            make = parameter_rules if shape.arguments == "parameters" else keyword_rules
            rules += make(f"a{i}", function.schema, shape.parameter, marks.text)
    return rules


def text_rule(shape: CallShape, marks: Marks) -> str | None:
    """Return the rule of `text` around calls; None if a grammar cannot tell where a call begins."""
    if marks.first(shape.opening + shape.head) is not None:
        return r"text: /(?s:.*)/"
    return rf"text: /(\s*[^\s{re.escape(shape.lead)}](?s:.*))?/" if shape.lead else None


@dataclass(frozen=True, slots=True)
class Lead:
    """Rules of the text before an answer or its calls: reasoning, and marks."""

    rules: tuple[str, ...] = ()  # of `reasoning`; () = there is none
    answer: str = ""  # marks of an answer that is no call

    def before_calls(self) -> str:
        """Return the rules of `before`; "" for nothing."""
        return "\n".join(["before: reasoning", *self.rules]) if self.rules else ""

    def before_answer(self) -> str:
        return "\n".join([f"before: reasoning {self.answer}", *self.rules]) if self.rules else ""


def lead(thinking: Thinking, marks: Marks, is_open: bool | None, budget: int | None) -> Lead:
    """Return the rules of reasoning before an answer in a format, of at most `budget` tokens (None: no limit)."""
    after = f"{marks.text(thinking.resume)} ({quoted(chr(10))} | {quoted(chr(10) * 2)})?"
    openings = " | ".join(map(marks.text, thinking.opening))
    first = f"thought {after}" if is_open else f"(({openings}) thought {after})?"
    return Lead((f"reasoning: {first}", *_thought(thinking, marks, budget)), marks.text(thinking.answer))


def budget_rules(thinking: Thinking, marks: Marks, is_open: bool | None, budget: int) -> list[str]:
    """Return the rules of `start`: reasoning of at most `budget` tokens, and then anything.

    Raises GrammarError when a mark is no token, since the grammar could not tell whether there is reasoning.
    """
    thought = _thought(thinking, marks, budget)
    if is_open:
        return [f"start: thought {ANYTHING}", *thought]
    first = marks.first(thinking.opening[0])
    if first is None:
        raise GrammarError(f"{thinking.opening[0]} is no token of this model, so its reasoning cannot be counted")
    others = " | ".join(map(marks.text, thinking.others)) or f"<[^{first}]>"
    return [f"start: ({marks.text(thinking.opening[0])} thought | {others}) {ANYTHING} |", *thought]


def _thought(thinking: Thinking, marks: Marks, budget: int | None) -> list[str]:
    closing = marks.alone(thinking.closing[0])
    if closing is not None:
        others = ",".join(map(str, sorted({closing, *marks.barred})))
        times = "*" if budget is None else f"{{0,{budget}}}"
        return [f"thought: {f'<[^{others}]>{times}' if budget != 0 else ''} <[{closing}]>"]
    if budget is not None:
        raise GrammarError(
            f"{thinking.closing[0]} is no token of this model, so it cannot be made to end its reasoning"
        )
    ends = "|".join(re.escape(text).replace("/", r"\/") for text in thinking.closing)
    return [rf"thought[lazy]: /(?s:.*?)({ends})/"]
