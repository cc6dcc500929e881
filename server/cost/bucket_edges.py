"""Prompts a little too long for a compiled length: they pay for the next one, which is often twice as long.

Llama-3.1-8B on inf2.xlarge: prompts of exactly 1,024 tokens took 399 ms on a server with buckets of 128 to 2,048, and
195 ms on a graph of 1,024. The source does not state the bucket of the former; the code of NxD Inference does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..device.buckets import SMALLEST_BUCKET, smallest

ADDED_TOKENS = 16  # a BOS and a short chat template
NEAR = 1 / 8  # share of a bucket: prompts beyond it by more are not "a little" too long
LEAST_SHARE = 0.1  # of the prompts
LEAST_SAVING = 0.1  # of a prefill
FIRST_COUNT = 32  # observed prompts before the first judgement


@dataclass(frozen=True, slots=True)
class BucketEdge:
    """Prompts a little too long for the bucket `below`, and the bucket that would hold them."""

    lengths: tuple[int, int]  # tokens of the shortest and of the longest of these prompts
    share: float  # of all prompts
    added: int  # tokens that a BOS or a template adds to them; 0: they are too long without
    below: int
    bucket: int
    better: int
    milliseconds: tuple[float, float, float]  # of a prefill in `below`, `bucket` and `better`

    @property
    def saved_ms(self) -> float:
        """Milliseconds that the better bucket saves, over all prompts."""
        return self.share * (self.milliseconds[1] - self.milliseconds[2])

    def __str__(self) -> str:
        """Return the advice in one line."""
        short, long = self.lengths
        who = f"prompts of {long:,} tokens"
        if self.share < 1 or short < long:
            who = f"{self.share:.0%} of the prompts ({short:,} to {long:,} tokens)"
        plus = f" plus a BOS or a template ({self.added} tokens)" if self.added else ""
        less, now, then = (f"{each:.3g}" for each in self.milliseconds)
        return (
            f"{who}{plus} need the bucket of {self.bucket:,} ({now} ms of prefill, {less} in {self.below:,}): "
            f"add a bucket of {self.better:,} ({then} ms)"
        )


@dataclass(frozen=True, slots=True)
class PromptGraphs:
    """Compiled lengths of prompts, ascending, and the seconds of a prompt that fills one of a given length."""

    buckets: tuple[int, ...]
    margin: int  # positions that a prompt leaves free in each but the longest
    prefill_s: Callable[[int], float]

    def edge(self, prompts: Mapping[int, float], added: int = 0) -> BucketEdge | None:
        """Return the edge that costs `prompts` (tokens: number of them) most; None if none costs much.

        `added`: tokens that may come to these lengths. Prompts that are too long even without them come first.
        """
        for more in dict.fromkeys((0, added)):
            groups: dict[int, list[int]] = {}
            for tokens in filter(lambda tokens: self._is_near(tokens, more), prompts):
                groups.setdefault(self._bucket(tokens + more), []).append(tokens)
            found = [self._edge(bucket, lengths, prompts, (more, added)) for bucket, lengths in groups.items()]
            edges = [edge for edge in found if edge is not None and edge.share >= LEAST_SHARE]
            if edges:
                return max(edges, key=lambda edge: edge.saved_ms)
        return None

    def _bucket(self, tokens: int) -> int:
        return smallest(self.buckets, tokens, self.margin)

    def _is_near(self, tokens: int, more: int) -> bool:
        """Whether a prompt with `more` tokens is a little too long for a bucket that holds it without."""
        if tokens + more > self.buckets[-1]:
            return False
        below = self._below(self._bucket(tokens + more))
        return 0 < tokens + more + self.margin - below <= below * NEAR and (not more or tokens + self.margin <= below)

    def _below(self, bucket: int) -> int:
        return max((length for length in self.buckets if length < bucket), default=0)

    def _edge(
        self, bucket: int, lengths: list[int], prompts: Mapping[int, float], more: tuple[int, int]
    ) -> BucketEdge | None:
        """Return the edge of prompts in `bucket`; None without a shorter multiple of 128 that saves time."""
        needed = max(lengths) + self.margin + more[1]
        better = -(-needed // SMALLEST_BUCKET) * SMALLEST_BUCKET
        if better >= bucket:
            return None
        below = self._below(bucket)
        less, now, then = (1e3 * self.prefill_s(length) for length in (below, bucket, better))
        if now - then < LEAST_SAVING * now:
            return None
        share = sum(prompts[tokens] for tokens in lengths) / sum(prompts.values())
        return BucketEdge((min(lengths), max(lengths)), share, more[0], below, bucket, better, (less, now, then))


class ObservedPrompts:
    """Tokens of the prompts that a server has encoded. `add` returns advice once, when they have shown to need it."""

    def __init__(self, graphs: PromptGraphs) -> None:
        self._graphs, self._counts = graphs, Counter[int]()
        self._total, self._judged_at, self._is_done = 0, FIRST_COUNT, False

    def add(self, lengths: Iterable[int]) -> BucketEdge | None:
        """Count the prompts of a step; judge all of them each time that their number has doubled."""
        if self._is_done:
            return None
        for tokens in lengths:
            self._counts[tokens] += 1
            self._total += 1
        if self._total < self._judged_at:
            return None
        self._judged_at = 2 * self._total
        edge = self._graphs.edge(self._counts)
        self._is_done = edge is not None
        return edge
