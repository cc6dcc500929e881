"""How long a request that comes now will wait, from what steps took and what is ahead of it. Pure: asks no clock.

Two things hold a request back: places in the batch, which are given back as sequences end (lengths.py), and the tokens
of prompts that are computed before its own. The steps until both are done, at the time that steps take by the tokens
in them, are its delay: the more of the two where prompts share steps with decodes, their sum where they do not.

Lengths are drawn, hosts are busy. Whoever promises a limit asks for `most_s`, which nearly all of the latest requests
kept (margins.py). Others may come who are served before: inflow.py says how many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import ceil

from neuronserve.server.scheduler.batching import POLICIES, BatchingPolicy
from neuronserve.server.scheduler.inflow import Inflow
from neuronserve.server.scheduler.lengths import FIRST_LENGTH, Ends, Lengths, Running
from neuronserve.server.scheduler.margins import Margins
from neuronserve.server.scheduler.turns import Turns
from neuronserve.server.types import Request, StepReport

NUM_STEPS_KEPT = 32  # of each kind: what came before weighs less and less
NUM_ENDS_KEPT = 64
NUM_ENDS_TAUGHT = 8  # ends from which the length of sequences is known
# Before there was any: seconds of a step and of each token in it. Rather too many: who floods a server that has just
# started is refused for a second, and none waits for half a minute.
FIRST_STEP = 0.1, 0.0005


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What a request that comes now finds at an engine: ahead of it are those served before it (turns.py)."""

    ends: Ends  # of those that run, or get free places
    num_running: int
    num_free_places: int  # of the batch
    num_ahead: int = 0  # sequences that wait for a place, and get one before it
    num_tokens_ahead: int = 0  # that they and those that run have to compute before their first tokens
    num_prompts_ahead: int = 0  # of which these are
    share_before: float = 0.0  # of the engine's time: what those take who come later and are served before it

    def behind(self, num_sequences: int, num_tokens: int) -> EngineLoad:
        """With so many sequences more ahead, which share a prompt of so many tokens."""
        return replace(
            self,
            num_ahead=self.num_ahead + num_sequences,
            num_tokens_ahead=self.num_tokens_ahead + num_tokens,
            num_prompts_ahead=self.num_prompts_ahead + 1,
        )

    @property
    def num_places(self) -> int:
        """That have to be given back before the request has one."""
        return max(0, self.num_ahead + 1 - self.num_free_places)


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
    what a prompt costs. Where `mixes_phases`, both are on one line; else prompts have graphs, and a line, of their own.
    """

    def __init__(self, mixes_phases: bool = True) -> None:
        self._with_prompts, self._without = _Moments(), _Moments()
        self._mixes_phases = mixes_phases

    def add(self, num_tokens: int, seconds: float, has_prompts: bool) -> None:
        """Note a step."""
        (self._with_prompts if has_prompts else self._without).add(num_tokens, seconds)

    def line(self, has_prompts: bool) -> tuple[float, float]:
        """Seconds of a step, and of each token in it; both at least 0."""
        own = self._with_prompts if has_prompts else self._without
        sums = self._with_prompts + self._without if self._mixes_phases or not own.count else own
        if not sums.count:
            return FIRST_STEP
        mean_x, mean_y = sums.x / sums.count, sums.y / sums.count
        variance = sums.xx / sums.count - mean_x**2
        slope = 0.0 if variance < 1e-6 * mean_x**2 else (sums.xy / sums.count - mean_x * mean_y) / variance
        slope = min(max(0.0, slope), mean_y / mean_x)
        return max(0.0, mean_y - slope * mean_x), slope  # rounding may leave it below


class Forecast:
    """Of one engine: fed with its reports, asked with its load."""

    def __init__(self, max_num_batched_tokens: int, policy: BatchingPolicy = POLICIES["continuous"]) -> None:
        self._budget, self._policy = max_num_batched_tokens, policy
        self._steps = StepTimes(policy.mixes_phases)
        self._last: StepReport | None = None
        self.turns = Turns()
        self.inflow = Inflow()
        self._margins = Margins()
        self.lengths = Lengths()
        self._ends: Ends | None = None  # since the last turn
        self._num_generated, self._num_ended = FIRST_LENGTH, 1.0

    @property
    def tokens_per_sequence(self) -> float:
        """That sequences generate before they end: tokens over ends, so that those under way count too."""
        return self._num_generated / self._num_ended

    @property
    def knows_lengths(self) -> bool:
        """Whether enough sequences have ended to say how long they are."""
        return self._num_ended >= NUM_ENDS_TAUGHT

    def expect(self, request: Request, first_token_s: float) -> None:
        """Note a request that was taken and has to wait, with what was foreseen for it."""
        if self.knows_lengths:
            self._margins.expect(request.request_id, request.priority, request.arrival_time, first_token_s)

    def record(self, report: StepReport, num_generated: int, num_ended: int, firsts: Collection[str] = ()) -> None:
        """Note a turn of the engine: what it reported, the tokens that it generated and the sequences that ended.

        `firsts` are ids of those whose first tokens are among them.
        """
        last, self._last, self._ends = self._last, report, None
        if last is not None and report.step_id <= last.step_id:  # another engine, after a pause that nobody foresaw
            self.turns.reset()
            self._margins.forget_expected()
        self.turns.record(report.served)
        for request_id in firsts:
            self._margins.judge(request_id, report.time)
        if report.num_tokens:
            is_next = (
                last is not None and last.step_id + 1 == report.step_id and last.num_running + last.num_waiting > 0
            )
            begin = last.time if last is not None and is_next else report.start_time
            self._steps.add(report.num_tokens, max(0.0, report.time - begin), report.num_prefill_tokens > 0)
        keep = (1 - 1 / NUM_ENDS_KEPT) ** num_ended
        self._num_generated = keep * self._num_generated + num_generated
        self._num_ended = keep * self._num_ended + num_ended

    def ends(self, running: Iterable[Running]) -> Ends:
        """Those of the sequences that run since the last turn; who are looked at once."""
        if self._ends is None:
            self._ends = self.lengths.ends(running, self.tokens_per_sequence)
        return self._ends

    def service_s(self, load: EngineLoad, num_sequences: int, num_prompt_tokens: int) -> float:
        """Seconds of the engine that so many sequences take which share a prompt."""
        alone = replace(load, share_before=0.0)
        return self.mean_delay_s(alone.behind(num_sequences, num_prompt_tokens)) - self.mean_delay_s(alone)

    def mean_delay_s(self, load: EngineLoad) -> float:
        """Seconds until a request is placed if sequences have as many tokens as on average, and end in turns."""
        alone, num_running = replace(load, share_before=0.0), max(1, load.num_running + load.num_free_places)
        num_decodes = load.num_places * self.tokens_per_sequence / num_running
        return self._seconds(alone, 0, num_decodes) / (1 - load.share_before)

    def delay_s(self, load: EngineLoad) -> float:
        """Seconds until a request is placed; 0 when it is in the next step."""
        return self.first_token_s(load, 0)

    def first_token_s(self, load: EngineLoad, num_prompt_tokens: int) -> float:
        """Seconds until a request with such a prompt has its first token."""
        num_places = load.num_places / (1 - load.share_before)  # of which those who come later have some first
        return self._seconds(load, num_prompt_tokens, load.ends.steps_until(num_places))

    def most_s(self, request: Request, foreseen_s: float) -> float:
        """Seconds that nearly all of the latest requests like it took at most for which so many were foreseen."""
        return self._margins.most_s(request.priority, foreseen_s)

    def _seconds(self, load: EngineLoad, num_prompt_tokens: int, num_decodes: float) -> float:
        """Seconds of so many steps of sequences that run, and of the steps that compute what is ahead and a prompt."""
        num_tokens = load.num_tokens_ahead * self._computed_share / (1 - load.share_before) + num_prompt_tokens
        num_running = load.num_running + load.num_free_places if load.num_places else load.num_running
        if self._policy.mixes_phases:
            step_s, token_s = self._steps.line(has_prompts=True)
            num_steps = max(num_decodes, ceil(num_tokens / max(1, self._budget - num_running)))
            return step_s * num_steps + token_s * (num_tokens + num_steps * num_running)
        num_prompts = load.num_prompts_ahead / (1 - load.share_before) + (num_prompt_tokens > 0)
        num_steps = max(ceil(num_tokens / self._budget), num_prompts // (self._policy.max_prompts or num_prompts or 1))
        decode_s, decode_token_s = self._steps.line(has_prompts=False)
        prompt_s, prompt_token_s = self._steps.line(has_prompts=True)
        decodes_s = num_decodes * (decode_s + decode_token_s * num_running)
        return decodes_s + num_steps * prompt_s + num_tokens * prompt_token_s

    @property
    def _computed_share(self) -> float:
        """Of prompts' tokens: the rest comes from the prefix cache."""
        last = self._last
        return 1.0 if last is None or not last.prefix_queries else 1 - last.prefix_hits / last.prefix_queries
