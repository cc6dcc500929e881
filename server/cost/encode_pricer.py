"""Prices the steps of an encoder, as a compiled Neuron deployment runs it: a batch of texts is one graph.

Texts of a step are grouped by compiled length. Each group runs on the smallest compiled batch that holds it; batches
are powers of two. Every text of a graph is charged the same share, padding included.
"""

from __future__ import annotations

from ..clock import NS
from ..config.formats import StackName
from ..device.buckets import smallest
from ..types import StepPlan
from .bucket_edges import PromptGraphs
from .model import CostModel, StepCost
from .pricer import GraphRun, StepCharge, reasons_of


class EncodePricer:
    """Implements neuronserve.server.cost.pricer.Pricer. `max_texts` is the largest compiled batch."""

    stack: StackName = "ideal"  # no stack's host time with an encoder is known
    request_s = 0.0

    def __init__(self, model: CostModel, max_texts: int, buckets: tuple[int, ...], is_labelled: bool = False) -> None:
        """`buckets` are compiled lengths, ascending; `is_labelled`: a pass returns scores, not vectors."""
        self._model, self._max_texts, self._buckets, self._is_labelled = model, max_texts, buckets, is_labelled
        self._costs: dict[tuple[int, int], StepCost] = {}
        self.extrapolated: dict[str, None] = {}

    @property
    def calibration(self) -> str:
        return self._model.calibration.version

    @property
    def prompt_graphs(self) -> PromptGraphs:
        return PromptGraphs(self._buckets, 0, lambda bucket: self._cost(1, bucket).elapsed_s)

    def why_extrapolated(self) -> tuple[str, ...]:
        costs = self._cost(1, self._buckets[-1]), self._cost(self._max_texts, self._buckets[-1])
        return tuple(dict.fromkeys(reason for cost in costs for reason in reasons_of(cost)))

    def run(self, length: int) -> GraphRun:
        """Return the run of one text alone."""
        return self._shares(smallest(self._buckets, length), [length])[0]

    def charge(self, plan: StepPlan) -> StepCharge:
        """Return a run for each text: its share of the graph that it runs in."""
        lengths = [len(seq.token_ids) for seq in plan.prefill]
        groups: dict[int, list[int]] = {}
        for i, length in enumerate(lengths):
            groups.setdefault(smallest(self._buckets, length), []).append(i)
        runs: dict[int, GraphRun] = {}
        for bucket, members in groups.items():
            runs |= zip(members, self._shares(bucket, [lengths[i] for i in members]), strict=True)
        return StepCharge(tuple(runs[i] for i in range(len(lengths))), None)

    def _shares(self, bucket: int, lengths: list[int]) -> list[GraphRun]:
        """Return equal shares of one graph, which add up to it; the first text takes the remainder."""
        count = len(lengths)
        batch = min(self._max_texts, 1 << (count - 1).bit_length())
        cost = self._cost(batch, bucket)
        each_ns, rest_ns = divmod(round(cost.elapsed_s * NS), count)
        share = _divided(cost, count)
        runs = [GraphRun(each_ns, bucket, length, bucket - length, share) for length in lengths]
        spare = (batch - count) * bucket
        runs[0] = runs[0]._replace(ns=each_ns + rest_ns, num_padding=runs[0].num_padding + spare)
        return runs

    def _cost(self, batch: int, bucket: int) -> StepCost:
        found = self._costs.get((batch, bucket))
        if found is None:
            found = self._costs[batch, bucket] = self._model.encode(batch, bucket, self._is_labelled)
            self.extrapolated |= dict.fromkeys(reasons_of(found))
        return found


def _divided(cost: StepCost, count: int) -> StepCost:
    """Return one of `count` equal shares of a cost."""
    return StepCost(
        flops=cost.flops / count,
        hbm_bytes=cost.hbm_bytes / count,
        link_bytes=cost.link_bytes / count,
        compute_s=cost.compute_s / count,
        memory_s=cost.memory_s / count,
        activation_s=cost.activation_s / count,
        overhead_s=cost.overhead_s / count,
        elapsed_s=cost.elapsed_s / count,
        extrapolated=cost.extrapolated,
    )
