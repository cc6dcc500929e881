"""Rules of what a server does to its answers on purpose, and the choice of requests. No IO here.

A rule is one fault or one written answer, and a pattern of requests. Its draws depend on the seed, its index and the
number of the request among its matches, so a run can be repeated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from random import Random
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from ...server.api.http.scripted import Scripted

MAX_DELAY_S = 3600.0
P99_SIGMAS = 2.3263478740408408  # standard deviations between the median and the 99th percentile of a normal

Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_S)]
Tokens = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Body = Mapping[str, Any]
Script = Callable[[dict[str, Any]], Any]  # the body of a request -> its answer as in a rule, or None
Drawn = tuple[int, int]  # a rule's index, and the number of the request among its matches
BY_HEADER = -1  # index of the fault of a request's own header


class Latency(msgspec.Struct, frozen=True):
    """A lognormal latency by its median and 99th percentile, in seconds; without `p99` it is always the median."""

    median: Seconds
    p99: Seconds | None = None

    def draw(self, random: Random) -> float:
        """Draw one latency, in seconds."""
        if self.p99 is None or self.median == 0:
            return self.median
        sigma = math.log(max(1.0, self.p99 / self.median)) / P99_SIGMAS
        return min(MAX_DELAY_S, random.lognormvariate(math.log(self.median), sigma))


class Match(msgspec.Struct, frozen=True):
    """Pattern of requests. Texts may have * and ?; a field that is not given matches everything."""

    path: str = "/v1/*"
    model: str | None = None
    user: str | None = None
    api_key: str | None = None  # as Bearer token or x-api-key
    header: dict[str, str] = {}
    stream: bool | None = None
    message: str | None = None  # the user's last text, or a prompt
    tool: str | None = None  # a tool that the request offers
    turn: Count | None = None  # number of messages of the user

    def accepts(self, path: str, headers: Mapping[str, str], body: Body) -> bool:
        """Return whether a request matches. Names in `headers` are lower-case; `body` is {} unless a JSON object."""
        found = [(self.path, path), (self.model, body.get("model")), (self.user, body.get("user"))]
        found += [(self.api_key, key_of(headers))]
        found += [(pattern, headers.get(name.lower())) for name, pattern in self.header.items()]
        if self.message is not None or self.turn is not None:
            texts = user_texts(body)
            found.append((self.message, texts[-1] if texts else None))
            if self.turn not in {None, len(texts)}:
                return False
        if self.tool is not None and not any(fnmatchcase(name, self.tool) for name in tool_names(body)):
            return False
        is_stream = body.get("stream") is True
        return self.stream in {None, is_stream} and all(
            pattern is None or (isinstance(value, str) and fnmatchcase(value, pattern)) for pattern, value in found
        )


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One fault and its requests. Without `probability`, `every` and `times` each matching request gets it."""

    kind: ClassVar[str]
    of_streams: ClassVar[bool | None] = None  # True: only streams; False: only whole answers; None: both

    match: Match = Match()
    probability: Share = 1.0
    every: Count = 1  # the n-th, 2n-th, ... matching request
    times: Count | None = None  # largest number of injections; later requests are answered
    name: str | None = None  # in metrics and the log

    def accepts(self, path: str, headers: Mapping[str, str], body: Body) -> bool:
        """Return whether the request matches, and the fault applies to the form of its answer."""
        is_stream = body.get("stream") is True
        return self.of_streams in {None, is_stream} and self.match.accepts(path, headers, body)


class RateLimit(Rule, frozen=True, kw_only=True):
    """429 with Retry-After in seconds."""

    kind = "rate_limit"
    retry_after: Annotated[int, msgspec.Meta(ge=0, le=86400)] = 1


class ServerError(Rule, frozen=True, kw_only=True):
    """A server error in place of an answer."""

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
    """The first token, or a whole answer, is delayed by `first_token`, each further token by `token` (seconds)."""

    kind = "slow"
    first_token: Seconds | Latency = 0.0
    token: Seconds | Latency = 0.0


class Cut(Rule, frozen=True, kw_only=True):
    """A stream ends early: properly without its last events, by a closed connection, or by a reset one."""

    kind = "cut"
    of_streams = True
    after_tokens: Tokens = 1
    how: Literal["end", "close", "reset"] = "close"


class MalformedChunk(Rule, frozen=True, kw_only=True):
    """One event of a stream is invalid JSON; the stream continues."""

    kind = "malformed_chunk"
    of_streams = True
    after_tokens: Tokens = 1


class ErrorEvent(Rule, frozen=True, kw_only=True):
    """A stream with status 200 ends with an error in the dialect's form."""

    kind = "error_event"
    of_streams = True
    after_tokens: Tokens = 1


class TruncatedJson(Rule, frozen=True, kw_only=True):
    """A whole answer is cut to a share of its bytes, with a matching Content-Length."""

    kind = "truncated_json"
    of_streams = False
    keep: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.5


class Answer(Rule, frozen=True, kw_only=True):
    """An output in place of the model's own."""

    kind = "answer"
    output: Scripted


KINDS: dict[str, type[Rule]] = {
    rule.kind: rule
    for rule in (
        *(RateLimit, ServerError, Unavailable, Reset, Slow),
        *(Cut, MalformedChunk, ErrorEvent, TruncatedJson),
    )
}


class FaultConfig(msgspec.Struct, frozen=True):
    """Rules of faults, and whether requests may ask for faults by a header."""

    rules: tuple[Rule, ...] = ()
    seed: int = 0
    is_header_allowed: bool = False
    answers: tuple[Answer, ...] = ()
    script: Script | None = None  # for requests that no rule has an answer for
    is_script_allowed: bool = False  # over HTTP, by operators

    def as_json(self) -> dict[str, Any]:
        """Return the public fields. Patterns are left out, as they may contain a key."""
        kinds = [rule.kind for rule in self.rules]
        return {"seed": self.seed, "rules": kinds, "allow_fault_header": self.is_header_allowed}


class Injection(msgspec.Struct, frozen=True):
    """A fault for one request."""

    rule: Rule
    label: str  # of the rule
    number: int  # of the request among the rule's matches, from 1
    random: Random


class Injections:
    """Choice of faults for requests. It depends only on the numbers of the requests, which are counted here."""

    def __init__(self, rules: Sequence[Rule], seed: int) -> None:
        self._rules, self._seed = rules, seed
        self._seen: Counter[int] = Counter()
        self._given: Counter[int] = Counter()

    def accepting(self, path: str, headers: Mapping[str, str], body: Body) -> list[int]:
        """Return the indices of the rules that match a request."""
        return [place for place, rule in enumerate(self._rules) if rule.accepts(path, headers, body)]

    def draw(self, places: Sequence[int]) -> Drawn | None:
        """Return the first of these rules that applies, and the number of the request. Each of them counts the request.

        A fault by header always applies.
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

    def drawn(self, path: str, headers: Mapping[str, str], body: Body) -> Injection | None:
        """Return the injection of the first rule that applies to a request, if any."""
        drawn = self.draw(self.accepting(path, headers, body))
        return None if drawn is None else self.injection(*drawn)

    def injection(self, place: int, number: int) -> Injection:
        """Return the injection of rule `place` into its request `number`."""
        random = self._random(place, number)
        random.random()  # `_has_turn` used the first value
        rule = self._rules[place]
        return Injection(rule, rule.name or str(place + 1), number, random)

    def _has_turn(self, place: int, number: int) -> bool:
        rule = self._rules[place]
        is_drawn = self._random(place, number).random() < rule.probability and number % rule.every == 0
        return is_drawn and (rule.times is None or self._given[place] < rule.times)

    def _random(self, place: int, number: int) -> Random:
        return Random(f"{self._seed}:{place}:{number}")


def user_texts(body: Body) -> list[str]:
    """Return the user's texts in a request of any dialect; those of a prompt, if it has no messages."""
    given = body.get("messages", body.get("input", body.get("prompt")))
    if isinstance(given, str):
        return [given]
    turns = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    return [text_of(each.get("content")) for each in turns if each.get("role") == "user"]


def text_of(content: Any) -> str:
    """Return the text of a message's content: a text, or parts of which some have one."""
    if isinstance(content, str):
        return content
    parts = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    return "".join(text for each in parts if isinstance(text := each.get("text"), str))


def tool_names(body: Body) -> list[str]:
    """Return the names of the tools that a request offers."""
    tools = body.get("tools")
    found = [each for each in tools if isinstance(each, dict)] if isinstance(tools, list) else []
    described = [each["function"] if isinstance(each.get("function"), dict) else each for each in found]
    return [name for each in described if isinstance(name := each.get("name"), str)]


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the API key of a request, as OpenAI's or Anthropic's clients send it."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")
