"""Facts of earlier turns (names, numbers, places): kept, changed, or never given."""

from __future__ import annotations

from random import Random

from tools.default_model import words
from tools.default_model.item import Item, Message, assistant, contains, user
from tools.default_model.wording import ask, city, number, person

# fact: (statement, acknowledgement, question, answer, answer without the fact)
FACTS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...], str, str]] = {
    "name": (
        ("My name is {v}.", "I am {v}.", "Hi, I'm {v}.", "Hello! My name is {v}.", "Call me {v}.", "I'm {v}, hi"),
        "Nice to meet you, {v}!",
        ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?", "Tell me my name."),
        "Your name is {v}.",
        "You have not told me your name yet.",
    ),
    "city": (
        ("I live in {v}.", "I am from {v}.", "My home is in {v}.", "I live in {v} now."),
        "{v} sounds like a nice place.",
        ("Where do I live?", "Which city do I live in?", "Do you remember where I live?"),
        "You live in {v}.",
        "You have not told me where you live.",
    ),
    "color": (
        ("My favorite color is {v}.", "I like {v} best of all colors.", "My favourite colour is {v}."),
        "{v} is a lovely color.",
        ("What is my favorite color?", "Which color do I like best?", "What's my favourite colour?"),
        "Your favorite color is {v}.",
        "You have not told me your favorite color.",
    ),
    "number": (
        ("My lucky number is {v}.", "Remember the number {v}.", "Please remember {v}.", "The code is {v}."),
        "I will remember {v}.",
        ("What was the number?", "What is my number?", "Which number did I tell you?", "What number did I say?"),
        "The number is {v}.",
        "You have not told me a number.",
    ),
    "pet": (
        ("My {animal} is called {v}.", "I have a {animal} named {v}.", "I have a {animal}. Its name is {v}."),
        "{v} is a good name for a {animal}.",
        ("What is my pet called?", "What is the name of my pet?", "What's my pet's name?"),
        "Your pet is called {v}.",
        "You have not told me about a pet.",
    ),
    "food": (
        ("I love {v}.", "My favorite food is {v}.", "I like to eat {v}."),
        "{v} is a good choice.",
        ("What is my favorite food?", "What do I like to eat?", "Which food do I love?"),
        "You like {v}.",
        "You have not told me what you like to eat.",
    ),
}


def _value(rng: Random, fact: str) -> str:
    if fact in {"name", "pet"}:
        return person(rng)
    if fact == "city":
        return city(rng)
    if fact == "number":
        return str(number(rng, 3))
    return rng.choice(words.COLORS if fact == "color" else words.FOODS)


def make(rng: Random) -> Item:
    facts = rng.sample(list(FACTS), rng.randint(1, 3))
    told: dict[str, str] = {}
    turns: list[Message] = []
    for fact in facts:
        told[fact] = _tell(rng, fact, turns)
    if rng.random() < 0.2:
        fact = rng.choice(facts)
        told[fact] = _tell(rng, fact, turns)
    asked = rng.choice(facts) if rng.random() < 0.85 else rng.choice([f for f in FACTS if f not in facts])
    _, _, questions, recall, unknown = FACTS[asked]
    answer = recall.format(v=told[asked]) if asked in told else unknown
    needed = told.get(asked, "not told")
    messages = (*turns, user(ask(rng, questions)), assistant(answer))
    key = "|".join([asked, *(f"{k}={v}" for k, v in told.items())])
    return Item(key=key, messages=messages, check=contains(needed))


def _tell(rng: Random, fact: str, turns: list[Message]) -> str:
    """Append one statement and its acknowledgement; returns the stated value."""
    tells, acknowledge, _, _, _ = FACTS[fact]
    value, animal = _value(rng, fact), rng.choice(words.ANIMALS)
    turns.append(user(ask(rng, tells, v=value, animal=animal)))
    text = acknowledge.format(v=value, animal=animal)
    turns.append(assistant(text[0].upper() + text[1:]))
    return value
