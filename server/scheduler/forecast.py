"""How long a request that comes now will wait, from what steps took and what is ahead of it. Pure: asks no clock.

Two things hold a request back: places in the batch, which are given back as sequences end, and the tokens of prompts
that are computed before its own. The steps until both are done, at the time that steps take by the tokens in them, are
its delay. So the delay of a request falls by a second a second while nobody else comes, and whoever is told to come
back after what is past the limit will find room.

A forecast is of the mean: lengths are drawn, hosts are busy, others may come who are served before. Whoever promises a
limit needs `margin_s`, by which nearly all of the latest requests were at most later than foreseen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from math import ceil

from server.scheduler.turns import Turns
from server.types import StepReport

NUM_STEPS_KEPT = 32  # of each kind: what came before weighs less and less
NUM_ENDS_KEPT = 64
NUM_ERRORS_KEPT = 128  # requests by which a forecast is judged
IN_TIME = 0.97  # share of them that `margin_s` would have kept in time
MAX_EXPECTED = 4096  # requests whose first tokens are waited for here; aborted ones are among them
FIRST_LENGTH = 16.0  # tokens that a sequence generates, before any has ended: OpenAI's default for completions


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What a request that comes now finds at an engine: ahead of it are those served before it (turns.py)."""

    num_running: int
    num_free_places: int  # of the batch
    num_ahead: int = 0  # sequences that wait for a place, and get one before it
    num_tokens_ahead: int = 0  # that they and those that run have to compute before their first tokens


@dataclass(slots=True)
class _Moments:
    """Sums over the steps of one kind, the older ones worth less: of 1, tokens, seconds, tokens^2, tokens x seconds."""

    count: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        keep = 1 - 1 / NUM_STEPS_KEPT
        self.count = keep * self.count + 1
        self.x = keep * self.x + num_tokens
        self.y = keep * self.y + seconds
        self.xx = keep * self.xx + num_tokens**2
        self.xy = keep * self.xy + num_tokens * seconds

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(
            self.count + other.count, self.x + other.x, self.y + other.y, self.xx + other.xx, self.xy + other.xy
        )


class StepTimes:
    """Seconds of a step as a fixed part and a part for each of its tokens, by least squares over the latest steps.

    Steps with prompts and those without are remembered apart, so that a long time without prompts does not forget
    what a prompt costs.
    """

    def __init__(self) -> None:
        self._with_prompts, self._without = _Moments(), _Moments()

    def add(self, num_tokens: int, seconds: float, has_prompts: bool) -> None:
        """Note a step."""
        (self._with_prompts if has_prompts else self._without).add(num_tokens, seconds)

    @property
    def line(self) -> tuple[float, float]:
        """Seconds of a step, and of each token in it; both at least 0, and 0 before the first step."""
        sums = self._with_prompts + self._without
        if not sums.count:
            return 0.0, 0.0
        mean_x, mean_y = sums.x / sums.count, sums.y / sums.count
        variance = sums.xx / sums.count - mean_x**2
        slope = 0.0 if variance < 1e-6 * mean_x**2 else (sums.xy / sums.count - mean_x * mean_y) / variance
        slope = min(max(0.0, slope), mean_y / mean_x)
        return max(0.0, mean_y - slope * mean_x), slope  # rounding may leave it below


class Forecast:
    """Of one engine: fed with its reports, asked with its load."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self._budget = max_num_batched_tokens
        self._steps = StepTimes()
        self._last: StepReport | None = None
        self.turns = Turns()
        self._expected: dict[str, tuple[float, float]] = {}  # when a request came, and the seconds foreseen for it
        self._errors: deque[float] = deque(maxlen=NUM_ERRORS_KEPT)  # seconds that it took beyond those
        self.margin_s = 0.0  # at least 0
        self._num_generated, self._num_ended = FIRST_LENGTH, 1.0

    @property
    def tokens_per_sequence(self) -> float:
        """That sequences generate before they end: tokens over ends, so that those under way count too."""
        return self._num_generated / self._num_ended

    def expect(self, request_id: str, now: float, first_token_s: float) -> None:
        """Note a request that was taken, with what was foreseen for it."""
        if first_token_s > 0:
            self._expected[request_id] = now, first_token_s
            if len(self._expected) > MAX_EXPECTED:
                del self._expected[next(iter(self._expected))]

    def record(self, report: StepReport, num_generated: int, num_ended: int, firsts: Collection[str] = ()) -> None:
        """Note a turn of the engine: what it reported, the tokens that it generated and the sequences that ended.

        `firsts` are ids of those whose first tokens are among them.
        """
        last, self._last = self._last, report
        if last is not None and report.step_id <= last.step_id:  # another engine, after a pause that nobody foresaw
            self.turns.reset()
            self._expected.clear()
        self.turns.record(report.served)
        self._judge(firsts, report.time)
        if report.num_tokens:
            is_next = (
                last is not None and last.step_id + 1 == report.step_id and last.num_running + last.num_waiting > 0
            )
            begin = last.time if last is not None and is_next else report.start_time
            self._steps.add(report.num_tokens, max(0.0, report.time - begin), report.num_prefill_tokens > 0)
        keep = (1 - 1 / NUM_ENDS_KEPT) ** num_ended
        self._num_generated = keep * self._num_generated + num_generated
        self._num_ended = keep * self._num_ended + num_ended

    def delay_s(self, load: EngineLoad) -> float:
        """Seconds until a request is placed; 0 when it is in the next step."""
        return self._seconds(load, 0)

    def first_token_s(self, load: EngineLoad, num_prompt_tokens: int) -> float:
        """Seconds until a request with such a prompt has its first token."""
        return self._seconds(load, num_prompt_tokens)

    def _judge(self, firsts: Collection[str], now: float) -> None:
        """Compare what was foreseen with what came."""
        expected = [self._expected.pop(request_id) for request_id in firsts if request_id in self._expected]
        if expected:
            self._errors += [now - came - first_token_s for came, first_token_s in expected]
            self.margin_s = max(0.0, sorted(self._errors)[int(len(self._errors) * IN_TIME)])

    def _seconds(self, load: EngineLoad, num_prompt_tokens: int) -> float:
        """Of the steps until there is a place, or until the tokens are computed, whichever are more."""
        num_tokens = load.num_tokens_ahead * self._computed_share + num_prompt_tokens
        num_places = max(0, load.num_ahead + 1 - load.num_free_places)
        num_steps = max(
            num_places * self.tokens_per_sequence / max(1, load.num_running),
            ceil(num_tokens / max(1, self._budget - load.num_running)),
        )
        step_s, token_s = self._steps.line
        return step_s * num_steps + token_s * (num_tokens + num_steps * load.num_running)

    @property
    def _computed_share(self) -> float:
        """Of prompts' tokens: the rest comes from the prefix cache."""
        last = self._last
        return 1.0 if last is None or not last.prefix_queries else 1 - last.prefix_hits / last.prefix_queries
