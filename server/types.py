"""The records that cross floors, in the order a request meets them.

Request -> StepPlan -> StepResult -> TokenEvent. All are frozen; the mutable `Sequence` of the scheduler is not here
because it never leaves it. Those made in each step are named tuples, which are a quarter of the work to make, and a
tenth to make again with another value. Times are seconds of the host's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Literal, NamedTuple

from neuronserve.server.clock import NS

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence is sampled. Built by the API after validation; every value is in range here."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 = all
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    eos_token_ids: tuple[int, ...] = ()  # the model's own end tokens
    stop_token_ids: tuple[int, ...] = ()  # the request's extra ones
    ignore_eos: bool = False
    seed: int = 0  # always set: the API draws one when the client gives none
    logprobs: int | None = None  # None = not wanted; k = the sampled token's and the k best
    prompt_logprobs: int | None = None  # the same of each token of the prompt but the first
    logprob_token_ids: tuple[int, ...] = ()  # with logprobs: these tokens and the sampled one, in place of the best
    grammar: str = ""  # what the output must follow, in llguidance's form (engine/grammar.py); "" = anything


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """What is made of a text that is encoded, not continued: a row of float32, pooled of the states of its tokens."""

    token_types: tuple[int, ...] = ()  # as TokenizedText has them
    is_raw: bool = False  # not normalized; of a classifier logits, not scores
    dimensions: int | None = None  # first values of an embedding to keep; None = all
    is_token_wise: bool = False  # the last states of all tokens instead, [tokens, hidden]
    group: str = ""  # texts of one HTTP request, which take turns with those of others


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate, or a text to encode. `n > 1` is n requests that share their prompt's cached blocks."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_time: float
    priority: int = 0  # lower runs first
    cache_salt: str = ""  # prefix-cache blocks are shared only under the same salt
    received_time: float | None = None  # of the HTTP request, before its body was read; None = was none
    lora: str = ""  # digest of the adapter to compute with, under which it shares prefix-cache blocks; "" = none
    generated_token_ids: tuple[int, ...] = ()  # by an engine that has ended; this one goes on after them
    pooling: PoolingParams | None = None  # None: it is continued
    tenant: str = ""  # who shares the engine fairly with others that wait; "" = nobody in particular
    due_time: float = inf  # from which on it is passed by nobody as long as it has no token: it was promised a limit


class TokenizedText(NamedTuple):
    """A text, or a pair of them, as an encoder reads it."""

    token_ids: tuple[int, ...]
    token_types: tuple[int, ...] = ()  # 0 for the first text and 1 for the second; () = all 0


class ScheduledSeq(NamedTuple):
    """What the runner computes for one sequence in one step."""

    request_id: str
    token_ids: tuple[int, ...]  # the tokens to compute now
    start: int  # position of the first of them (= num_computed_tokens)
    # Of each group of layers, read-only views; each covers start + len(token_ids) positions.
    block_tables: Sequence[Sequence[int]]
    needs_sample: bool  # the last of token_ids is the last known token
    sampling: SamplingParams
    history: Sequence[int]  # read-only view of all known tokens, prompt first
    num_prompt_tokens: int
    lora: str = ""  # digest of its adapter, "" = none
    pooling: PoolingParams | None = None  # None: it is continued

    @property
    def prompt_targets(self) -> range:
        """Positions of the prompt's tokens whose log-probabilities this step gives, each by the token before it.

        None once a token was generated: what is computed then is computed again.
        """
        if self.sampling.prompt_logprobs is None or len(self.history) > self.num_prompt_tokens:
            return range(0)
        return range(self.start + 1, min(self.start + len(self.token_ids) + 1, self.num_prompt_tokens))


class StepPlan(NamedTuple):
    """One step: what to compute, and who lost their place. Texts that are encoded have steps of their own."""

    step_id: int
    prefill: tuple[ScheduledSeq, ...]  # all others: inside the prompt, or recomputing what was generated
    decode: tuple[ScheduledSeq, ...]  # exactly one token each, past the prompt, and sampled
    preempted: tuple[str, ...] = ()
    admitted: tuple[str, ...] = ()  # placed for the first time; not those that come back after a preemption
    time: float = 0.0  # when this was decided
    received_time: float | None = None  # the earliest of `admitted`
    is_pooled: bool = False  # `prefill` are texts to encode, each whole
    follows: bool = False  # something waited when the step before ended, though nobody was running

    @property
    def seqs(self) -> tuple[ScheduledSeq, ...]:
        return self.prefill + self.decode

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.seqs)

    @property
    def is_empty(self) -> bool:
        return not (self.prefill or self.decode)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities at one position, from the raw logits (before temperature and penalties).

    Where a grammar rules, among the tokens it allows.
    """

    sampled: float  # of the token that is there: drawn, or the prompt's own
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    rank: int = 0  # that token's place among all, from 1; ties share the last of their places


class SampledToken(NamedTuple):
    """What the runner gives back for one sequence that needed a sample."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None  # the logits were not finite: this request ends, no other does


class DeviceStep(NamedTuple):
    """What one step takes on the modelled part, and what came before it. Whole nanoseconds, so that sums are exact."""

    prefill_ns: int
    decode_ns: int
    idle_ns: int  # before it, with nothing to do
    late_ns: int | None = None  # by which the host ended it after the part would have; None: steps are not paced
    lag_ns: int = 0  # paced: time lost before it, because the host was late
    num_prefill_padding: int = 0  # tokens computed for nobody, to fill a prompt's bucket
    num_decode_padding: int = 0  # idle slots of the decode
    flops: int = 0  # over all cores, padding included
    hbm_bytes: int = 0  # read and written in device memory, the same

    @property
    def busy_ns(self) -> int:
        return self.prefill_ns + self.decode_ns

    @property
    def is_late(self) -> bool:
        """Whether a paced step began or ended later than on the part."""
        return bool(self.late_ns or self.lag_ns)


class StepResult(NamedTuple):
    """The outcome of one plan, keyed by request id."""

    step_id: int
    sampled: dict[str, SampledToken]
    seconds: float  # host time the step took
    device: DeviceStep | None = None  # None: nothing is modelled
    rows: Mapping[str, bytes] = MappingProxyType({})  # float32, of texts whose states are all finite
    prompt_logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = MappingProxyType({})  # of `prompt_targets`, in order


class TokenEvent(NamedTuple):
    """One generated token, or the end of a request, on its way to the client.

    `token_id` is None where a request ends with no token of this step (abort, error).
    """

    request_id: str
    token_id: int | None
    index: int  # type: ignore[assignment]  # 0 for the first generated token; hides the method of tuples
    time: float
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop_token_id that ended it; None for the model's own end token
    num_cached_tokens: int = 0
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # with the first token: of the prompt's tokens after its first
    row: bytes | None = None  # float32, of a text that was encoded; with it the request ends


class Charge(NamedTuple):
    """What one request has taken of the modelled part, all steps so far."""

    device_ns: int = 0
    is_extrapolated: bool = False  # no measurement stands behind some of device_ns


@dataclass(frozen=True, slots=True)
class ServedTokens:
    """What decides whose turn it is (scheduler/fair_queue.py), where there are several tenants."""

    counts: dict[str, int]  # of tenants for whom something was computed since the last report
    least: int  # that a tenant who begins to wait is lifted to


class StepReport(NamedTuple):
    """What an observer may know of one step."""

    step_id: int
    start_time: float  # when it was scheduled
    time: float  # when its results were recorded
    num_running: int
    num_waiting: int
    num_prefill_tokens: int
    num_decode_tokens: int
    admitted: tuple[str, ...]  # ids placed for the first time
    preempted: tuple[str, ...]  # ids that lost their place
    num_free_blocks: int
    num_blocks: int
    prefix_queries: int  # prompt tokens looked up since start
    prefix_hits: int  # of those, found in the cache
    step_seconds: float
    device: DeviceStep | None = None  # None: nothing is modelled, or nothing was computed
    served: ServedTokens | None = None  # None: there is one tenant

    @property
    def device_seconds(self) -> float:
        """Of the modelled part."""
        return 0.0 if self.device is None else self.device.busy_ns / NS

    @property
    def num_tokens(self) -> int:
        return self.num_prefill_tokens + self.num_decode_tokens

    @property
    def num_preempted(self) -> int:
        return len(self.preempted)
