"""Reciting: counting up and down, the alphabet, days and months, and naming a few members of a category."""

from __future__ import annotations

import re
from random import Random

from tools.default_model import words
from tools.default_model.item import Check, Item, single
from tools.default_model.wording import ask, listed

LONGEST = 20  # numbers in one counting
KINDS = {
    "animals": words.ANIMALS,
    "colors": words.COLORS,
    "foods": words.FOODS,
    "cities": words.CITIES,
    "countries": tuple(c for c in words.CAPITALS if not c.startswith("the ")),
    "jobs": words.JOBS,
    "names": words.NAMES,
}
AMOUNTS = ("two", "three", "four", "five")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
SEQUENCES = (
    (("Say the alphabet.", "What is the alphabet?", "Write the alphabet", "List the letters."), " ".join(ALPHABET)),
    (
        ("Name the days of the week.", "What are the days of the week?", "List the weekdays.", "List the seven days"),
        f"The days of the week are {listed(words.WEEKDAYS)}.",
    ),
    (
        ("Name the months.", "What are the months of the year?", "List the twelve months.", "List all months"),
        f"The months are {listed(words.MONTHS)}.",
    ),
    (
        ("What are the seasons?", "Name the four seasons.", "List the seasons of the year."),
        "The seasons are spring, summer, autumn and winter.",
    ),
)


def make(rng: Random) -> Item:
    return rng.choices((_count, _sequence, _letter, _name_some), (6, 2, 4, 4))[0](rng)


def _count(rng: Random) -> Item:
    first = 1 if rng.random() < 0.4 else rng.randint(0, 80)
    last = first + rng.randint(2, LONGEST - 1)
    numbers = list(range(first, last + 1))
    asked = ("Count from {a} to {b}.", "Write the numbers from {a} to {b}", "List the numbers {a} to {b}.")
    if rng.random() < 0.2:
        numbers.reverse()
        asked = ("Count down from {a} to {b}.", "Count from {a} down to {b}", "Count backwards from {a} to {b}.")
    prompt = ask(rng, asked, a=numbers[0], b=numbers[-1])
    return single(f"{numbers[0]} {numbers[-1]}", prompt, ", ".join(map(str, numbers)))


def _sequence(rng: Random) -> Item:
    asked, answer = rng.choice(SEQUENCES)
    prompt = ask(rng, asked)
    return single(prompt, prompt, answer)


def _letter(rng: Random) -> Item:
    i = rng.randrange(26)
    step = rng.choice([s for s in (-1, 1) if 0 <= i + s < 26])
    word = "after" if step > 0 else "before"
    asked = ("Which letter comes {w} {c}?", "What letter is {w} {c} in the alphabet?", "Letter {w} {c}?")
    prompt = ask(rng, asked, w=word, c=ALPHABET[i])
    return single(prompt, prompt, f"{ALPHABET[i + step]} comes {word} {ALPHABET[i]}.")


def _name_some(rng: Random) -> Item:
    kind, members = rng.choice(list(KINDS.items()))
    count = rng.randrange(len(AMOUNTS))
    chosen = listed(members[: count + 2])  # always the first ones: learning to draw at random is useless
    amount = rng.choice((AMOUNTS[count], str(count + 2)))
    asked = ("Name {n} {k}.", "List {n} {k}", "Give me {n} {k}.", "Tell me {n} {k}.", "Can you name {n} {k}?")
    prompt = ask(rng, asked, n=amount, k=kind)
    return single(prompt, prompt, chosen[0].upper() + chosen[1:] + ".", _are_members(members, count + 2))


def _are_members(members: tuple[str, ...], count: int) -> Check:
    known = {m.lower() for m in members}

    def check(answer: str) -> bool:
        parts = [p.strip().lower() for p in re.split(r", | and ", answer.strip().rstrip("."))]
        return len(set(parts)) == len(parts) == count and known.issuperset(parts)

    return check
