"""Records of a comparison: cases, metrics, and the contract of a contender."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from benchmarks.embed_texts import NUM_TEXTS

Kind = Literal["decode", "prefill", "offline", "http", "embed", "context", "depth", "contention"]
Figures = dict[str, float]  # metric name -> value of one measurement

PREFILL_TOKENS = 512
DECODE_TOKENS = 128
INPUT_LEN, OUTPUT_LEN = 128, 64  # of each sequence, offline and over HTTP
OFFLINE_SEQUENCES = 32
CONTEXT_DECODE_TOKENS = 32  # after a long prompt
DEPTH_PROMPT_TOKENS, DEPTH_DECODE_TOKENS = 128, 16  # behind a long context


@dataclass(frozen=True, slots=True)
class Case:
    """A workload that is measured again and again."""

    kind: Kind
    size: int = 0  # http: requests open at once; context: tokens of the prompt; depth: before it
    num_requests: int = 0  # http only

    @property
    def name(self) -> str:
        """Short name for tables."""
        return f"{self.kind} {self.size}" if self.size else self.kind

    @property
    def has_warm_up(self) -> bool:
        """A long prompt is its own, and one more turn behind a long context is minutes of a peer."""
        return self.kind not in ("context", "depth")


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that contenders are compared by."""

    name: str
    label: str
    more_is_better: bool = True


METRICS: dict[Kind, tuple[Metric, ...]] = {
    "decode": (Metric("decode_tokens_per_s", "tok/s"),),
    "prefill": (Metric("prefill_tokens_per_s", "tok/s"),),
    "offline": (Metric("output_tokens_per_s", "tok/s"),),
    "context": (Metric("prefill_tokens_per_s", "prefill tok/s"), Metric("decode_tokens_per_s", "decode tok/s")),
    "depth": (Metric("prefill_tokens_per_s", "prefill tok/s"), Metric("decode_tokens_per_s", "decode tok/s")),
    "embed": (Metric("texts_per_s", "texts/s"),),
    "contention": (
        Metric("contended_tokens_per_s", "tok/s"),
        Metric("kept_percent", "% of quiet"),
    ),
    "http": (
        Metric("output_throughput", "tok/s"),
        Metric("median_ttft_ms", "TTFT p50 ms", more_is_better=False),
        Metric("median_tpot_ms", "TPOT p50 ms", more_is_better=False),
    ),
}
CAPTION = (
    f"decode: {DECODE_TOKENS} tokens at batch 1. prefill: {PREFILL_TOKENS} tokens. offline: {OFFLINE_SEQUENCES} "
    f"sequences at once, http N: N connections; {INPUT_LEN} in, {OUTPUT_LEN} out. Of TTFT and TPOT less is better. "
    f"embed: {NUM_TEXTS} texts. context N: a prompt of N tokens, then {CONTEXT_DECODE_TOKENS} more. "
    f"depth N: {DEPTH_PROMPT_TOKENS} tokens behind N, then {DEPTH_DECODE_TOKENS} more. "
    "contention: decode beside a busy process on each CPU, and how much that is of decode without."
)


class BenchmarkError(Exception):
    """A contender could not be started, or did not give the figures. Fit to be shown to a user."""


class Contender(Protocol):
    """A program. Between its turns it stands still, so that it takes nothing from the others."""

    name: str

    def start(self) -> None:
        """Load. Raises BenchmarkError."""
        ...

    def measure(self, case: Case, seed: int) -> Figures:
        """Measure once; values under the names of the case's metrics. Raises BenchmarkError."""
        ...

    def pause(self) -> None:
        """Stand still."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...

    def stop(self) -> None:
        """End; also after a failed start."""
        ...

    def about(self) -> dict[str, str]:
        """Version and settings, for the record."""
        ...


@dataclass(frozen=True, slots=True)
class Missing:
    """A contender that is not installed."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A contender that takes no part in a case."""

    name: str
    case: str
    reason: str
