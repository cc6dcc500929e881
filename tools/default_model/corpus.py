"""The mix of families, and conversations drawn from it: endless, seeded, without held-out exercises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from tools.default_model import words
from tools.default_model.families import (
    arithmetic,
    extract,
    facts,
    greetings,
    letters,
    memory,
    python_code,
    recite,
    story,
    summary,
    tool_calls,
    unknown,
)
from tools.default_model.item import Item, Make, Message, Tool, is_held_out
from tools.default_model.wording import person


@dataclass(frozen=True, slots=True)
class Family:
    """A task family. `weight` is its share of the exercises; answers of `is_open` families are judged by form."""

    make: Make
    weight: float
    is_open: bool = False


FAMILIES: dict[str, Family] = {
    "greetings": Family(greetings.make, 5),
    "story": Family(story.make, 3, is_open=True),
    "arithmetic": Family(arithmetic.make, 26),
    "copy": Family(letters.make_copy, 6),
    "reverse": Family(letters.make_reverse, 12),
    "sort": Family(letters.make_sort, 30),
    "count": Family(letters.make_count, 9),
    "spell": Family(letters.make_spell, 8),
    "facts": Family(facts.make, 12),
    "recite": Family(recite.make, 9),
    "extract": Family(extract.make, 6),
    "tool_call": Family(tool_calls.make_call, 13),
    "tool_answer": Family(tool_calls.make_answer, 3),
    "memory": Family(memory.make, 5),
    "unknown": Family(unknown.make, 5),
    "summary": Family(summary.make, 2),
    "python": Family(python_code.make, 5),
}
# Families that may follow each other in one conversation, and that ignore offered functions.
CHAINED = tuple(name for name in FAMILIES if name not in {"tool_call", "tool_answer"})
FORGETFUL = tuple(name for name in CHAINED if name != "memory")
UNMOVED = ("greetings", "story", "copy", "spell", "facts", "recite", "memory", "summary")
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful AI assistant. Answer briefly.",
    "You are a friendly assistant.",
    "You are a small demo model.",
    "Answer the user's questions.",
    "Be concise.",
    "You are {name}, a helpful assistant.",
    "You are an assistant for {job}s. Be polite and short.",
    "You are a helpful, respectful and honest assistant. If you do not know something, say so.",
    "You are a {job}.",
    "Follow the instructions of the user exactly. Answer in English.",
    "Today is {day}. You help {name}, who is a {job}.",
    "You are a function calling assistant. Use the tools when they are needed.",
    "You answer in one sentence.",
)


@dataclass(frozen=True, slots=True)
class Conversation:
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


def training_item(rng: Random, family: str) -> Item:
    """Draw an exercise of the family that is not held out."""
    return _draw(rng, family, wants_held_out=False)


def held_out_item(rng: Random, family: str) -> Item:
    """Draw an exercise of the family that no training conversation contains."""
    return _draw(rng, family, wants_held_out=True)


def _draw(rng: Random, family: str, *, wants_held_out: bool) -> Item:
    while True:
        item = FAMILIES[family].make(rng)
        if is_held_out(family, item.key) == wants_held_out:
            return item


def system_prompt(rng: Random) -> Message:
    text = rng.choice(SYSTEM_PROMPTS).format(
        name=person(rng), job=rng.choice(words.JOBS), day=rng.choice(words.WEEKDAYS)
    )
    return {"role": "system", "content": text}


def conversation(rng: Random) -> Conversation:
    """Draw usually one exercise, sometimes a chain of several, with or without a system prompt and functions."""
    items, tools = _items(rng)
    turns = [message for item in items for message in item.messages]
    if rng.random() < (0.5 if tools else 0.3):
        turns.insert(0, system_prompt(rng))
    return Conversation(tuple(turns), tools)


def _items(rng: Random) -> tuple[list[Item], tuple[Tool, ...]]:
    family = _family(rng, tuple(FAMILIES))
    items = [training_item(rng, family)]
    if items[0].tools:
        if rng.random() < 0.2:
            items.insert(rng.randrange(2), training_item(rng, rng.choice(UNMOVED)))
        return items, next(item.tools for item in items if item.tools)
    if family in UNMOVED and rng.random() < 0.1:
        return items, tuple(bound.tool(rng) for bound in tool_calls.offered(rng))
    if family == "memory" and rng.random() < 0.4:
        return [_interrupted(rng, items[0])], ()
    if rng.random() < 0.3:
        length = 1 + min(int(rng.expovariate(0.6)), 12) + (20 if rng.random() < 0.01 else 0)
        items += [training_item(rng, _family(rng, CHAINED)) for _ in range(length)]
    return items, ()


def _interrupted(rng: Random, item: Item) -> Item:
    """Insert other exercises between the item's facts and its question."""
    others = [training_item(rng, _family(rng, FORGETFUL)) for _ in range(rng.randint(1, 3))]
    between = [message for other in others for message in other.messages]
    return replace(item, messages=(*item.messages[:-2], *between, *item.messages[-2:]))


def _family(rng: Random, names: Sequence[str]) -> str:
    return rng.choices(names, [FAMILIES[name].weight for name in names])[0]


def stream(seed: int | str) -> Iterator[Conversation]:
    """Yield training conversations endlessly; the same seed gives the same ones."""
    rng = Random(seed)
    while True:
        yield conversation(rng)
