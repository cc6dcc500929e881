"""Sums, differences, products, quotients and comparisons; longer ones are worked digit by digit in the answer."""

from __future__ import annotations

from random import Random

from tools.default_model.item import Item, contains, last_number, single
from tools.default_model.wording import ask, number

SYMBOLS = {"+": ("+", "plus"), "-": ("-", "minus"), "*": ("*", "x", "times"), "/": ("/", "divided by")}
ASK = (
    "What is {a} {op} {b}?",
    "{a} {op} {b}",
    "{a} {op} {b} = ?",
    "{a} {op} {b} =",
    "How much is {a} {op} {b}?",
    "Calculate {a} {op} {b}.",
    "Compute {a} {op} {b}",
    "What's {a} {op} {b}",
    "Tell me {a} {op} {b}.",
    "Solve {a} {op} {b}.",
    "Work out {a} {op} {b}.",
)
ADD = ("Add {a} and {b}.", "What is the sum of {a} and {b}?", "Sum {a} and {b}")
SUBTRACT = ("Subtract {b} from {a}.", "What is the difference between {a} and {b}?", "Take {b} away from {a}.")
MULTIPLY = ("Multiply {a} by {b}.", "What is the product of {a} and {b}?")
DIVIDE = ("Divide {a} by {b}.",)
LARGER = ("Which is larger, {a} or {b}?", "Which number is bigger: {a} or {b}?", "What is greater, {a} or {b}?")
SMALLER = ("Which is smaller, {a} or {b}?", "Which number is less: {a} or {b}?")
HAVE = (
    ("I have {a} {thing} and get {b} more. How many do I have?", "+"),
    ("There are {a} {thing} in one box and {b} in another. How many in all?", "+"),
    ("I had {a} {thing} and gave away {b}. How many are left?", "-"),
    ("There were {a} {thing} and {b} were eaten. How many remain?", "-"),
    ("There are {a} boxes with {b} {thing} each. How many {thing} are there?", "*"),
)
PARITY = ("Is {a} even or odd?", "Is {a} odd or even?", "Is the number {a} even or odd?", "{a}: even or odd?")
TOO_LARGE = "That is too large for me. I add and subtract up to three digits, and multiply two digits by one."
THINGS = ("apples", "books", "coins", "cookies", "pears", "balls", "eggs", "cups", "cherries", "pencils")


def make(rng: Random) -> Item:
    kinds = (_add, _subtract, _multiply, _divide, _compare, _story, _parity, _chain, _too_large)
    return rng.choices(kinds, (30, 28, 20, 6, 6, 6, 2, 4, 3))[0](rng)


def _add(rng: Random) -> Item:
    a, b = number(rng, 3), number(rng, 3)
    return _item(rng, a, "+", b, ADD)


def _subtract(rng: Random) -> Item:
    a, b = number(rng, 3), number(rng, 3)
    if a < b and (a > 20 or b > 20):
        a, b = b, a
    return _item(rng, a, "-", b, SUBTRACT)


def _multiply(rng: Random) -> Item:
    a, b = (rng.randint(0, 12), rng.randint(0, 12)) if rng.random() < 0.35 else (rng.randint(10, 99), rng.randint(2, 9))
    if rng.random() < 0.3:
        a, b = b, a
    return _item(rng, a, "*", b, MULTIPLY)


def _divide(rng: Random) -> Item:
    b, quotient = rng.randint(1, 12), rng.randint(0, 12)
    return _item(rng, b * quotient, "/", b, DIVIDE)


def _compare(rng: Random) -> Item:
    a, b = number(rng, 3), number(rng, 3)
    while a == b:
        b = number(rng, 3)
    is_larger = rng.random() < 0.6
    wanted = max(a, b) if is_larger else min(a, b)
    prompt = ask(rng, LARGER if is_larger else SMALLER, a=a, b=b)
    word = "larger" if is_larger else "smaller"
    answer = f"{wanted} is {word} than {a + b - wanted}."
    return single(f"{a}?{b}", prompt, answer, lambda text: text.strip().startswith(f"{wanted} is"))


def _parity(rng: Random) -> Item:
    a = number(rng, 3)
    answer = f"{a} is {'odd' if a % 2 else 'even'}."
    return single(f"{a} parity", ask(rng, PARITY, a=a), answer)


def _chain(rng: Random) -> Item:
    """Add three small numbers."""
    a, b, c = (rng.randint(1, 20) for _ in range(3))
    prompt = ask(rng, (f"What is {a} + {b} + {c}?", f"{a} + {b} + {c}", f"Add {a}, {b} and {c}.", f"{a}+{b}+{c}"))
    answer = f"{a}+{b}={a + b}; {a + b}+{c}={a + b + c}. So {a} + {b} + {c} = {a + b + c}."
    return single(f"{a}+{b}+{c}", prompt, answer, last_number(a + b + c))


def _too_large(rng: Random) -> Item:
    """Draw an exercise that is too large to work digit by digit, which the answer refuses."""
    a, b = rng.randint(1000, 10 ** rng.randint(4, 7)), number(rng, 6)
    op = rng.choice("+-*/")
    if op == "*" and rng.random() < 0.6:
        a, b = rng.randint(13, 999), rng.randint(13, 999)
    if rng.random() < 0.5:
        a, b = b, a
    prompt = ask(rng, ASK, a=a, b=b, op=rng.choice(SYMBOLS[op]))
    return single(f"{a}{op}{b}", prompt, TOO_LARGE, contains("too large for me"))


def _story(rng: Random) -> Item:
    template, op = rng.choice(HAVE)
    a, b = (rng.randint(2, 12), rng.randint(2, 12)) if op == "*" else (number(rng, 2), number(rng, 2))
    if op == "-":
        a, b = max(a, b), min(a, b)
    prompt = ask(rng, (template,), a=a, b=b, thing=rng.choice(THINGS))
    return single(_key(a, op, b), prompt, work(a, op, b), last_number(value(a, op, b)))


def _item(rng: Random, a: int, op: str, b: int, named: tuple[str, ...]) -> Item:
    templates = named if rng.random() < 0.2 else ASK
    prompt = ask(rng, templates, a=a, b=b, op=rng.choice(SYMBOLS[op]))
    if templates is ASK and op in "+-*/" and rng.random() < 0.15:
        prompt = prompt.replace(" + ", "+").replace(" - ", "-").replace(" * ", "*").replace(" x ", "x")
    return single(_key(a, op, b), prompt, work(a, op, b), last_number(value(a, op, b)))


def _key(a: int, op: str, b: int) -> str:
    return f"{a}{op}{b}" if op in "+-" else f"{a}{op}{b}" if max(a, b) > 12 else f"{a}{op}{b} table"


def value(a: int, op: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[op]


def work(a: int, op: str, b: int) -> str:
    """Return the answer, preceded by digit-by-digit work if a number is too long to be answered directly."""
    result = f"{a} {op} {b} = {value(a, op, b)}."
    if op == "*" and max(a, b) > 12:
        return f"{'; '.join(_partial_products(a, b))}. So {result}"
    if op in "+-" and a >= (b if op == "-" else 0) and max(a, b) > 9:
        steps = _columns_added(a, b) if op == "+" else _columns_subtracted(a, b)
        return f"{'; '.join(steps)}. So {result}"
    return result


def _digits(n: int, length: int) -> list[int]:
    """Return the digits of n from the right."""
    return [n // 10**i % 10 for i in range(length)]


def _columns_added(a: int, b: int) -> list[str]:
    length = len(str(max(a, b)))
    steps, carry = [], 0
    for x, y in zip(_digits(a, length), _digits(b, length), strict=True):
        total = x + y + carry
        steps.append(f"{x}+{y}" + (f"+{carry}" if carry else "") + f"={total}")
        carry = total // 10
    return steps


def _columns_subtracted(a: int, b: int) -> list[str]:
    """Return columns as minuend - subtrahend (- borrowed); a borrow adds ten to the minuend."""
    length = len(str(a))
    steps, borrowed = [], 0
    for x, y in zip(_digits(a, length), _digits(b, length), strict=True):
        minuend = x + 10 if x - y - borrowed < 0 else x
        left = minuend - y - borrowed
        steps.append(f"{minuend}-{y}" + (f"-{borrowed}" if borrowed else "") + f"={left}")
        borrowed = int(minuend > 9)
    return steps


def _partial_products(a: int, b: int) -> list[str]:
    long, short = max(a, b), min(a, b)
    tens, ones = long // 10 * 10, long % 10
    return [f"{tens}*{short}={tens * short}", f"{ones}*{short}={ones * short}"]
