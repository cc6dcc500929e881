"""Function calls in the Hermes form: choosing a function and its arguments, and answering from its result."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tools.default_model import words
from tools.default_model.item import Item, Message, Tool, assistant, calls_equal, contains, user
from tools.default_model.wording import ask, city, invented, number, person

Slots = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Function:
    """A kind of function: its possible names, description, requests for it, and the sentence about its result."""

    names: tuple[str, ...]
    description: str
    parameters: dict[str, tuple[str, ...]]  # slot -> possible names of the parameter
    draw: Callable[[Random], Slots]
    asks: tuple[str, ...]
    result: Callable[[Random], Slots]
    report: str
    option: tuple[str, tuple[str, ...]] | None = None  # an optional parameter and its values


def _place(rng: Random) -> str:
    """Draw a city, sometimes with its country or state."""
    town = city(rng)
    return town if rng.random() < 0.85 else f"{town}, {rng.choice((*words.CAPITALS, 'CA', 'MA', 'NY', 'TX'))}"


SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")
TOPICS = (*words.ANIMALS, *words.FOODS, "python tutorials", "cheap flights", "train tickets", "AWS Inferentia", "jazz")
FUNCTIONS = (
    Function(
        ("get_weather", "get_current_weather", "weather", "current_weather"),
        "Get the current weather in a city",
        {"city": ("city", "location", "place", "town")},
        lambda rng: {"city": _place(rng)},
        (
            "What is the weather in {city}?",
            "How is the weather in {city}?",
            "Weather in {city}?",
            "Is it raining in {city}?",
            "What's the weather like in {city} today?",
            "Tell me the weather in {city}.",
            "How warm is it in {city}?",
            "Do I need an umbrella in {city}?",
        ),
        lambda rng: {"temperature": number(rng, 2), "condition": rng.choice(SKIES)},
        "It is {condition} in {city} with {temperature} degrees.",
        ("unit", ("celsius", "fahrenheit")),
    ),
    Function(
        ("calculator", "calculate", "evaluate", "math"),
        "Evaluate an arithmetic expression",
        {"expression": ("expression", "expr", "formula", "input")},
        lambda rng: {"expression": f"{number(rng, 4)} {rng.choice('+-*/')} {number(rng, 4)}"},
        (
            "What is {expression}?",
            "Calculate {expression}.",
            "Use the calculator: {expression}",
            "Compute {expression}",
            "How much is {expression}?",
            "{expression}",
        ),
        lambda rng: {"result": number(rng, 5)},
        "{expression} is {result}.",
    ),
    Function(
        ("search", "web_search", "search_web", "find"),
        "Search the web",
        {"query": ("query", "q", "text", "keywords")},
        lambda rng: {"query": rng.choice(TOPICS)},
        (
            "Search for {query}.",
            "Search the web for {query}",
            "Find something about {query}.",
            "Look up {query}.",
            "Google {query}",
            "Find pages about {query}",
        ),
        lambda rng: {"title": f"All about {rng.choice(words.PLAIN)}", "hits": number(rng, 3)},
        'I found {hits} pages about {query}. The first is "{title}".',
    ),
    Function(
        ("get_time", "current_time", "time_in"),
        "Get the local time in a city",
        {"city": ("city", "location", "zone")},
        lambda rng: {"city": city(rng)},
        ("What time is it in {city}?", "Time in {city}?", "Tell me the time in {city}.", "How late is it in {city}?"),
        lambda rng: {"time": f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"},
        "It is {time} in {city}.",
    ),
    Function(
        ("set_timer", "start_timer", "timer"),
        "Start a timer",
        {"minutes": ("minutes", "duration")},
        lambda rng: {"minutes": number(rng, 2)},
        ("Set a timer for {minutes} minutes.", "Start a {minutes} minute timer", "Wake me in {minutes} minutes."),
        lambda _: {"status": "started"},
        "The timer is set to {minutes} minutes.",
    ),
    Function(
        ("send_message", "send_mail", "send_email"),
        "Send a message to a person",
        {"to": ("to", "recipient", "name"), "text": ("text", "message", "body")},
        lambda rng: {"to": person(rng), "text": rng.choice(("hello", "I am late", "see you soon", "dinner is ready"))},
        ('Send {to} the message "{text}".', 'Tell {to} "{text}".', "Send a message to {to}: {text}"),
        lambda _: {"status": "sent"},
        "I sent your message to {to}.",
    ),
    Function(
        ("get_price", "stock_price", "lookup_price"),
        "Get the price of a product",
        {"item": ("item", "product", "name")},
        lambda rng: {"item": rng.choice(words.OBJECTS)},
        (
            "What does a {item} cost?",
            "Price of a {item}?",
            "How much does a {item} cost?",
            "Get the price of a {item}.",
        ),
        lambda rng: {"price": number(rng, 3), "currency": rng.choice(("dollars", "euros"))},
        "A {item} costs {price} {currency}.",
    ),
    Function(
        ("book_table", "reserve_table"),
        "Book a table in a restaurant",
        {"day": ("day", "date"), "people": ("people", "guests", "party_size")},
        lambda rng: {"day": rng.choice(words.WEEKDAYS), "people": rng.randint(1, 12)},
        ("Book a table for {people} on {day}.", "Reserve a table on {day} for {people} people"),
        lambda _: {"status": "booked"},
        "Your table for {people} on {day} is booked.",
    ),
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A function as one conversation offers it: with chosen or invented names."""

    kind: Function
    name: str
    renamed: dict[str, str]  # slot -> parameter name
    has_option: bool = False

    def tool(self, rng: Random) -> Tool:
        sample = self.kind.draw(rng)
        properties: dict[str, Any] = {
            parameter: {"type": "integer" if isinstance(sample[slot], int) else "string"}
            for slot, parameter in self.renamed.items()
        }
        required = list(properties)
        if self.has_option and self.kind.option:
            name, values = self.kind.option
            properties[name] = {"type": "string", "enum": list(values)}
        parameters = {"type": "object", "properties": properties, "required": required}
        function = {"name": self.name, "description": self.kind.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def call(self, slots: Slots) -> dict[str, Any]:
        return {"name": self.name, "arguments": {self.renamed[slot]: value for slot, value in slots.items()}}


def _bind(rng: Random, kind: Function) -> Bound:
    renamed = {slot: rng.choice(names) for slot, names in kind.parameters.items()}
    return Bound(kind, rng.choice(kind.names), renamed, rng.random() < 0.4)


def _unfamiliar(rng: Random) -> Bound:
    """Return a function with invented names, which must be read from the prompt."""
    noun, parameter = invented(rng, 2), rng.choice(("id", "name", "code", "value", invented(rng, 1)))
    verb = rng.choice(("get", "find", "check", "open", "lookup"))
    kind = Function(
        (f"{verb}_{noun}",),
        f"{verb.capitalize()} the {noun}",
        {"value": (parameter,)},
        lambda r: {"value": r.choice((person(r), invented(r, 2), str(number(r, 3))))},
        (
            f"{verb.capitalize()} the {noun} of {{value}}.",
            f"Use {verb}_{noun} with {{value}}.",
            f"Please {verb} the {noun} for {{value}}",
            f"Call {verb}_{noun} for {{value}}",
        ),
        lambda r: {"result": r.choice((str(number(r, 3)), r.choice(words.PLAIN)))},
        f"The {noun} of {{value}} is {{result}}.",
    )
    return Bound(kind, kind.names[0], {"value": parameter})


def offered(rng: Random) -> list[Bound]:
    """Draw one to four functions of different kinds, in any order."""
    count = rng.choices((1, 2, 3, 4), (4, 3, 2, 1))[0]
    chosen = [_bind(rng, kind) for kind in rng.sample(FUNCTIONS, count)]
    if rng.random() < 0.25:
        chosen[rng.randrange(count)] = _unfamiliar(rng)
    return chosen


def _calling(calls: list[dict[str, Any]]) -> Message:
    """Return an assistant message of tool calls, with arguments as JSON text as the API delivers them."""
    wired = [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
        }
        for i, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": wired}


def make_call(rng: Random) -> Item:
    """Draw a request that one of the offered functions answers; sometimes two calls of the same kind."""
    functions = offered(rng)
    bound = rng.choice(functions)
    tools = tuple(b.tool(rng) for b in functions)
    if "city" in bound.renamed and rng.random() < 0.25:
        return _two_cities(rng, bound, tools)
    slots = bound.kind.draw(rng)
    calls = [bound.call(slots)]
    prompt = ask(rng, bound.kind.asks, **slots)
    if bound.has_option and bound.kind.option and rng.random() < 0.5:
        name, values = bound.kind.option
        calls[0]["arguments"][name] = value = rng.choice(values)
        prompt += rng.choice((f" In {value}.", f" In {value} please.", f" (in {value})", f" Use {value}."))
    key = json.dumps([sorted(b.name for b in functions), calls])
    return Item(key, (user(prompt), _calling(calls)), calls_equal(calls), tools)


def _two_cities(rng: Random, bound: Bound, tools: tuple[Tool, ...]) -> Item:
    first, second = city(rng), city(rng)
    asked = "weather" if "weather" in bound.kind.description else "time"
    prompt = ask(rng, ("What is the {x} in {a} and in {b}?", "{x} in {a} and {b}?"), x=asked, a=first, b=second)
    calls = [bound.call({"city": first}), bound.call({"city": second})]
    return Item(json.dumps(calls), (user(prompt), _calling(calls)), calls_equal(calls), tools)


def make_answer(rng: Random) -> Item:
    """Draw the turn after a call: the answer states the result in one sentence."""
    functions = offered(rng)
    bound = rng.choice(functions)
    tools = tuple(b.tool(rng) for b in functions)
    slots, result = bound.kind.draw(rng), bound.kind.result(rng)
    calls = [bound.call(slots)]
    prompt = ask(rng, bound.kind.asks, **slots)
    content = json.dumps(result)
    needed = [str(v) for k, v in result.items() if k != "status"]
    turns = (user(prompt), _calling(calls), {"role": "tool", "tool_call_id": "call_0", "content": content})
    answer = bound.kind.report.format(**slots, **result)
    check = contains(*(needed or [str(next(iter(slots.values())))]))
    return Item(json.dumps([calls, result]), (*turns, assistant(answer)), check, tools)
