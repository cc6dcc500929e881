"""Copying, reversing, sorting, counting and spelling of words, letters and numbers."""

from __future__ import annotations

from random import Random

from tools.default_model import words
from tools.default_model.item import Item, last_number, single
from tools.default_model.wording import ask, invented, listed, number, plain_word

BY_INITIAL = {letter: [w for w in words.PLAIN if w[0] == letter] for letter in "abcdefghijklmnopqrstuvwxyz"}
SPELL = (
    "Spell {w}.",
    "Spell the word {w}.",
    'How do you spell "{w}"?',
    "Spell {w} letter by letter",
    "Write {w} with spaces between the letters.",
)
REVERSE = (
    "Reverse the word {w}.",
    'Write "{w}" backwards.',
    "Spell {w} backwards",
    "Reverse {w}",
    "What is {w} reversed?",
)
COUNT = (
    "How many letters are in {w}?",
    'How many letters does "{w}" have?',
    "Count the letters in {w}.",
    "How many characters are in the word {w}?",
)
COUNT_ONE = (
    'How many times does the letter "{c}" occur in "{w}"?',
    "How many {c}'s are in {w}?",
    "How many {c} are there in {w}?",
    'Count the letter {c} in "{w}".',
)
FIRST = ("What is the first letter of {w}?", "{w}: which letter comes first?")
LAST = ("What is the last letter of {w}?", "Which letter does {w} end with?")
COPY = (
    "Repeat: {t}",
    "Repeat after me: {t}",
    "Say {t}",
    "Copy this: {t}",
    "Repeat exactly: {t}",
    "Echo {t}",
    'Repeat the following text: "{t}"',
)
REVERSE_LIST = ("Reverse this list: {t}", "Reverse the order of {t}", "Write these in reverse order: {t}")
SORT_NUMBERS = (
    "Sort these numbers: {t}",
    "Sort {t}",
    "Put in order: {t}",
    "Sort from small to large: {t}",
    "Order these numbers: {t}",
)
SORT_WORDS = (
    "Sort these words: {t}",
    "Sort alphabetically: {t}",
    "Put these words in alphabetical order: {t}",
    "Order {t} by the alphabet",
)
COUNT_WORDS = (
    "How many words are here: {t}",
    'How many words are in "{t}"?',
    "Count the words: {t}",
    "Count the items: {t}",
)
EXTREME = (
    ("What is the largest of {t}?", max),
    ("Which is the biggest number in {t}?", max),
    ("Find the maximum of {t}", max),
    ("What is the smallest of {t}?", min),
    ("Find the minimum of {t}", min),
)


def make_spell(rng: Random) -> Item:
    """Spell a word, or name its first or last letter."""
    word = plain_word(rng)
    kind = rng.random()
    prompt, answer = ask(rng, SPELL, w=word), " ".join(word)
    if kind < 0.2:
        prompt, answer = ask(rng, FIRST, w=word), f'The first letter of "{word}" is {word[0]}.'
    elif kind < 0.4:
        prompt, answer = ask(rng, LAST, w=word), f'The last letter of "{word}" is {word[-1]}.'
    return single(_key(word, prompt), prompt, answer)


def make_reverse(rng: Random) -> Item:
    """Reverse a word letter by letter, or a list item by item."""
    if rng.random() < 0.7:
        word = plain_word(rng)
        prompt = ask(rng, REVERSE, w=word)
        return single(_key(word, prompt), prompt, f"{' '.join(word)} -> {' '.join(reversed(word))}")
    parts = _parts(rng, 2, 6)
    return single(" ".join(parts), ask(rng, REVERSE_LIST, t=_joined(rng, parts)), ", ".join(reversed(parts)))


def make_count(rng: Random) -> Item:
    """Count letters of a word, one letter in a word, or words; the answer counts aloud."""
    kind = rng.random()
    if kind < 0.3:
        parts = [plain_word(rng) for _ in range(rng.randint(1, 9))]
        aloud = ", ".join(f"{part} {i}" for i, part in enumerate(parts, 1))
        answer = f"{aloud}: {_plural(len(parts), 'word')}."
        return single(" ".join(parts), ask(rng, COUNT_WORDS, t=" ".join(parts)), answer, last_number(len(parts)))
    word = plain_word(rng)
    if kind < 0.65:
        aloud = " ".join(f"{letter}{i}" for i, letter in enumerate(word, 1))
        answer = f"{aloud}: {_plural(len(word), 'letter')}."
        prompt = ask(rng, COUNT, w=word)
        return single(_key(word, prompt), prompt, answer, last_number(len(word)))
    letter = rng.choice(word) if rng.random() < 0.85 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    answer = f"{_marked(word, letter)}: {word.count(letter)}."
    prompt = ask(rng, COUNT_ONE, w=word, c=letter)
    return single(_key(word, prompt), prompt, answer, last_number(word.count(letter)))


def make_sort(rng: Random) -> Item:
    """Sort numbers by size or words by the alphabet, or find the largest or smallest of a list."""
    kind = rng.random()
    if kind < 0.35:
        initials = rng.sample("abcdefghijklmnopqrstuvw", rng.randint(2, 5))
        pool = [_word_with(rng, letter) for letter in initials]
        return single(" ".join(pool), ask(rng, SORT_WORDS, t=_joined(rng, pool)), ", ".join(sorted(pool)))
    values = [number(rng, 2) for _ in range(rng.randint(2, 6))]
    shown = _joined(rng, [str(v) for v in values])
    key = " ".join(map(str, values))
    if kind < 0.8:
        return single(key, ask(rng, SORT_NUMBERS, t=shown), ", ".join(map(str, sorted(values))))
    template, choose = rng.choice(EXTREME)
    return single(key, ask(rng, (template,), t=shown), str(choose(values)))


def make_copy(rng: Random) -> Item:
    """Repeat words, numbers or invented words exactly."""
    parts = _parts(rng, 1, 8)
    text = rng.choice((" ", " ", ", ")).join(parts)
    if rng.random() < 0.3:
        text = text.capitalize() + rng.choice(".!?")
    return single(text, ask(rng, COPY, t=text), text)


def _key(word: str, prompt: str) -> str:
    """Return an invented word itself; the spelling of a listed word is a fact, so its wording is held out instead."""
    return prompt if word in words.PLAIN else word


def _parts(rng: Random, least: int, most: int) -> list[str]:
    return [plain_word(rng) if rng.random() < 0.8 else str(number(rng, 3)) for _ in range(rng.randint(least, most))]


def _joined(rng: Random, parts: list[str]) -> str:
    return rng.choice((", ".join(parts), ", ".join(parts), " ".join(parts), listed(parts)))


def _word_with(rng: Random, initial: str) -> str:
    listed_words = BY_INITIAL.get(initial)
    if listed_words and rng.random() < 0.8:
        return rng.choice(listed_words)
    return initial + rng.choice("aeiou") + invented(rng, rng.randint(1, 2))


def _marked(word: str, letter: str) -> str:
    """Return the word spelled, with a running count after each occurrence of `letter`."""
    out, seen = [], 0
    for c in word:
        seen += c == letter
        out.append(f"{c}{seen}" if c == letter else c)
    return " ".join(out)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
