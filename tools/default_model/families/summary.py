"""Summaries of three sentences about one event in one sentence."""

from __future__ import annotations

from random import Random

from tools.default_model import words
from tools.default_model.item import Item, contains, single
from tools.default_model.wording import a, ask, city, person

ASK = (
    "Summarize in one sentence: {t}",
    "Summarize: {t}",
    "Make one sentence of this: {t}",
    "Give me a summary of this text.\n\n{t}",
    "Shorten this to one sentence: {t}",
    "{t}\n\nSummarize the text in one sentence.",
    "TL;DR: {t}",
    "Summarise this: {t}",
)


def _lost(rng: Random) -> tuple[str, str, tuple[str, ...]]:
    name, thing, place, job = person(rng), rng.choice(words.OBJECTS), rng.choice(words.PLACES), rng.choice(words.JOBS)
    feeling = rng.choice(("happy", "glad", "proud"))
    text = f"{rng.choice((f'{name} is {a(job)}.', f'{name} works as {a(job)}.'))} " + rng.choice(
        (
            f"One day {name} lost {a(thing)} and looked for it everywhere. In the end it was in the {place}, "
            f"and {name} was {feeling}.",
            f"Last week {name} could not find a {thing}. After a long search it turned up in the {place}.",
        )
    )
    return text, f"{name}, {a(job)}, lost {a(thing)} and found it in the {place}.", (name, job, thing, place)


def _trip(rng: Random) -> tuple[str, str, tuple[str, ...]]:
    name, friend, town, thing = person(rng), person(rng), city(rng), rng.choice(words.OBJECTS)
    text = rng.choice(
        (
            f"{name} and {friend} wanted to see {town}. They took the early train and walked around all day. "
            f"Before they went home they bought {a(thing)}.",
            f"On Sunday {name} went to {town} with {friend}. The weather was fine and they saw many old streets. "
            f"At a small shop they bought {a(thing)}.",
        )
    )
    return text, f"{name} and {friend} visited {town} and bought {a(thing)}.", (name, friend, town, thing)


def _gift(rng: Random) -> tuple[str, str, tuple[str, ...]]:
    name, friend, thing, color = person(rng), person(rng), rng.choice(words.OBJECTS), rng.choice(words.COLORS)
    text = rng.choice(
        (
            f"It was the birthday of {friend}. {name} thought for a long time about a present. "
            f"At last {name} gave {friend} a {color} {thing}.",
            f"{name} has a good friend called {friend}. {friend} had a birthday on Friday. "
            f"The present from {name} was a {color} {thing}.",
        )
    )
    return text, f"{name} gave {friend} a {color} {thing} for the birthday.", (name, friend, f"{color} {thing}")


def _weather(rng: Random) -> tuple[str, str, tuple[str, ...]]:
    town, day = city(rng), rng.choice(words.WEEKDAYS)
    sky, later = rng.sample(("rain", "snow", "wind", "fog", "sunshine", "storms"), 2)
    meanwhile = rng.choice(("Many stayed at home.", "The streets were empty."))
    text = f"On {day} the people of {town} woke up to {sky}. {meanwhile} In the evening there was {later}."
    return text, f"On {day} {town} had {sky} first and {later} in the evening.", (day, town, sky, later)


def _build(rng: Random) -> tuple[str, str, tuple[str, ...]]:
    job, animal, place = rng.choice(words.JOBS), rng.choice(words.ANIMALS), rng.choice(words.PLACES)
    thing = rng.choice(("house", "boat", "bridge", "fence", "shed", "nest", "tower"))
    days = rng.randint(2, 30)
    text = (
        f"{a(job).capitalize()} wanted to help {a(animal)}. The work near the {place} took {days} days. "
        f"{rng.choice(('Now', 'Today', 'At last'))} the {animal} has a new {thing}."
    )
    return (
        text,
        f"In {days} days {a(job)} built a {thing} for {a(animal)} near the {place}.",
        (str(days), job, thing, animal, place),
    )


def make(rng: Random) -> Item:
    text, answer, needed = rng.choice((_lost, _trip, _gift, _weather, _build))(rng)
    return single(text, ask(rng, ASK, t=text), answer, contains(*needed))
