"""Fields of a sentence as one flat JSON object, with the requested keys in the requested order."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tools.default_model import words
from tools.default_model.item import Item, json_equals, single
from tools.default_model.wording import ask, city, number, person

ASK = (
    "Extract {keys} as JSON: {text}",
    "Extract the {keys} from this text as JSON.\n\n{text}",
    "Give {keys} as JSON.\nText: {text}",
    "{text}\nReturn JSON with the keys {keys}.",
    "Return a JSON object with {keys} for: {text}",
    'From the sentence "{text}" make JSON with {keys}.',
    "Answer in JSON with the fields {keys}: {text}",
)
Fields = dict[str, Any]


def _person(rng: Random) -> tuple[str, Fields]:
    name, age, job, town = person(rng), rng.randint(18, 90), rng.choice(words.JOBS), city(rng)
    texts = (
        f"{name} is {age} years old and lives in {town}. {name} is a {job}.",
        f"{name}, {age}, works as a {job} in {town}.",
        f"My name is {name}, I am a {job} from {town} and I am {age} years old.",
        f"The {job} {name} from {town} is {age}.",
        f"In {town} lives a {job} named {name} who turned {age} this year.",
    )
    return rng.choice(texts), {"name": name, "age": age, "job": job, "city": town}


def _order(rng: Random) -> tuple[str, Fields]:
    name, item, count, price = person(rng), rng.choice(words.OBJECTS), rng.randint(2, 60), rng.randint(1, 400)
    color = rng.choice(words.COLORS)
    texts = (
        f"{name} ordered {count} {color} {item}s for {price} dollars.",
        f"Order from {name}: {count} {item}s, color {color}, price {price} dollars.",
        f"Please send {count} {color} {item}s to {name}. The price is {price} dollars.",
        f"{name} paid {price} dollars for {count} {item}s in {color}.",
    )
    return rng.choice(texts), {"customer": name, "item": item, "quantity": count, "price": price, "color": color}


def _meeting(rng: Random) -> tuple[str, Fields]:
    name, day, hour, place = person(rng), rng.choice(words.WEEKDAYS), rng.randint(1, 12), rng.choice(words.PLACES)
    texts = (
        f"Meet {name} on {day} at {hour} in the {place}.",
        f"On {day} at {hour} I will see {name} at the {place}.",
        f"{name} wants to meet at the {place} on {day} at {hour}.",
    )
    return rng.choice(texts), {"person": name, "day": day, "hour": hour, "place": place}


def _weather(rng: Random) -> tuple[str, Fields]:
    town, degrees, sky = city(rng), number(rng, 2), rng.choice(("sunny", "cloudy", "rainy", "windy", "snowy"))
    texts = (
        f"It is {sky} in {town} today with {degrees} degrees.",
        f"Weather in {town}: {sky}, {degrees} degrees.",
        f"{town} has {degrees} degrees and it is {sky}.",
    )
    return rng.choice(texts), {"city": town, "temperature": degrees, "weather": sky}


def _pet(rng: Random) -> tuple[str, Fields]:
    owner, pet, animal, color = person(rng), person(rng), rng.choice(words.ANIMALS), rng.choice(words.COLORS)
    texts = (
        f"{owner} has a {color} {animal} called {pet}.",
        f"The {animal} {pet} is {color} and belongs to {owner}.",
        f"{pet} is {owner}'s {color} {animal}.",
    )
    return rng.choice(texts), {"owner": owner, "pet": pet, "animal": animal, "color": color}


KINDS: tuple[Callable[[Random], tuple[str, Fields]], ...] = (_person, _order, _meeting, _weather, _pet)


def make(rng: Random) -> Item:
    text, fields = rng.choice(KINDS)(rng)
    keys = rng.sample(list(fields), rng.randint(1 if rng.random() < 0.3 else 2, len(fields)))
    shown = ", ".join(keys) if rng.random() < 0.5 else " and ".join(filter(None, (", ".join(keys[:-1]), keys[-1])))
    wanted = {key: fields[key] for key in keys}
    prompt = ask(rng, ASK, keys=shown, text=text)
    return single(f"{text} {keys}", prompt, json.dumps(wanted), json_equals(wanted))
