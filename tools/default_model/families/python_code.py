"""Python one-liners from a small set of tasks, for a variable that the user names."""

from __future__ import annotations

from random import Random

from tools.default_model.item import Item, equals, single
from tools.default_model.wording import ask

ASK = (
    "Python one-liner to {task}",
    "Write a Python one-liner to {task}.",
    "How do I {task} in Python?",
    "Python: {task}",
    "Give me Python code to {task}.",
    "Show me how to {task} in Python",
    "Write Python to {task}",
)
LISTS = ("xs", "items", "numbers", "values", "data", "nums", "rows", "names", "words", "a")
TEXTS = ("s", "text", "line", "name", "word", "title")
TASKS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("sum the list {v}", "sum({v})", LISTS),
    ("reverse the list {v}", "{v}[::-1]", LISTS),
    ("reverse the string {v}", "{v}[::-1]", TEXTS),
    ("sort the list {v}", "sorted({v})", LISTS),
    ("sort the list {v} in descending order", "sorted({v}, reverse=True)", LISTS),
    ("find the largest of {v}", "max({v})", LISTS),
    ("find the smallest of {v}", "min({v})", LISTS),
    ("get the length of {v}", "len({v})", LISTS + TEXTS),
    ("square every number in {v}", "[x * x for x in {v}]", LISTS),
    ("double every number in {v}", "[x * 2 for x in {v}]", LISTS),
    ("keep the even numbers of {v}", "[x for x in {v} if x % 2 == 0]", LISTS),
    ("keep the odd numbers of {v}", "[x for x in {v} if x % 2 == 1]", LISTS),
    ("keep the numbers of {v} greater than {n}", "[x for x in {v} if x > {n}]", LISTS),
    ("remove duplicates from {v}", "list(dict.fromkeys({v}))", LISTS),
    ("count the words in {v}", "len({v}.split())", TEXTS),
    ("make {v} upper case", "{v}.upper()", TEXTS),
    ("make {v} lower case", "{v}.lower()", TEXTS),
    ("join {v} with commas", '", ".join({v})', LISTS),
    ("split {v} at commas", '{v}.split(",")', TEXTS),
    ("strip blanks from {v}", "{v}.strip()", TEXTS),
    ("get the first {n} elements of {v}", "{v}[:{n}]", LISTS),
    ("get the last {n} elements of {v}", "{v}[-{n}:]", LISTS),
    ("get the first element of {v}", "{v}[0]", LISTS),
    ("get the last element of {v}", "{v}[-1]", LISTS),
    ("get the average of {v}", "sum({v}) / len({v})", LISTS),
    ("make a list of the numbers from 1 to {n}", "list(range(1, {n} + 1))", ("xs",)),
    ("check if {v} is a palindrome", "{v} == {v}[::-1]", TEXTS),
    ("count the letter a in {v}", '{v}.count("a")', TEXTS),
    ("convert {v} to integers", "[int(x) for x in {v}]", LISTS),
    ("replace spaces with dashes in {v}", '{v}.replace(" ", "-")', TEXTS),
    ("print {v}", "print({v})", LISTS + TEXTS),
    ("read the file {v}.txt", 'open("{v}.txt").read()', TEXTS),
    ("add {n} to the list {v}", "{v}.append({n})", LISTS),
    ("check if {n} is in {v}", "{n} in {v}", LISTS),
    ("number the elements of {v}", "list(enumerate({v}))", LISTS),
)


def make(rng: Random) -> Item:
    task, code, variables = rng.choice(TASKS)
    variable, n = rng.choice(variables), rng.randint(2, 99)
    prompt = ask(rng, ASK, task=task.format(v=variable, n=n))
    answer = code.format(v=variable, n=n)
    key = f"{task} {variable}" + (f" {n}" if "{n}" in task else "")
    return single(key if "{n}" in task else prompt, prompt, answer, equals(answer, f"`{answer}`"))
