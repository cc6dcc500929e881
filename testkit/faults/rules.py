"""Faults that a server injects into its answers on purpose, and which requests get one. Decides, and does no IO.

A rule is one fault and the requests that it is for. Its draws depend on the seed, its place and the number of the
request among those that it matches, so a run can be repeated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from random import Random
from typing import Annotated, Any, ClassVar, Literal

import msgspec

MAX_DELAY_S = 3600.0
P99_SIGMAS = 2.3263478740408408  # standard deviations between the median and the 99th percentile of a normal

Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_S)]
Tokens = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Asked = Mapping[str, Any]
Drawn = tuple[int, int]  # a rule's place, and the number of the request among those that it matches
BY_HEADER = -1  # the place of what a request asks for itself


class Latency(msgspec.Struct, frozen=True):
    """A lognormal latency by the two figures it is known by, in seconds; without a `p99` it is always the median."""

    median: Seconds
    p99: Seconds | None = None

    def draw(self, random: Random) -> float:
        """One latency, in seconds."""
        if self.p99 is None or self.median == 0:
            return self.median
        sigma = math.log(max(1.0, self.p99 / self.median)) / P99_SIGMAS
        return min(MAX_DELAY_S, random.lognormvariate(math.log(self.median), sigma))


class Match(msgspec.Struct, frozen=True):
    """Which requests a rule is for. Texts are patterns with * and ?; what is not given matches everything."""

    path: str = "/v1/*"
    model: str | None = None
    user: str | None = None
    api_key: str | None = None  # as Bearer token or x-api-key
    header: dict[str, str] = {}
    stream: bool | None = None

    def accepts(self, path: str, headers: Mapping[str, str], body: Asked) -> bool:
        """Whether a request is meant. `headers` have lower-case names; `body` is {} where it is no JSON object."""
        found = [(self.path, path), (self.model, body.get("model")), (self.user, body.get("user"))]
        found += [(self.api_key, key_of(headers))]
        found += [(pattern, headers.get(name.lower())) for name, pattern in self.header.items()]
        is_stream = body.get("stream") is True
        return self.stream in {None, is_stream} and all(
            pattern is None or (isinstance(value, str) and fnmatchcase(value, pattern)) for pattern, value in found
        )


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, and when. Without `probability`, `every` and `times` each request that matches gets it."""

    kind: ClassVar[str]
    of_streams: ClassVar[bool | None] = None  # only of streams, only of whole answers, or of either

    match: Match = Match()
    probability: Share = 1.0
    every: Count = 1  # the n-th, 2n-th, ... request that matches
    times: Count | None = None  # at most; the requests that follow are answered
    name: str | None = None  # in metrics and the log

    def accepts(self, path: str, headers: Mapping[str, str], body: Asked) -> bool:
        """Whether the request matches, and its answer has the form that the fault is one of."""
        is_stream = body.get("stream") is True
        return self.of_streams in {None, is_stream} and self.match.accepts(path, headers, body)


class RateLimit(Rule, frozen=True, kw_only=True):
    """429 with Retry-After in seconds."""

    kind = "rate_limit"
    retry_after: Annotated[int, msgspec.Meta(ge=0, le=86400)] = 1


class ServerError(Rule, frozen=True, kw_only=True):
    """An error of the server."""

    kind = "server_error"
    status: Annotated[int, msgspec.Meta(ge=500, le=599)] = 500


class Unavailable(Rule, frozen=True, kw_only=True):
    """503 with Retry-After in seconds."""

    kind = "unavailable"
    retry_after: Annotated[int, msgspec.Meta(ge=0, le=86400)] = 1


class Reset(Rule, frozen=True, kw_only=True):
    """The connection is reset (RST) in place of an answer."""

    kind = "reset"


class Slow(Rule, frozen=True, kw_only=True):
    """The first token, or a whole answer, comes later by `first_token`, each further token by `token` (seconds)."""

    kind = "slow"
    first_token: Seconds | Latency = 0.0
    token: Seconds | Latency = 0.0


class Cut(Rule, frozen=True, kw_only=True):
    """A stream ends in the middle: well, without its last events; by a closed connection; or by one that is reset."""

    kind = "cut"
    of_streams = True
    after_tokens: Tokens = 1
    how: Literal["end", "close", "reset"] = "close"


class MalformedChunk(Rule, frozen=True, kw_only=True):
    """One event of a stream is no JSON; the stream goes on behind it."""

    kind = "malformed_chunk"
    of_streams = True
    after_tokens: Tokens = 1


class ErrorEvent(Rule, frozen=True, kw_only=True):
    """A stream ends by an error in the dialect's form, under the status 200 that it began with."""

    kind = "error_event"
    of_streams = True
    after_tokens: Tokens = 1


class TruncatedJson(Rule, frozen=True, kw_only=True):
    """A whole answer is cut to a share of its bytes, with a Content-Length that fits."""

    kind = "truncated_json"
    of_streams = False
    keep: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.5


KINDS: dict[str, type[Rule]] = {
    rule.kind: rule
    for rule in (
        *(RateLimit, ServerError, Unavailable, Reset, Slow),
        *(Cut, MalformedChunk, ErrorEvent, TruncatedJson),
    )
}


class FaultConfig(msgspec.Struct, frozen=True):
    """What is injected: by rules, and by a header of requests where that is allowed."""

    rules: tuple[Rule, ...] = ()
    seed: int = 0
    is_header_allowed: bool = False

    def as_json(self) -> dict[str, Any]:
        """What may be shown to everybody: no pattern, since that may be of a key."""
        kinds = [rule.kind for rule in self.rules]
        return {"seed": self.seed, "rules": kinds, "allow_fault_header": self.is_header_allowed}


class Injection(msgspec.Struct, frozen=True):
    """A fault that one request gets."""

    rule: Rule
    label: str  # of the rule
    number: int  # of the request among those that the rule matches, from 1
    random: Random


class Injections:
    """The choice for one request after the other. It depends on their numbers alone, which are counted once."""

    def __init__(self, rules: Sequence[Rule], seed: int) -> None:
        self._rules, self._seed = rules, seed
        self._seen: Counter[int] = Counter()
        self._given: Counter[int] = Counter()

    def accepting(self, path: str, headers: Mapping[str, str], body: Asked) -> list[int]:
        """The places of the rules that match a request."""
        return [place for place, rule in enumerate(self._rules) if rule.accepts(path, headers, body)]

    def draw(self, places: Sequence[int]) -> Drawn | None:
        """The first of these rules whose turn it is, and the number of the request; each of them counts it.

        In the place of a header each request has its turn.
        """
        chosen: Drawn | None = None
        for place in places:
            self._seen[place] += 1
            number = self._seen[place]
            if chosen is None and (place == BY_HEADER or self._has_turn(place, number)):
                chosen = place, number
        if chosen is not None:
            self._given[chosen[0]] += 1
        return chosen

    def injection(self, place: int, number: int) -> Injection:
        """What the rule in a place does to its request of that number."""
        random = self._random(place, number)
        random.random()  # by which it was drawn
        rule = self._rules[place]
        return Injection(rule, rule.name or str(place + 1), number, random)

    def _has_turn(self, place: int, number: int) -> bool:
        rule = self._rules[place]
        is_drawn = self._random(place, number).random() < rule.probability and number % rule.every == 0
        return is_drawn and (rule.times is None or self._given[place] < rule.times)

    def _random(self, place: int, number: int) -> Random:
        return Random(f"{self._seed}:{place}:{number}")


def key_of(headers: Mapping[str, str]) -> str | None:
    """The API key of a request, as OpenAI's or as Anthropic's clients send it."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")
