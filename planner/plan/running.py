"""Whether a row runs on the real accelerator: one verdict for the terminal, the pages and the emitted files.

A row is the graph of one chip, degree and weight type, on an instance whose host must load it. So a report of the same
graph on another instance of the chip counts, and what stands in the way of this instance is a blocker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ...server.device.instances import Instance
from ...server.device.support import Question, Verdict, answer, facts, last_release
from .options import Buckets, PlanOptions
from .weight_types import WeightDtype

Runs = Literal["yes", "likely", "?", "no"]
Place = tuple[str, int, int, WeightDtype]  # device, TP, PP, weights


@dataclass(frozen=True, slots=True)
class Running:
    """Verdict on a row."""

    runs: Runs
    reason: str  # a sentence
    blockers: tuple[str, ...] = ()  # to be met before it runs

    @property
    def rank(self) -> int:
        """Place in the order of rows, 0 first: where a blocker was met by somebody, it is a condition."""
        if self.runs == "no":
            return 3
        if self.runs == "yes":
            return 0
        return 2 if self.blockers else int(self.runs == "?")

    @property
    def sentence(self) -> str:
        """The reason, and the blockers."""
        return f"{self.reason}{' Before it runs: ' * bool(self.blockers)}{'; '.join(self.blockers)}"


NOT_ASKED = Running("?", "")


def question_of(options: PlanOptions, buckets: Buckets, part: Instance, place: Place) -> Question:
    """Return what is asked about a place of `part`: stages and weights of 8 bits are features."""
    _, tp, pp, dtype = place
    features = (*("pipeline_parallelism",) * (pp > 1), *(dtype,) * (dtype != "bfloat16"), *options.features)
    release, stack = last_release(part.chip.name), options.stack_on(part).name
    return Question(options.model, part, tp, release, features, buckets.decode, stack)


def running_of(asked: Question, options: PlanOptions, tight_host: str) -> Running:
    """Return the verdict. `tight_host`: why the host may not load the weights, used where no report says more."""
    found, part = answer(asked), asked.instance
    graph = f"{part.chip.name} at TP {asked.tp}{''.join(f' with {name}' for name in asked.features)}"
    limits = [fact for fact in found.limits if not (fact.instances and options.save_sharded_checkpoint)]
    known_host = any(fact.instances for fact in limits)
    blockers = (*(fact.statement for fact in limits), *(tight_host,) * bool(tight_host and not known_host))
    if found.failures:
        return Running("no", f"A real accelerator is known not to run it: {found.failures[0]}.", blockers)
    if found.outcome == "known to run":
        return Running("yes", f"It is known to run on {part.name} at TP {asked.tp} (SDK {found.release}).", blockers)
    if elsewhere := _elsewhere(asked):
        reason = f"It is reported to run on {graph}, on {', '.join(elsewhere)}; no report is of {part.name}."
        return Running("likely", reason, blockers)
    return Running("?", f"It is not known to run: no report of the model on {graph} was found.", blockers)


def _elsewhere(asked: Question) -> tuple[str, ...]:
    """Return other instances of the chip on which the same graph is reported to run."""
    reports = [fact for fact in facts() if fact.kind == "runs" and fact.instances]
    others = ((fact.instances, replace(fact, instances=(asked.instance.name,))) for fact in reports)
    return tuple(dict.fromkeys(name for names, fact in others if fact.proves(asked) for name in names))


def verdict_on(options: PlanOptions, buckets: Buckets, part: Instance, place: Place) -> Verdict:
    """Return the facts about a place, with their sources."""
    return answer(question_of(options, buckets, part, place))
