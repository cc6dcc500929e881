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
DEPTH_PROMPT_TOKENS, DEPTH_DECODE_TOKENS = 128, 16  # after a long context


@dataclass(frozen=True, slots=True)
class Case:
    """A workload that is measured repeatedly."""

    kind: Kind
    size: int = 0  # http: concurrent requests; context: prompt tokens; depth: tokens before the prompt
    num_requests: int = 0  # http only

    @property
    def name(self) -> str:
        """Short name for tables."""
        return f"{self.kind} {self.size}" if self.size else self.kind

    @property
    def has_warm_up(self) -> bool:
        """Whether a warm-up runs: a long prompt needs none, and after a long context it takes a peer minutes."""
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
    f"sequences at once, http N: N connections; {INPUT_LEN} in, {OUTPUT_LEN} out. Less is better for TTFT and TPOT. "
    f"embed: {NUM_TEXTS} texts. context N: a prompt of N tokens, then {CONTEXT_DECODE_TOKENS} more. "
    f"depth N: {DEPTH_PROMPT_TOKENS} tokens after N, then {DEPTH_DECODE_TOKENS} more. "
    "contention: decode beside a busy process on each CPU, and its share of the speed without."
)


class BenchmarkError(Exception):
    """A contender could not be started, or did not give the figures. The message is shown to the user."""


class Contender(Protocol):
    """A program. It is stopped between its turns, so that it takes nothing from the others."""

    name: str

    def start(self) -> None:
        """Load the model. Raises BenchmarkError."""
        ...

    def measure(self, case: Case, seed: int) -> Figures:
        """Measure once; returns values under the names of the case's metrics. Raises BenchmarkError."""
        ...

    def pause(self) -> None:
        """Stop all threads."""
        ...

    def resume(self) -> None:
        """Continue after a pause."""
        ...

    def stop(self) -> None:
        """End the program, also after a failed start."""
        ...

    def about(self) -> dict[str, str]:
        """Return version and settings, for the record."""
        ...


@dataclass(frozen=True, slots=True)
class Missing:
    """A contender that is not installed."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A contender that is excluded from a case."""

    name: str
    case: str
    reason: str
