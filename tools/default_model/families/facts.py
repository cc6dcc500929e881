"""Capitals, weekdays, months, units, opposites, animal sounds and colors: a closed set of facts in many wordings."""

from __future__ import annotations

from random import Random

from tools.default_model import words
from tools.default_model.item import Check, Item, contains, equals, last_number, single
from tools.default_model.wording import ask

Asked = tuple[str, ...]
NUMBER_WORDS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
ORDINALS = (*NUMBER_WORDS, "eighth", "ninth", "tenth", "eleventh", "twelfth")


def _item(rng: Random, templates: tuple[str, ...], answer: str, check: Check, **slots: object) -> Item:
    prompt = ask(rng, templates, **slots)
    return single(prompt, prompt, answer, check)


def _capital(rng: Random) -> Item:
    country, city = rng.choice(list(words.CAPITALS.items()))
    shown = country if rng.random() < 0.8 else country.lower()
    if rng.random() < 0.25 and country != "England":
        templates: Asked = (
            "{c} is the capital of which country?",
            "Which country has the capital {c}?",
            "Of which country is {c} the capital?",
        )
        country = "the United Kingdom" if city == "London" else country
        return _item(rng, templates, f"{city} is the capital of {country}.", contains(country), c=city)
    templates = (
        "What is the capital of {c}?",
        "Capital of {c}?",
        "Tell me the capital of {c}.",
        "Which city is the capital of {c}?",
        "What's the capital city of {c}?",
        "Do you know the capital of {c}?",
        "Name the capital of {c}.",
        "capital {c}",
    )
    return _item(rng, templates, f"The capital of {country} is {city}.", contains(city), c=shown)


def _weekday(rng: Random) -> Item:
    i = rng.randrange(7)
    day = words.WEEKDAYS[i]
    kind = rng.choice(("after", "before", "in", "nth"))
    asked: Asked
    if kind == "after":
        asked = ("What day comes after {d}?", "Which day follows {d}?", "If today is {d}, what day is tomorrow?")
        wanted = words.WEEKDAYS[(i + 1) % 7]
        return _item(rng, asked, f"{wanted} comes after {day}.", equals(f"{wanted} comes after {day}."), d=day)
    if kind == "before":
        asked = ("What day comes before {d}?", "Which day is before {d}?", "If today is {d}, what day was yesterday?")
        wanted = words.WEEKDAYS[(i - 1) % 7]
        return _item(rng, asked, f"{wanted} comes before {day}.", equals(f"{wanted} comes before {day}."), d=day)
    if kind == "nth":
        asked = ("What is the {n} day of the week?", "Which is the {n} weekday?")
        answer = f"{day} is the {NUMBER_WORDS[i]} day of the week."
        return _item(rng, asked, answer, contains(day), n=NUMBER_WORDS[i])
    steps = rng.randint(2, 6)
    wanted = words.WEEKDAYS[(i + steps) % 7]
    asked = ("Today is {d}. What day is it in {n} days?", "What day is {n} days after {d}?")
    return _item(rng, asked, f"{steps} days after {day} is {wanted}.", contains(wanted), d=day, n=steps)


def _month(rng: Random) -> Item:
    i = rng.randrange(12)
    month = words.MONTHS[i]
    kind = rng.randrange(4)
    asked: Asked
    if kind == 0:
        asked = ("What month comes after {m}?", "Which month follows {m}?", "What is the month after {m}?")
        wanted = words.MONTHS[(i + 1) % 12]
        return _item(rng, asked, f"{wanted} comes after {month}.", equals(f"{wanted} comes after {month}."), m=month)
    if kind == 1:
        asked = ("What month comes before {m}?", "Which month is before {m}?")
        wanted = words.MONTHS[(i - 1) % 12]
        return _item(rng, asked, f"{wanted} comes before {month}.", equals(f"{wanted} comes before {month}."), m=month)
    if kind == 2:
        asked = ("How many days are in {m}?", "How many days does {m} have?", "Number of days in {m}?")
        days = words.MONTH_DAYS[i]
        extra = ", and 29 in a leap year" if i == 1 else ""
        return _item(rng, asked, f"{month} has {days} days{extra}.", contains(f"has {days} days"), m=month)
    asked = ("What is the {n} month of the year?", "Which is the {n} month?", "What is month number {k}?")
    answer = f"{month} is the {ORDINALS[i]} month of the year."
    return _item(rng, asked, answer, contains(month), n=ORDINALS[i], k=i + 1)


def _unit(rng: Random) -> Item:
    large, small, factor = rng.choice(words.UNITS)
    count = rng.choice((1, 1, 2, 3, 4, 5, 10))
    asked: Asked
    if count == 1:
        asked = (f"How many {small} are in {{a}} {large}?", f"How many {small} does {{a}} {large} have?")
        article = "an" if large == "hour" else "a"
        answer = f"One {large} is {factor} {small}."
        return _item(rng, asked, answer, last_number(factor), a=rng.choice((article, "one", "1")))
    many = {"century": "centuries", "foot": "feet", "dozen": "dozen"}.get(large, f"{large}s")
    asked = (f"How many {small} are in {{n}} {many}?", f"Convert {{n}} {many} to {small}.", f"{{n}} {many} in {small}?")
    answer = f"{count} {many} are {count * factor} {small}."
    return _item(rng, asked, answer, last_number(count * factor), n=count)


def _opposite(rng: Random) -> Item:
    a, b = rng.choice(list(words.OPPOSITES.items()))
    if rng.random() < 0.4 and list(words.OPPOSITES.values()).count(b) == 1 and b not in words.OPPOSITES:
        a, b = b, a
    asked = (
        "What is the opposite of {w}?",
        "Opposite of {w}?",
        "Give me the opposite of {w}.",
        "{w} is the opposite of?",
    )
    return _item(rng, asked, f"The opposite of {a} is {b}.", contains(f"is {b}"), w=a)


def _sound(rng: Random) -> Item:
    animal, sound = rng.choice(list(words.SOUNDS.items()))
    asked = (
        "What sound does a {x} make?",
        "What does the {x} say?",
        "How does a {x} sound?",
        "What noise do {x}s make?",
    )
    return _item(rng, asked, f"The {animal} says {sound}.", contains(sound), x=animal)


def _color(rng: Random) -> Item:
    thing, color = rng.choice(list(words.THING_COLORS.items()))
    named = thing.replace("_", " ")
    if thing in {"banana", "cherry", "carrot", "lemon", "tomato", "plum", "leaf"}:
        named = f"a {thing}"
    asked = ("What color is {x}?", "Which color does {x} have?", "Tell me the color of {x}.", "What colour is {x}?")
    return _item(rng, asked, f"{named.capitalize()} is {color}.", contains(f"is {color}"), x=named)


def make(rng: Random) -> Item:
    kinds = (_capital, _weekday, _month, _unit, _opposite, _sound, _color)
    return rng.choices(kinds, (9, 3, 3, 3, 2, 1, 1))[0](rng)
