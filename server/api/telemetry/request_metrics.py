"""Metrics of requests and their sequences: tokens are counted as they come, durations when a sequence ends."""

from __future__ import annotations

from collections.abc import Sequence

from ...types import FinishReason
from .families import LIMITS, one_two_five
from .instruments import Instruments
from .lifecycle import SequenceLife

REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")
COMPLETE = frozenset({"stop", "length"})  # only the durations of these sequences are measured


class RequestMetrics:
    """Request metrics of one engine. Aborted sequences are only counted: their durations would mislead."""

    def __init__(self, instruments: Instruments, max_model_len: int) -> None:
        self.between_tokens = instruments.histogram("vllm:inter_token_latency_seconds")
        self._ended = {each: instruments.counter("vllm:request_success", finished_reason=each) for each in REASONS}
        self._rejections = {limit: instruments.counter("vllm:admission_rejections", reason=limit) for limit in LIMITS}
        self._prompt_tokens = instruments.counter("vllm:prompt_tokens")
        self._cached_tokens = instruments.counter("vllm:prompt_tokens_cached")
        self._computed_source = instruments.counter("vllm:prompt_tokens_by_source", source="local_compute")
        self._cached_source = instruments.counter("vllm:prompt_tokens_by_source", source="local_cache_hit")
        self._ttft = instruments.histogram("vllm:time_to_first_token_seconds")
        self._tpot = instruments.histogram("vllm:request_time_per_output_token_seconds")
        self._e2e = instruments.histogram("vllm:e2e_request_latency_seconds")
        self._queue, self._prefill, self._decode, self._inference = (
            instruments.histogram(f"vllm:request_{phase}_time_seconds")
            for phase in ("queue", "prefill", "decode", "inference")
        )
        self._preemptions = instruments.histogram("vllm:request_num_preemptions")
        self._n = instruments.histogram("vllm:request_params_n")
        counted = "params_max", "prompt", "generation", "max_num_generation", "prefill_kv_computed"
        self._max_tokens, self._prompt_len, self._generated, self._longest, self._computed = (
            instruments.histogram(f"vllm:request_{each}_tokens", one_two_five(max_model_len)) for each in counted
        )

    def rejected(self, limit: str) -> None:
        """Count a refused request, by the limit that it exceeded."""
        self._rejections[limit].inc()

    def first_token(self, life: SequenceLife, ttft_s: float) -> None:
        """Count the prompt of `life`, which has been computed, and its time to first token."""
        self._ttft.observe(ttft_s)
        self.prompt_computed(life)

    def prompt_computed(self, life: SequenceLife) -> None:
        """Count the prompt of `life`, which has been computed."""
        self._prompt_tokens.inc(life.num_prompt_tokens)
        self._cached_tokens.inc(life.num_cached_tokens)
        self._cached_source.inc(life.num_cached_tokens)
        self._computed_source.inc(life.num_prompt_tokens - life.num_cached_tokens)

    def sequence_ended(self, life: SequenceLife, e2e_s: float) -> None:
        """Count the end of `life`, which has its finish_reason."""
        assert life.finish_reason is not None
        self._ended[life.finish_reason].inc()
        if life.finish_reason not in COMPLETE:
            return
        self._e2e.observe(e2e_s)
        self._prompt_len.observe(life.num_prompt_tokens)
        self._generated.observe(life.num_tokens)
        self._computed.observe(life.num_prompt_tokens - life.num_cached_tokens)
        self._max_tokens.observe(life.max_tokens)
        self._preemptions.observe(life.num_preemptions)
        for histogram, seconds in (
            (self._queue, life.queue_s),
            (self._prefill, life.prefill_s),
            (self._decode, life.decode_s),
            (self._inference, life.inference_s),
            (self._tpot, life.s_per_output_token),
        ):
            if seconds is not None:
                histogram.observe(seconds)

    def prompt_ended(self, choices: Sequence[SequenceLife]) -> None:
        """Count a prompt whose choices have all ended."""
        if all(life.finish_reason in COMPLETE for life in choices):
            self._n.observe(len(choices))
            self._longest.observe(max(life.num_tokens for life in choices))
