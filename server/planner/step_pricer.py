"""Whole nanoseconds of each part of a step, as a compiled Neuron deployment runs it. Asks the cost model; no clock.

Prefill and decode are different graphs and never share a charge: the prompts of a step run one after another, each
padded to its bucket, and then one decode of all compiled slots runs over the bucket of the longest context.
"""

from __future__ import annotations

from bisect import bisect_left

from server.device.cost import CostModel
from server.planner.workload import NS

PREFIX_REASON = "prefill behind a cached or earlier part of the prompt is priced by formula alone"


class StepPricer:
    """`slots` is the compiled batch of decode; buckets are compiled lengths, ascending, the last the longest."""

    def __init__(
        self, model: CostModel, slots: int, prefill_buckets: tuple[int, ...], decode_buckets: tuple[int, ...]
    ) -> None:
        self._model, self._slots = model, slots
        self._prefill_buckets, self.decode_buckets = prefill_buckets, decode_buckets
        self._prefills: dict[tuple[int, int], int] = {}
        self._decodes: dict[int, int] = {}
        self.extrapolated: dict[str, None] = {}  # reasons met so far, in order

    def decode_bucket(self, context: int) -> int:
        """The bucket that holds `context` tokens."""
        return _bucket(self.decode_buckets, context)

    def decode_ns(self, context: int) -> int:
        """One token for every slot, the longest of them with `context` tokens, the new one's position included."""
        bucket = _bucket(self.decode_buckets, context)
        found = self._decodes.get(bucket)
        if found is None:
            cost = self._model.decode(self._slots, bucket)
            self._note(cost.extrapolated)
            found = self._decodes[bucket] = round(cost.elapsed_s * NS)
        return found

    def prefill_ns(self, start: int, num_tokens: int) -> int:
        """`num_tokens` of a prompt behind `start` that are in the cache already.

        What is behind reads the KV of the `start` positions and attends to them: attention over (bucket of the tokens)
        x (bucket of start) more pairs, and one more stream of KV.
        """
        bucket = _bucket(self._prefill_buckets, num_tokens)
        behind = _bucket(self._prefill_buckets, start) if start else 0
        found = self._prefills.get((bucket, behind))
        if found is None:
            cost = self._model.prefill(bucket, bucket)
            self._note(cost.extrapolated)
            elapsed_s = cost.elapsed_s
            if behind:
                self._note(PREFIX_REASON)
                load, fit = self._model.workload, self._model.calibration.coefficients
                attention_s = load.attention_flops(float(bucket) * behind) * load.flop_s / fit.attention_efficiency
                stream_s = load.kv_bytes(behind, load.core.kv_streams) * load.byte_s / fit.memory_efficiency
                slowest = max(cost.compute_s + attention_s, cost.memory_s + stream_s)
                elapsed_s = slowest + cost.link_s + cost.overhead_s
            found = self._prefills[bucket, behind] = round(elapsed_s * NS)
        return found

    def _note(self, reason: str) -> None:
        if reason:
            self.extrapolated[reason] = None


def _bucket(buckets: tuple[int, ...], length: int) -> int:
    assert length <= buckets[-1], f"{length} tokens are beyond the longest bucket {buckets[-1]}"
    return buckets[bisect_left(buckets, length)]
