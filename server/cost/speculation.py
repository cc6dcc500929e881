"""Seconds of the steps of speculative decoding: a target model that checks the tokens of a draft.

A step runs the draft, then the target once over the guesses and the token before them. Methods differ in the draft and
in how often it runs: one row of METHODS each. Sources: NeuronFusedSpecModel in models/model_base.py of
neuronx-distributed-inference at 4bcdc54b, vllm-neuron/docs/design/speculation of aws-neuron-sdk at 81ce03ae, and
examples/models/gpt_oss/peagle of nkipy at b91c9800. Published times with and without a draft give the band (pairs.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol

from ..models.sizes import DecoderSizes
from ..models.spec import ModelSpec
from .evidence import Band, Phase
from .model import CostModel, StepCost
from .pipeline import PipelineCost, PipelineModel

SpeculativeMethod = Literal["draft_model", "eagle3", "p_eagle", "ngram"]
SPECULATION_REASON = "speculative decoding is priced by formula, with the band of published pairs"
NUM_STATES = 3  # hidden states of the target that an EAGLE3 head reads
P_EAGLE_LAYERS = 4  # of the only published P-EAGLE head


class StepTimes(Protocol):
    """Times of a model on its cores, as a plan needs them."""

    def decode(self, batch: int, bucket: int) -> PipelineCost: ...
    def prefill(self, tokens: int, bucket: int) -> PipelineCost: ...
    def band(self, phase: Phase, batch: int, positions: int) -> Band: ...


@dataclass(frozen=True, slots=True)
class Method:
    """One way of guessing. `head_layers` is 0 if the draft is a model of its own, which has its own number."""

    head_layers: int
    is_parallel: bool = False  # all guesses come from one run
    fills_cache: bool = False  # one more run writes the last guess into the draft's cache
    is_lookup: bool = False  # guesses come from the text: nothing runs

    def runs(self, guesses: int) -> int:
        """Return how often the draft runs in a step."""
        return 0 if self.is_lookup else 1 if self.is_parallel else guesses + self.fills_cache

    def tokens_per_run(self, guesses: int) -> int:
        """Return the tokens of a slot that a run of the draft computes."""
        return guesses if self.is_parallel else 1


METHODS: dict[SpeculativeMethod, Method] = {
    "draft_model": Method(0, fills_cache=True),
    "eagle3": Method(1),
    "p_eagle": Method(P_EAGLE_LAYERS, is_parallel=True),
    "ngram": Method(0, is_lookup=True),
}


def head_of(target: ModelSpec, method: Method) -> ModelSpec:
    """Return a decoder with as many weights as the method's head for `target`: its sizes, and its vocabulary.

    The first layer reads embedding and state side by side, so its projections of query, key and value have twice the
    input; a matrix [3 hidden, hidden] joins the target's states. Both are counted as width of the network, of which one
    element has 3 hidden weights. Published heads have smaller vocabularies.
    """
    heads = target.num_heads + 2 * target.num_kv_heads
    joined = (target.hidden_size * NUM_STATES + heads * target.head_dim) // 3
    return DecoderSizes(
        method.head_layers,
        target.hidden_size,
        target.widest_intermediate + joined // method.head_layers,
        target.num_heads,
        target.num_kv_heads,
        target.head_dim,
        target.vocab_size,
    ).spec("EAGLE head", target.max_position)


@dataclass(frozen=True, slots=True)
class Speculation:
    """Guesses of a draft: `num_tokens` a step. A guess after right ones is right with `acceptance_rate`."""

    num_tokens: int
    acceptance_rate: float  # 0 to 1
    name: SpeculativeMethod = "draft_model"

    @property
    def method(self) -> Method:
        return METHODS[self.name]

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of a slot in a step: the guesses before the first wrong one, and the target's own next token.

        (1 - a^(k + 1)) / (1 - a), Leviathan et al. 2023 (arXiv 2211.17192, equation 1).
        """
        return sum(self.acceptance_rate**right for right in range(self.num_tokens + 1))


class SpeculativeModel:
    """Times of target and draft together.

    The target's runtime has one token more per slot than there are guesses, the draft's has `Method.tokens_per_run`.
    `runs` is `Method.runs`. `widened` returns the band of a step of both from the target's own.
    """

    def __init__(
        self, target: PipelineModel, draft: PipelineModel | None, runs: int, widened: Callable[[Band, Phase], Band]
    ) -> None:
        self._target, self._draft, self._runs, self._widened = target, draft, runs, widened
        self._coefficients = target.stages[0].calibration.coefficients

    def decode(self, batch: int, bucket: int) -> PipelineCost:
        """Return the cost of the draft's runs, one after the other, and of the check, in one call."""
        run_s = 0.0 if self._draft is None else self._draft.decode(batch, bucket).elapsed_s
        return _longer(self._target.decode(batch, bucket), self._runs * run_s)

    def prefill(self, tokens: int, bucket: int) -> PipelineCost:
        """Return the cost of the prompt through both models in one call; the draft needs its cache too."""
        if self._draft is None:
            return self._target.prefill(tokens, bucket)
        both = self._draft.prefill(tokens, bucket).elapsed_s - self._coefficients["prefill_call"]
        return _longer(self._target.prefill(tokens, bucket), both)

    def band(self, phase: Phase, batch: int, positions: int) -> Band:
        """Return the band of the target's step, widened by the errors of published pairs."""
        return self._widened(self._target.band(phase, batch, positions), phase)


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """Costs of a draft model beside its target's graphs, as in `SpeculativeModel`. A step runs it `runs` times."""

    draft: CostModel
    runs: int

    def decode(self, cost: StepCost, slots: int, bucket: int) -> StepCost:
        """Return the cost of the draft's runs, one after the other, and of the check, in one call."""
        return _sum(cost, self.draft.decode(slots, bucket), self.runs)

    def prefill(self, cost: StepCost, bucket: int, behind: int) -> StepCost:
        """Return the cost of a prompt, or a part of it, through both models in one call."""
        total = _sum(cost, self.draft.prefill(bucket, bucket, behind), 1)
        call_s = self.draft.calibration.coefficients["prefill_call"]
        return replace(total, overhead_s=total.overhead_s - call_s, elapsed_s=total.elapsed_s - call_s)


def _sum(cost: StepCost, draft: StepCost, runs: int) -> StepCost:
    names = [field.name for field in fields(cost) if field.name != "extrapolated"]
    return replace(cost, **{name: getattr(cost, name) + runs * getattr(draft, name) for name in names})


def _longer(cost: PipelineCost, seconds: float) -> PipelineCost:
    reasons = "; ".join(filter(None, (cost.extrapolated, SPECULATION_REASON)))
    return replace(cost, elapsed_s=cost.elapsed_s + seconds, interval_s=cost.interval_s + seconds, extrapolated=reasons)
