"""Measurements that contradict other rows of their table. Predictions are not judged here.

Steps: if two sources give times of one step that differ by a factor above 1.5, both cannot be predicted, and the table
does not say which is right. Both are compared separately (Llama-2-7B on TP2: 61 ms and 30 ms).

Load tests: some are faster than the table's own steps of the same graph. One published series (Llama-2-7B on TP12, more
than one user) gave a token in 17 ms on a graph whose step takes 32 ms by the same source, and more tokens a second than
that graph gives with all slots full. Others had another number of users than stated: by Little's law, requests a second
times the time of one is the number of open requests. Users beyond the slots wait for an answer to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from ...server.cost.terms import TERMS
from .load_generators import WINDOW_S
from .observation import Observation, Unusable, shape_of
from .published import PublishedRow

APART = 1.5  # factor between two times of one step, beyond which they contradict each other
USERS_APART = 1.25  # factor between stated users and the open requests of the row's own figures
STEADY_TURNS = 5  # answers of each user in a test, beyond which arrivals and departures balance (Little's law)
SAME_WORK = 1.1  # factor within which two amounts of work count as one step, by the terms' starting values
TOLERANCE = 0.8  # share of a step's time below which a token is faster than noise explains

_GRAPH = ("tp", "batch_size", "max_seq_len")


@dataclass(frozen=True, slots=True)
class _Step:
    """One source's times of one step."""

    indices: tuple[int, ...]
    source: str
    sdk: int
    seconds: float  # the median
    start_s: float  # by the terms' starting values

    def contradicts(self, other: _Step) -> bool:
        is_one = self.source != other.source and abs(self.sdk - other.sdk) <= 1
        is_same_work = _ratio(self.start_s, other.start_s) <= SAME_WORK
        return is_one and is_same_work and _ratio(self.seconds, other.seconds) > APART


def contradicted_steps(observations: Sequence[Observation]) -> frozenset[int]:
    """Return the indices of observations that contradict an observation of another source."""
    repeats: dict[tuple[object, ...], list[int]] = {}
    for index, o in enumerate(observations):
        repeats.setdefault((*o.setup, o.point), []).append(index)
    alike: dict[tuple[object, ...], list[_Step]] = {}
    for own in repeats.values():
        first = observations[own[0]]
        key = (first.point.phase, first.shape, first.point.chip, first.point.tp, first.point.batch)
        seconds = median(observations[i].seconds for i in own)
        alike.setdefault(key, []).append(_Step(tuple(own), first.source, first.sdk, seconds, _start_s(first)))
    pairs = (pair for steps in alike.values() for pair in combinations(steps, 2))
    return frozenset(i for one, other in pairs if one.contradicts(other) for i in (*one.indices, *other.indices))


def _ratio(one: float, other: float) -> float:
    return max(one / other, other / one)


def _start_s(observation: Observation) -> float:
    return sum(amount * TERMS[name].start for name, amount in observation.work.items())


def contradictions(rows: Sequence[PublishedRow]) -> dict[str, str]:
    """Return the ids of contradicted load tests with the reason."""
    static: dict[tuple[object, ...], list[PublishedRow]] = {}
    for row in rows:
        if row.label("arrival") == "static batch" and "optimum" in row.label("framework"):
            static.setdefault(_graph(row), []).append(row)
    found = {}
    for row in rows:
        if row.label("arrival") not in ("static batch", "single", ""):
            reason = _reason(row, static.get(_graph(row), [])) or _wrong_users(row)
            if reason:
                found[row.row_id] = reason
    return found


def _graph(row: PublishedRow) -> tuple[object, ...]:
    """Return a key of the compiled graph; unique if the row does not state its graph."""
    try:
        shape = shape_of(row)
    except Unusable:
        return (row.row_id,)
    sizes = tuple(row.counts.get(name) for name in _GRAPH)
    return (row.row_id,) if None in sizes else (shape, row.sdk, row.texts["weight_dtype"], *sizes)


def _reason(row: PublishedRow, same_graph: Sequence[PublishedRow]) -> str:
    steps_ms = [other.measures["tpot_ms"] for other in same_graph if "tpot_ms" in other.measures]
    rates = [other.measures["output_tok_s"] for other in same_graph if "output_tok_s" in other.measures]
    token_ms = row.measures.get("tpot_ms", 0.0)
    if token_ms and "incl" in row.label("tpot_stat"):
        token_ms -= row.measures.get("ttft_ms", 0.0) / row.counts.get("output_len", 1)
    if token_ms and steps_ms and token_ms < TOLERANCE * min(steps_ms):
        return f"{token_ms:.1f} ms a token where a step of this graph is published with {min(steps_ms):.1f} ms"
    per_engine = row.measures.get("output_tok_s", 0.0) / row.counts.get("dp", 1)
    if rates and per_engine > max(rates):
        return f"{per_engine:.0f} tokens/s where full static batches of this graph are published with {max(rates):.0f}"
    return ""


def _least_wait_s(row: PublishedRow, users: int, per_s: float) -> float:
    """Return the least mean TTFT if `users` send at once and one slot becomes free for each answer of the window."""
    slots = row.counts.get("batch_size", users) * row.counts.get("dp", 1)
    answers = per_s * WINDOW_S
    waiting = max(0.0, min(answers, users) - slots)
    return waiting**2 / (2 * per_s * answers)


def _wrong_users(row: PublishedRow) -> str:
    """Return why the stated users of a load test contradict its own figures; empty if they do not."""
    users, figures = row.counts.get("concurrency", 0), row.measures
    per_s, tokens_s = figures.get("req_per_s", 0.0), figures.get("output_tok_s", 0.0)
    is_closed = row.label("arrival") in ("throughput", "synchronous")
    if not (is_closed and users and per_s and tokens_s and "ttft_ms" in figures and "tpot_ms" in figures):
        return ""
    waits_s, wait_s = _least_wait_s(row, users, per_s), figures["ttft_ms"] / 1e3
    if waits_s > USERS_APART * wait_s:
        return f"a first token comes after {wait_s:.1f} s where {users} users wait {waits_s:.1f} s for their first slot"
    request_s = (figures["ttft_ms"] + figures["tpot_ms"] * (tokens_s / per_s - 1)) / 1e3
    if STEADY_TURNS * request_s > WINDOW_S or _ratio(per_s * request_s, users) <= USERS_APART:
        return ""
    return f"{per_s:.2f} requests/s of {request_s:.1f} s each are {per_s * request_s:.0f} users at a time, not {users}"
