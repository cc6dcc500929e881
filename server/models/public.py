"""Public models by name: their dimensions, for planning and for measurements that name a model without its shape.

The table is public.json. Source of the sizes: the `config.json` published with the model's weights under the hub id,
keys in its spelling. `params_b` is the number that the model's page or paper states, in billions: without the vision
encoder of a model that has one, and without the output layer of an encoder. `also` names models of the same dimensions.
Positions are the published context; they bound the lengths that are accepted, and no time or byte follows from them.
Rotary bases, which change no size, are given only for models that tools/random_checkpoint makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from .planned import planned_spec
from .spec import ModelSpec

TABLE = Path(__file__).with_name("public.json")

Key = tuple[str, ...]

# Words of a name that change no dimension. LOOSE_WORDS are left out only where the rest still names one model.
PLAIN_WORDS = frozenset(("instruct", "chat", "it", "hf", "meta"))
LOOSE_WORDS = frozenset(("base", "pt", "preview"))
DATE = re.compile(r"\d{4}")


@dataclass(frozen=True, slots=True)
class PublicModel:
    """One row. `config` has the keys of its config.json that give dimensions."""

    hub_id: str
    also: tuple[str, ...]
    params_b: float
    config: dict[str, Any]

    @property
    def spec(self) -> ModelSpec:
        """Model with the row's dimensions."""
        return _spec(self.hub_id)

    @property
    def hub_ids(self) -> tuple[str, ...]:
        """Hub ids of all models with these dimensions."""
        return (self.hub_id, *self.also)


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return table


@cache
def models() -> tuple[PublicModel, ...]:
    """Return all rows in the order of the table."""
    return tuple(_rows(_table()["columns"], _table()["families"]))


def why_not_planned(name: str) -> str:
    """Return the mechanism of a public model that the records of a model do not express; empty for other names.

    `not_planned` of the table has patterns of names without organisation, such as deepseek-v3*.
    """
    own = name.lower().rpartition("/")[2]
    found = (mechanism for mechanism, patterns in _table()["not_planned"].items() if _matches(own, patterns))
    return next(found, "")


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _rows(columns: list[str], families: list[dict[str, Any]]) -> Iterator[PublicModel]:
    for family in families:
        for entry in family["models"]:
            hub_id, params_b, *sizes = entry["row"]
            config = {**family["config"], **dict(zip(columns[2:], sizes, strict=True)), **entry.get("config", {})}
            yield PublicModel(hub_id, tuple(entry.get("also", ())), params_b, config)


@cache
def _spec(hub_id: str) -> ModelSpec:
    return planned_spec(_by_id()[hub_id.lower()].config)


@cache
def _by_id() -> dict[str, PublicModel]:
    return {hub_id.lower(): model for model in models() for hub_id in model.hub_ids}


@cache
def _by_name() -> dict[str, PublicModel]:
    """Models by their names without the organisation."""
    return {hub_id.rpartition("/")[2]: model for hub_id, model in _by_id().items()}


def words(name: str) -> Key:
    """Split a model's name into words and numbers, without words that change no dimension."""
    found = re.findall(r"\d+(?:\.\d+)*[a-z]*|[a-z]+", name.lower())
    return tuple(word for word in found if word not in PLAIN_WORDS)


def loose(key: Key) -> Key:
    """Return `key` without versions such as v0.1, dates such as 2407 and words such as base."""
    kept: list[str] = []
    for word in key:
        if kept and kept[-1] == "v" and word[0].isdigit():
            kept.pop()
        elif not (DATE.fullmatch(word) or word in LOOSE_WORDS):
            kept.append(word)
    return tuple(kept)


@cache
def _by_words(is_loose: bool) -> dict[Key, tuple[PublicModel, ...]]:
    """Models by the words of their names without the organisation; models of one name in the order of the table."""
    found: dict[Key, dict[str, PublicModel]] = {}
    for row in models():
        for hub_id in row.hub_ids:
            key = words(hub_id.rpartition("/")[2])
            found.setdefault(loose(key) if is_loose else key, {})[row.hub_id] = row
    return {key: tuple(named.values()) for key, named in found.items()}


def candidates(name: str) -> tuple[PublicModel, ...]:
    """Return the models that `name` may mean: by hub id in any case, without organisation or suffixes, then loosely.

    There are several where versions of different dimensions share the name, and none for an unknown name.
    """
    own = name.lower().rpartition("/")[2]
    exact = _by_id().get(name.lower()) or _by_name().get(own)
    if exact is not None:
        return (exact,)
    key = words(own)
    return _by_words(False).get(key) or _by_words(True).get(loose(key)) or ()


def known_model(name: str) -> ModelSpec | None:
    """Return the model that a free description such as "Llama-3.1 8B" names, or None.

    The longest name that is part of the description wins; among versions of one name, the first in the table.
    """
    for is_loose in (False, True):
        description = loose(words(name)) if is_loose else words(name)
        lengths = range(len(description), 0, -1)
        runs = (description[i : i + size] for size in lengths for i in range(len(description) - size + 1))
        named = _by_words(is_loose)
        found = next((named[run] for run in runs if run in named), None)
        if found is not None:
            return found[0].spec
    return None


# Short names of public models.
SHORT_NAMES = {
    "qwen-7b": "Qwen/Qwen2.5-7B-Instruct",
    "llama-7b": "meta-llama/Llama-2-7b-hf",
    "llama-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-13b": "meta-llama/Llama-2-13b-hf",
    "llama-70b": "meta-llama/Meta-Llama-3-70B",
    "mistral-7b": "mistralai/Mistral-7B-Instruct-v0.2",
}

# Shapes of random checkpoints (tools/random_checkpoint): the layers of a public model and a vocabulary of their own.
# Their names are not names of public models.
TEST_VOCABULARY = 32_000
TEST_SHAPES = {"qwen-0.5b": "Qwen/Qwen2.5-0.5B-Instruct", "llama-1b": "meta-llama/Llama-3.2-1B"}

NAMED: dict[str, ModelSpec] = {
    **{name: _spec(hub_id).with_vocabulary(TEST_VOCABULARY) for name, hub_id in TEST_SHAPES.items()},
    **{name: _spec(hub_id) for name, hub_id in SHORT_NAMES.items()},
}
