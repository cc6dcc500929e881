"""Varied wording for all families: templates with slots, typing habits of people, and invented words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from tools.default_model import words

VOWELS = "aeiou"
CONSONANTS = "bcdfghjklmnprstvwz"
LEADS = ("please ", "can you ", "could you ", "hey, ", "hi, ", "ok, ", "now ", "so, ")


def ask(rng: Random, templates: Sequence[str], **slots: object) -> str:
    """Fill one template, with typing noise in its words, never in its slots."""
    template = rng.choice(templates)
    if rng.random() < 0.15:
        lead = rng.choice(LEADS)
        template = lead.capitalize() + template[0].lower() + template[1:] if rng.random() < 0.6 else lead + template
    parts = re.split(r"(\{\w+\})", template)
    habit = rng.random()
    noisy = [part if part.startswith("{") else _typed(rng, part, habit) for part in parts]
    return "".join(str(slots[part[1:-1]]) if part.startswith("{") else part for part in noisy)


def _typed(rng: Random, text: str, habit: float) -> str:
    """Return `text` as a person types it: unchanged, in lower or upper case, without end mark, or with a typo."""
    if habit < 0.62:
        return text
    if habit < 0.80:
        return text.lower()
    if habit < 0.82:
        return text.upper()
    if habit < 0.92:
        return text.rstrip("?.!").lower()
    return _typo(rng, text)


def _typo(rng: Random, text: str) -> str:
    """Return `text` with one letter dropped, doubled or swapped with the next."""
    places = [i for i in range(1, len(text) - 1) if text[i].isalpha() and text[i + 1].isalpha()]
    if not places:
        return text
    i = rng.choice(places)
    swapped = text[:i] + text[i + 1] + text[i] + text[i + 2 :]
    return rng.choice((text[:i] + text[i + 1 :], text[:i] + text[i] + text[i:], swapped))


def invented(rng: Random, syllables: int) -> str:
    """Return a pronounceable lower-case word that is in no dictionary."""
    out = ""
    for _ in range(syllables):
        out += rng.choice(CONSONANTS) + rng.choice(VOWELS) + (rng.choice("nrslt") if rng.random() < 0.3 else "")
    return out


def person(rng: Random) -> str:
    """Return a first name: a listed one, or an invented one so that names are copied rather than recalled."""
    if rng.random() < 0.6:
        return rng.choice(words.NAMES)
    return invented(rng, rng.randint(2, 3)).capitalize()


def city(rng: Random) -> str:
    """Return a city: a listed or an invented one."""
    if rng.random() < 0.75:
        return rng.choice(words.CITIES)
    return invented(rng, rng.randint(2, 3)).capitalize()


def plain_word(rng: Random) -> str:
    """Return a lower-case word of letters only: usually known, sometimes invented."""
    if rng.random() < 0.75:
        return rng.choice(words.PLAIN)
    return invented(rng, rng.randint(1, 3))


def number(rng: Random, digits: int) -> int:
    """Return a number of one to `digits` digits; each length is equally likely."""
    length = rng.randint(1, digits)
    return rng.randint(10 ** (length - 1) if length > 1 else 0, 10**length - 1)


def a(noun: str) -> str:
    """Return the noun with its article."""
    return f"{'an' if noun[0] in VOWELS else 'a'} {noun}"


def listed(parts: Sequence[str]) -> str:
    """Return `x`, `x and y`, or `x, y and z`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
