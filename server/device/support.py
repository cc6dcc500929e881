"""Whether a model is known to run on the real part: dated statements with their sources, in support.json.

A statement is a row with conditions: on the model's name, the part, the instance, the degree, the SDK release, the
features in use and the length. Those that a row leaves out hold for all. A row that applies is a report that the model
`runs` or `fails`, a `limit` of what runs, or the `status` of support. What no row tells of is not known, never guessed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from neuronserve.server.device.catalog import instances
from neuronserve.server.device.instances import Instance
from neuronserve.server.errors import DeviceError
from neuronserve.server.typed_json import decode

log = logging.getLogger("neuronserve.support")

FactKind = Literal["runs", "fails", "limit", "status"]
Outcome = Literal["known to run", "known not to run", "not known"]


@dataclass(frozen=True, slots=True)
class Release:
    """A release of the AWS Neuron SDK."""

    sdk: str  # "2.28.1"
    date: str  # ISO


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a model on a part, in one configuration."""

    model: str  # its plain name
    instance: Instance | None  # None: any
    tp: int | None
    release: str
    features: Collection[str] = ()
    length: int = 0  # positions; 0: not stated


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement. Conditions that are empty hold for all."""

    kind: FactKind
    what: str
    source: str  # link
    date: str  # ISO, of the source; a month when no day is known
    models: str = ""  # regular expression, searched in a plain name
    parts: tuple[str, ...] = ()  # names of chips
    instances: tuple[str, ...] = ()
    tp: tuple[int, ...] = ()
    tp_except: tuple[int, ...] = ()  # every degree but these
    since: str = ""  # first release, and last: "2.28" has all of 2.28.x
    until: str = ""
    features: tuple[str, ...] = ()  # all of which are in use
    longer_than: int = 0  # positions

    def applies(self, asked: Question) -> bool:
        """Whether all conditions hold."""
        return (
            self.is_about(asked.model)
            and self._is_on(asked.instance)
            and self.holds_in(asked.release)
            and (not self.tp or asked.tp in self.tp)
            and (not self.tp_except or asked.tp not in (None, *self.tp_except))
            and set(self.features) <= set(asked.features)
            and (not self.longer_than or asked.length > self.longer_than)
        )

    def is_about(self, model: str) -> bool:
        """Whether the plain name is of a model that the statement is about."""
        return re.search(self.models, model) is not None

    def holds_in(self, release: str) -> bool:
        """Whether `release` is within the range, at the precision that its bounds are given with."""
        number, since, until = map(_number, (release, self.since, self.until))
        return since <= number[: len(since)] and (not until or number[: len(until)] <= until)

    def is_of_part(self, chip: str) -> bool:
        """Whether it is about a whole part in some releases, whatever else."""
        rest = (self.models, self.instances, self.tp, self.tp_except, self.features, self.longer_than)
        return chip in self.parts and not any(rest)

    def proves(self, asked: Question) -> bool:
        """Whether a report that a model runs is of the very configuration: instance, degree and features."""
        named = bool(self.instances and self.tp)
        return self.kind == "runs" and named and set(asked.features) <= set(self.features) and self.applies(asked)

    @property
    def statement(self) -> str:
        """What is said, for which releases, with source and date; for below the place that it is about."""
        return f"{_range(self.since, self.until)}{self.what} ({self.source}, {self.date})"

    def __str__(self) -> str:
        tp = f", TP {' or '.join(map(str, self.tp))}" if self.tp else ""
        return f"{', '.join(self.instances or self.parts)}{tp}: {self.statement}"

    def _is_on(self, instance: Instance | None) -> bool:
        if instance is None:
            return True
        return (not self.parts or instance.chip.name in self.parts) and (
            not self.instances or instance.name in self.instances
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a model in a configuration."""

    outcome: Outcome
    release: str  # of the SDK, that it is said of
    features: tuple[str, ...]  # in use
    facts: tuple[Fact, ...]  # on which the outcome rests; of "not known" the nearest reports of the model on the part
    limits: tuple[Fact, ...]  # of what runs
    status: tuple[Fact, ...]  # of support for the part

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        nearest = "; nearest: " if self.outcome == "not known" else ": "
        found = nearest + "; ".join(map(str, self.facts)) if self.facts else ""
        used = f" with {', '.join(self.features)}" if self.features else ""
        return f"{self.outcome} (SDK {self.release}{used}){found}"


def verdict(
    model: str,
    instance: Instance,
    tp: int,
    release: str | None = None,
    features: Collection[str] = (),
    length: int = 0,
) -> Verdict:
    """What is known of `model` (a hub id, a path or a short name) on `tp` cores of `instance`.

    `release`: of the SDK; the last that supports the part if None. `features`: those in use, named as in support.json.
    `length`: positions of the longest context. Raises DeviceError for a release that support.json does not have.
    """
    table = _table()
    release = last_release(instance.chip.name) if release is None else _known(release)
    asked = Question(plain_name(model), instance, tp, release, features, length)
    applying = [fact for fact in table.facts if fact.applies(asked)]
    failures = _of(applying, "fails")
    proofs = tuple(fact for fact in applying if fact.proves(asked))
    outcome: Outcome = "known not to run" if failures else "known to run" if proofs else "not known"
    found = failures or proofs or tuple(_nearest(table.facts, asked.model, instance))
    return Verdict(outcome, release, tuple(features), found, _of(applying, "limit"), _of(applying, "status"))


def failures_anywhere(model: str) -> tuple[Fact, ...]:
    """Reports that `model` does not run, on whatever part."""
    name = plain_name(model)
    return tuple(fact for fact in _table().facts if fact.kind == "fails" and fact.models and fact.is_about(name))


def part_status(chip: str) -> tuple[str, tuple[Fact, ...]]:
    """The newest release, and what it means for the part: its support status, and that it has been dropped."""
    newest = _table().releases[-1].sdk
    facts = (fact for fact in _table().facts if fact.is_of_part(chip) and fact.holds_in(newest))
    return newest, tuple(facts)


def log_support(model: str, part: str, tp: int, max_model_len: int | None, features: tuple[str, ...]) -> None:
    """A known failure as a warning, the outcome as information, what else is known for --log-level debug."""
    for device in (each for each in instances() if each.name == part):
        release, status = part_status(device.chip.name)
        found = verdict(model, device, tp, features=features, length=max_model_len or 0)
        level = logging.WARNING if found.outcome == "known not to run" else logging.INFO
        log.log(level, "a real %s with TP %d: %s", device.name, tp, found)
        for fact in found.limits:
            log.debug("a real %s: %s", device.name, fact.statement)
        for fact in status:
            log.debug("%s under SDK %s: %s", device.chip.name, release, fact.statement)


def last_release(chip: str) -> str:
    """The newest SDK release that does not exclude the part."""
    table = _table()
    dropped = [fact for fact in table.facts if fact.kind == "fails" and fact.is_of_part(chip)]
    return next(
        release.sdk for release in reversed(table.releases) if not any(fact.holds_in(release.sdk) for fact in dropped)
    )


def plain_name(model: str) -> str:
    """The form of a name that patterns are searched in: the last path component in lower case, without -, _, spaces."""
    return re.sub(r"[-_\s]", "", model.rstrip("/").rpartition("/")[2].lower())


def facts() -> tuple[Fact, ...]:
    """Every statement of support.json."""
    return _table().facts


def releases() -> tuple[Release, ...]:
    """The SDK releases, oldest first."""
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
    """Reports that the model runs on the same part."""
    for fact in facts:
        if fact.kind == "runs" and fact.is_about(model) and instance.chip.name in fact.parts:
            yield fact


def _known(release: str) -> str:
    known = [each.sdk for each in _table().releases]
    if release not in known:
        raise DeviceError(f"there is no SDK release {release!r} in the table of support. Known: {', '.join(known)}")
    return release


def _range(since: str, until: str) -> str:
    """A range of releases as a heading: "SDK 2.28: ", "since SDK 2.31: "; empty for all."""
    if not until:
        return f"since SDK {since}: " if since else ""
    return f"SDK {until}: " if since == until else f"SDK {since or 'any'} to {until}: "


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split("."))) if release else ()
