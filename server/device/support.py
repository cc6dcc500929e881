"""Whether a model is known to run on the real accelerator: dated statements with their sources, in support.json.

A statement is a row with conditions on the model's name and size, the chip, the instance, the degree, the SDK release,
the serving stack, the features in use and the length. A condition that is left out always holds. A row that applies
reports that the model `runs` or `fails`, or states a `limit` of models that run, or the `status` of support. A failure
has the `error` that the software prints, if it prints one. Without a row nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Literal

from ..typed_json import decode
from .instances import Instance

FactKind = Literal["runs", "fails", "limit", "status"]
Outcome = Literal["known to run", "known not to run", "not known"]


@dataclass(frozen=True, slots=True)
class Release:
    """A release of the AWS Neuron SDK."""

    sdk: str  # "2.28.1"
    date: str  # ISO


@dataclass(frozen=True, slots=True)
class Question:
    """A model on an accelerator, in one configuration."""

    model: str  # hub id, path or short name
    instance: Instance
    tp: int
    release: str
    features: Collection[str] = ()
    length: int = 0  # positions; 0: not stated
    stack: str = ""  # serving software; empty: not stated


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement. An empty condition always holds."""

    kind: FactKind
    what: str
    source: str  # link
    date: str  # ISO, of the source; a month if the day is not known
    error: str = ""  # as the software prints it
    software: str = ""  # it was seen with
    models: str = ""  # regular expression, searched in a plain name
    billions: float = 0  # of parameters by the model's name, at least
    parts: tuple[str, ...] = ()  # names of chips
    instances: tuple[str, ...] = ()
    tp: tuple[int, ...] = ()
    tp_except: tuple[int, ...] = ()  # every degree but these
    since: str = ""  # first release, and last: "2.28" has all of 2.28.x
    until: str = ""
    stacks: tuple[str, ...] = ()  # serving software
    features: tuple[str, ...] = ()  # all must be in use
    longer_than: int = 0  # positions

    def applies(self, asked: Question) -> bool:
        """Return whether all conditions hold."""
        return (
            self._is_on(asked.instance)
            and self.is_about(plain_name(asked.model))
            and (not self.billions or billions(asked.model) >= self.billions)
            and self.holds_in(asked.release)
            and (not self.tp or asked.tp in self.tp)
            and (not self.tp_except or asked.tp not in self.tp_except)
            and (not self.stacks or asked.stack in self.stacks)
            and set(self.features) <= set(asked.features)
            and (not self.longer_than or asked.length > self.longer_than)
        )

    def is_about(self, model: str) -> bool:
        """Return whether the statement is about the model with this plain name."""
        return re.search(self.models, model) is not None

    def holds_in(self, release: str) -> bool:
        """Return whether `release` is within the range, at the precision of the bounds."""
        number, since, until = map(_number, (release, self.since, self.until))
        return since <= number[: len(since)] and (not until or number[: len(until)] <= until)

    def is_of_chip(self, chip: str) -> bool:
        """Return whether the statement is about all models on a chip, under no condition but the release."""
        name = (self.models, self.billions)
        rest = (self.instances, self.tp, self.tp_except, self.stacks, self.features, self.longer_than)
        return chip in self.parts and not any((*name, *rest))

    def proves(self, asked: Question) -> bool:
        """Return whether this reports that the model runs in just that configuration: instance, degree and features."""
        named = bool(self.instances and self.tp)
        return self.kind == "runs" and named and set(asked.features) <= set(self.features) and self.applies(asked)

    @property
    def statement(self) -> str:
        """The statement with its error, releases, source and date, without the accelerator that it is about."""
        error = f": {self.error}" if self.error else ""
        seen = f"{self.software}; " if self.software else ""
        return f"{_range(self.since, self.until)}{self.what}{error} ({seen}{self.source}, {self.date})"

    def __str__(self) -> str:
        tp = f", TP {' or '.join(map(str, self.tp))}" if self.tp else ""
        return f"{', '.join(self.instances or self.parts)}{tp}: {self.statement}"

    def _is_on(self, instance: Instance) -> bool:
        return (not self.parts or instance.chip.name in self.parts) and (
            not self.instances or instance.name in self.instances
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Known facts about a model in a configuration."""

    outcome: Outcome
    release: str  # of the SDK
    features: tuple[str, ...]  # in use
    facts: tuple[Fact, ...]  # reasons of the outcome; of "not known" the nearest reports of the model on the chip
    limits: tuple[Fact, ...]  # of models that run
    status: tuple[Fact, ...]  # of support for the chip

    @property
    def failures(self) -> tuple[Fact, ...]:
        """Reports that the configuration does not run."""
        return _of(self.facts, "fails")

    @property
    def heading(self) -> str:
        """The outcome, with the release and the features that it is about."""
        used = f" with {', '.join(self.features)}" if self.features else ""
        return f"{self.outcome} (SDK {self.release}{used})"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        nearest = "; nearest: " if self.outcome == "not known" else ": "
        found = nearest + "; ".join(map(str, self.facts)) if self.facts else ""
        return f"{self.heading}{found}"


def answer(asked: Question) -> Verdict:
    """Return the known facts about one configuration."""
    table = _table()
    applying = [fact for fact in table.facts if fact.applies(asked)]
    failures = _of(applying, "fails")
    proofs = tuple(fact for fact in applying if fact.proves(asked))
    outcome: Outcome = "known not to run" if failures else "known to run" if proofs else "not known"
    found = failures or proofs or tuple(_nearest(table.facts, plain_name(asked.model), asked.instance))
    limits, status = _of(applying, "limit"), _of(applying, "status")
    return Verdict(outcome, asked.release, tuple(asked.features), found, limits, status)


def chip_status(chip: str) -> tuple[str, tuple[Fact, ...]]:
    """Return the newest release, and its statements about the chip: support status, or that support has ended."""
    newest = _table().releases[-1].sdk
    facts = (fact for fact in _table().facts if fact.is_of_chip(chip) and fact.holds_in(newest))
    return newest, tuple(facts)


def last_release(chip: str) -> str:
    """Return the newest SDK release that does not exclude the chip."""
    table = _table()
    dropped = [fact for fact in table.facts if fact.kind == "fails" and fact.is_of_chip(chip)]
    return next(
        release.sdk for release in reversed(table.releases) if not any(fact.holds_in(release.sdk) for fact in dropped)
    )


@lru_cache(maxsize=256)
def plain_name(model: str) -> str:
    """Return the name that patterns are searched in: the last path component, lower case, without -, _ and spaces."""
    return re.sub(r"[-_\s]", "", model.rstrip("/").rpartition("/")[2].lower())


def billions(model: str) -> float:
    """Return the parameters that a model's name states, in 1e9: 8 of Llama-3.1-8B, 56 of Mixtral-8x7B; else 0."""
    words = re.split(r"[-_\s]", model.rstrip("/").rpartition("/")[2].lower())
    sizes = (re.fullmatch(r"(?:(\d+)x)?(\d+(?:\.\d+)?)b", word) for word in words)
    return max((int(size[1] or 1) * float(size[2]) for size in sizes if size), default=0.0)


def facts() -> tuple[Fact, ...]:
    """Return every statement of support.json."""
    return _table().facts


def releases() -> tuple[Release, ...]:
    """Return the SDK releases, oldest first."""
    return _table().releases


@dataclass(frozen=True, slots=True)
class _Table:
    releases: tuple[Release, ...]  # oldest first
    facts: tuple[Fact, ...]


@cache
def _table() -> _Table:
    return decode(files("neuronserve.server.device").joinpath("support.json").read_text(encoding="utf-8"), _Table)


def _of(facts: Iterable[Fact], kind: FactKind) -> tuple[Fact, ...]:
    return tuple(fact for fact in facts if fact.kind == kind)


def _nearest(facts: Iterable[Fact], model: str, instance: Instance) -> Iterator[Fact]:
    """Yield the reports that the model runs on the same chip."""
    for fact in facts:
        if fact.kind == "runs" and fact.is_about(model) and instance.chip.name in fact.parts:
            yield fact


def _range(since: str, until: str) -> str:
    """Return a range of releases as a heading: "SDK 2.28: ", "since SDK 2.31: "; empty for all."""
    if not until:
        return f"since SDK {since}: " if since else ""
    return f"SDK {until}: " if since == until else f"SDK {since or 'any'} to {until}: "


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split("."))) if release else ()
