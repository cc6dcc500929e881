"""Prices steps in whole nanoseconds, as a compiled Neuron deployment runs them: graph by graph.

Prefill and decode are different graphs and never share a charge. The prompts of a step run one after another, each
padded to its bucket; then one decode of all compiled slots runs over the bucket of the longest context. The server's
engine and the simulator both use this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from ..clock import NS
from ..config.formats import StackName
from ..device.buckets import smallest
from ..types import StepPlan
from .bucket_edges import PromptGraphs
from .calibration import Calibration
from .links import HandOver
from .model import CostModel, StepCost
from .speculation import SPECULATION_REASON, DraftCosts
from .stacks import HostWork, Stack

LOGITS_REASON = "logits of every position of a prompt are priced by formula alone"
PREFIX_REASON = "prefill behind a cached or earlier part of the prompt is priced by formula alone"


class GraphRun(NamedTuple):
    """One launch of a compiled graph: the prefill of one prompt, or the decode of all slots. A copy has bucket 0."""

    ns: int
    bucket: int  # positions
    num_tokens: int  # requested
    num_padding: int  # computed only to fill the graph
    cost: StepCost


def prefill_ids(plan: StepPlan) -> tuple[str, ...]:
    """Return the ids of the requests of passes, copies and prompts, in the order in which they are charged."""
    copies, prompts = [each[0] for each in plan.received], [each.request_id for each in plan.prefill]
    return (*[each.request_id for each in plan.encodings], *copies, *prompts)


class StepCharge(NamedTuple):
    """Device time of one step plan."""

    prefills: tuple[GraphRun, ...]  # of `prefill_ids`, in the order in which they run
    decode: GraphRun | None  # of all of plan.decode together, after the prefills

    @property
    def runs(self) -> tuple[GraphRun, ...]:
        """All graphs, in the order in which they run."""
        return self.prefills if self.decode is None else (*self.prefills, self.decode)

    @property
    def prefill_ns(self) -> int:
        return sum(run.ns for run in self.prefills)

    @property
    def decode_ns(self) -> int:
        return 0 if self.decode is None else self.decode.ns

    @property
    def ns(self) -> int:
        return self.prefill_ns + self.decode_ns

    @property
    def shares_ns(self) -> tuple[int, ...]:
        """Nanoseconds of each of `prefill_ids` and plan.decode; their sum is `ns`.

        A prompt is charged its own graph. A decode is split evenly, padding included, because the graph does the same
        work for every slot at any context; the first sequences take the remaining nanoseconds.
        """
        prefills = tuple(run.ns for run in self.prefills)
        if self.decode is None:
            return prefills
        each, rest = divmod(self.decode.ns, self.decode.num_tokens)
        return prefills + (each + 1,) * rest + (each,) * (self.decode.num_tokens - rest)

    def extrapolated_ids(self, plan: StepPlan) -> frozenset[str]:
        """Return the ids of this `plan`'s requests whose share no measurement supports."""
        prompts = zip(prefill_ids(plan), self.prefills, strict=True)
        ids = [request_id for request_id, run in prompts if run.cost.is_extrapolated]
        if self.decode is not None and self.decode.cost.is_extrapolated:
            ids += [seq.request_id for seq in plan.decode]
        return frozenset(ids)


@dataclass(frozen=True, slots=True)
class HostOfSteps:
    """Host time that a stack adds to steps, and how the stack pads them."""

    work: HostWork = field(default_factory=HostWork)
    sampled_vocab: int = 0  # size of the vocabulary if the host samples, 0 if the device does
    pads_slots: bool = False  # a step runs on the smallest graph that holds the busy slots
    batches: tuple[int, ...] = ()  # slots of the smaller graphs; () = powers of two
    stack: StackName = "ideal"
    prompt_margin: int = 0  # positions that a prompt leaves free in each bucket but the longest

    @classmethod
    def of(cls, stack: Stack, model: CostModel, batches: tuple[int, ...] = ()) -> HostOfSteps:
        """Return the host times of a stack by the model's calibration. `batches`: slots of the graphs of decode."""
        sampled = 0 if stack.samples_on_device else model.step_work.model.vocab_size
        host = model.calibration.host(stack.host)
        return cls(host, sampled, stack.pads_slots, tuple(sorted(batches)), stack.name, stack.prompt_margin)


class StepCosts(Protocol):
    """Costs of the graphs of one model: CostModel, or PipelineSteps."""

    calibration: Calibration

    def decode(self, slots: int, bucket: int) -> StepCost:
        """Return the cost of one token for each of `slots`, all reading `bucket` positions."""
        ...

    def prefill(self, tokens: int, bucket: int, behind: int = 0, has_all_logits: bool = False) -> StepCost:
        """Return the cost of `tokens` of a prompt in a graph of `bucket`, `behind` cached ones."""
        ...

    def prompt_s(self, bucket: int) -> float:
        """Return the seconds of one prompt that fills a graph compiled for `bucket` tokens."""
        ...


class Pricer(Protocol):
    """Prices steps on the accelerator: steps of sequences, or steps of texts."""

    extrapolated: dict[str, None]  # reasons met so far, in order

    def charge(self, plan: StepPlan) -> StepCharge:
        """All graphs of a step, in the order in which they run."""
        ...

    @property
    def calibration(self) -> str:
        """Version of the coefficients."""
        ...

    @property
    def stack(self) -> StackName:
        """The serving software whose steps are priced."""
        ...

    @property
    def request_s(self) -> float:
        """Host seconds of a request before it is in the queue."""
        ...

    @property
    def prompt_graphs(self) -> PromptGraphs:
        """Compiled lengths of prompts, or of texts, with their times."""
        ...

    def why_extrapolated(self) -> tuple[str, ...]:
        """Return why no measurement supports the times of this model on this accelerator; empty when one does."""
        ...


class StepPricer:
    """Implements `Pricer` for sequences. `slots` is the compiled batch of decode; buckets are ascending lengths."""

    def __init__(
        self,
        model: StepCosts,
        slots: int,
        prefill_buckets: tuple[int, ...],
        decode_buckets: tuple[int, ...],
        host: HostOfSteps | None = None,
        checking: StepCosts | None = None,
    ) -> None:
        """Without `host`, no host time is added. `checking` is of the graph that verifies drafts, if there is one."""
        self._model, self._slots, self._host = model, slots, host or HostOfSteps()
        self._checking = checking or model
        self.draft: DraftCosts | None = None  # of the model that makes the drafts, if there is one
        self._prefill_buckets, self.decode_buckets = prefill_buckets, decode_buckets
        self._prefix_buckets = tuple(sorted({*prefill_buckets, decode_buckets[-1]}))
        self._prefills: dict[tuple[int, int, bool], tuple[int, StepCost]] = {}
        self._decodes: dict[tuple[int, int, bool], tuple[int, StepCost]] = {}
        self.extrapolated: dict[str, None] = {}
        self.encode: Callable[[int], GraphRun] | None = None  # pass of an encoder beside the model, by its positions
        self.hand_over = HandOver()  # copies from other engines

    def price_copies(self, block_bytes: int) -> None:
        """Price copies from other engines of the instance; `block_bytes` are those of a block on one core."""
        if isinstance(self._model, CostModel):  # a pipeline hands nothing over
            self.hand_over = HandOver.of(self._model, block_bytes)

    def charge(self, plan: StepPlan) -> StepCharge:
        if plan.encodings:
            assert self.encode is not None
            passes = tuple(self.encode(each.item.num_tokens) for each in plan.encodings)
            self.extrapolated |= {reason: None for run in passes for reason in reasons_of(run.cost)}
            return StepCharge(passes, None)
        prefills = tuple(
            self._prefill_run(seq.start, len(seq.token_ids), bool(seq.prompt_targets)) for seq in plan.prefill
        )
        copies = (self._priced(self.hand_over.cost(*each[1:])) for each in plan.received)
        prefills = (*(GraphRun(ns, 0, 0, 0, cost) for ns, cost in copies), *prefills)
        if not plan.decode:
            return StepCharge(prefills, None)
        context = max(seq.start + len(seq.token_ids) for seq in plan.decode)
        has_drafts = any(seq.num_drafts for seq in plan.decode)
        return StepCharge(prefills, self._decode_run(context, len(plan.decode), has_drafts))

    @property
    def calibration(self) -> str:
        return self._model.calibration.version

    @property
    def stack(self) -> StackName:
        return self._host.stack

    @property
    def request_s(self) -> float:
        return self._host.work.request_s

    @property
    def prompt_graphs(self) -> PromptGraphs:
        return PromptGraphs(self._prefill_buckets, self._host.prompt_margin, self._model.prompt_s)

    def why_extrapolated(self) -> tuple[str, ...]:
        costs = self._decode(self.decode_buckets[-1], self._slots)[1], self._prefill(0, self._prefill_buckets[-1])[1]
        return tuple(dict.fromkeys(reason for cost in costs for reason in reasons_of(cost)))

    def decode_bucket(self, context: int) -> int:
        """Return the bucket that holds `context` tokens."""
        return smallest(self.decode_buckets, context)

    def prefill_bucket(self, num_tokens: int) -> int:
        """Return the bucket that a prompt of `num_tokens`, or a chunk of it, is padded to."""
        return smallest(self._prefill_buckets, num_tokens, self._host.prompt_margin)

    def decode_ns(self, context: int, busy: int, has_drafts: bool = False) -> int:
        """Return the time of a step of `busy` sequences, the longest of `context` tokens."""
        return self._decode(self.decode_bucket(context), busy, has_drafts)[0]

    def prefill_ns(self, start: int, num_tokens: int) -> int:
        """Return the time of `num_tokens` of a prompt behind `start` cached tokens.

        The tokens read the KV of the `start` positions and attend to them: attention over (bucket of the tokens) x
        (bucket of start) more pairs, and one more stream of KV.
        """
        return self._prefill(start, num_tokens)[0]

    def _decode_run(self, context: int, num_seqs: int, has_drafts: bool) -> GraphRun:
        bucket = self.decode_bucket(context)
        ns, cost = self._decode(bucket, num_seqs, has_drafts)
        return GraphRun(ns, bucket, num_seqs, self._padded(num_seqs) - num_seqs, cost)

    def _decode(self, bucket: int, busy: int, has_drafts: bool = False) -> tuple[int, StepCost]:
        found = self._decodes.get((bucket, busy, has_drafts))
        if found is None:
            slots = self._padded(busy)
            host_s = self._host.work.step_s(busy, slots, self._host.sampled_vocab)
            cost = (self._checking if has_drafts else self._model).decode(slots, bucket)
            if has_drafts and self.draft is not None:
                cost = self.draft.decode(cost, slots, bucket)
            unmeasured = SPECULATION_REASON if has_drafts else ""
            reasons = "; ".join(filter(None, (cost.extrapolated, unmeasured)))
            cost = replace(cost, overhead_s=cost.overhead_s + host_s, elapsed_s=cost.elapsed_s + host_s)
            found = self._decodes[bucket, busy, has_drafts] = self._priced(replace(cost, extrapolated=reasons))
        return found

    def _padded(self, busy: int) -> int:
        """Return the slots that a step of `busy` sequences computes."""
        if self._host.batches:
            return next((slots for slots in self._host.batches if slots >= busy), self._slots)
        return min(self._slots, 1 << (busy - 1).bit_length()) if self._host.pads_slots else self._slots

    def _prefill_run(self, start: int, num_tokens: int, has_all_logits: bool) -> GraphRun:
        bucket = self.prefill_bucket(num_tokens)
        ns, cost = self._prefill(start, num_tokens, has_all_logits)
        return GraphRun(ns, bucket, num_tokens, bucket - num_tokens, cost)

    def _prefill(self, start: int, num_tokens: int, has_all_logits: bool = False) -> tuple[int, StepCost]:
        bucket = self.prefill_bucket(num_tokens)
        behind = smallest(self._prefix_buckets, start) if start else 0
        key = bucket, behind, has_all_logits
        found = self._prefills.get(key)
        if found is None:
            cost = self._model.prefill(bucket, bucket, behind, has_all_logits)
            reasons = [cost.extrapolated, PREFIX_REASON if behind else "", LOGITS_REASON if has_all_logits else ""]
            if self.draft is not None:
                cost, reasons = self.draft.prefill(cost, bucket, behind), [*reasons, SPECULATION_REASON]
            found = self._prefills[key] = self._priced(replace(cost, extrapolated="; ".join(filter(None, reasons))))
        return found

    def _priced(self, cost: StepCost) -> tuple[int, StepCost]:
        self.extrapolated |= dict.fromkeys(reasons_of(cost))
        return round(cost.elapsed_s * NS), cost


def reasons_of(cost: StepCost) -> list[str]:
    """Return the reasons why no measurement supports a cost."""
    return cost.extrapolated.split("; ") if cost.extrapolated else []
