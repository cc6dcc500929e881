"""Deltas of a generation in the shapes of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ....types import FinishReason, SamplingParams, TokenLogprobs
from ...pipeline.deltas import Delta
from ...pipeline.generation import Generation
from ...pipeline.logprobs import TokenNames
from ...pipeline.respond import json_frame
from ...wire.llama import (
    LlamaAnswer,
    LlamaChunk,
    LlamaCompletion,
    LlamaRequest,
    Timings,
    TokenProbability,
)
from .request import limit_of

MS = 1e3
# Unsupported samplers of llama.cpp, with the values of their off state.
OFF = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "repeat_last_n": -1,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.0,
    "n_keep": 0,
    "n_discard": 0,
    "min_keep": 0,
    "lora": [],
}


@dataclass(slots=True)
class _Output:
    """Counts of one choice so far."""

    num_tokens: int = 0
    has_new_line: bool = False


class LlamaWriter:
    """Puts deltas into completions, and into the chunks of a stream."""

    def __init__(self, generation: Generation, body: LlamaRequest, is_list: bool = False) -> None:
        """`is_list`: the answer is a list even if it has one completion."""
        self.generation = generation
        self._is_list = is_list
        self._body = body
        self._most = limit_of(body)
        self._model, model = generation.request.model_name, generation.request.service.model
        self._tokenizer = model.tokenizer
        self._max_model_len = model.info.max_model_len
        self._names = TokenNames(self._tokenizer, False)
        self._num_top = body.n_probs or body.logprobs or 0
        self._outputs = [_Output() for _ in generation.prompts]
        per_prompt = len(generation.prompts) // len(generation.planned)
        self._samplings = [each.sampling for each in generation.planned for _ in range(per_prompt)]

    def whole(self, deltas: list[Delta]) -> LlamaAnswer:
        for delta in deltas:
            self._note(delta)
        found = [self._fields(self._completion(delta, delta)) for delta in deltas]
        return LlamaAnswer(found if self._is_list or len(found) > 1 else found[0])

    def frames(self, deltas: list[Delta]) -> Iterable[bytes]:
        """Yield one chunk for each delta with tokens, and a completion without content behind the last of a choice."""
        for delta in deltas:
            output = self._note(delta)
            if delta.token_ids or delta.text:
                yield json_frame(self._chunk(delta, output))
            if delta.finish_reason is not None:
                whole = self._completion(Delta(delta.index), delta)
                yield json_frame(LlamaAnswer(self._fields(whole)))

    def last_frames(self) -> Iterable[bytes]:
        return ()

    def _note(self, delta: Delta) -> _Output:
        output = self._outputs[delta.index]
        output.num_tokens += len(delta.token_ids)
        output.has_new_line |= "\n" in delta.text
        return output

    def _chunk(self, delta: Delta, output: _Output) -> LlamaChunk:
        return LlamaChunk(
            index=delta.index,
            content=delta.text,
            tokens=delta.token_ids,
            tokens_predicted=output.num_tokens,
            tokens_evaluated=len(self.generation.prompts[delta.index].token_ids),
            completion_probabilities=self._probabilities(delta),
            timings=self._timings() if self._body.timings_per_token else None,
        )

    def _completion(self, delta: Delta, ended: Delta) -> LlamaCompletion:
        output, prompt = self._outputs[ended.index], self.generation.prompts[ended.index]
        num_prompt, is_word = len(prompt.token_ids), isinstance(ended.stop_reason, str)
        fills_context = num_prompt + output.num_tokens >= self._max_model_len
        return LlamaCompletion(
            index=ended.index,
            content=delta.text,
            tokens=delta.token_ids if self._body.return_tokens else [],
            model=self._model,
            tokens_predicted=output.num_tokens,
            tokens_evaluated=num_prompt,
            generation_settings=self._settings(self._samplings[ended.index]),
            prompt=self._tokenizer.decode(prompt.token_ids, skip_special_tokens=False),
            has_new_line=output.has_new_line,
            truncated=ended.finish_reason == "length" and fills_context and output.num_tokens != self._most,
            stop_type=_stop_type(ended.finish_reason, ended.stop_reason),
            stopping_word=str(ended.stop_reason) if is_word else "",
            tokens_cached=num_prompt + output.num_tokens,
            timings=self._timings(),
            completion_probabilities=self._probabilities(delta),
        )

    def _fields(self, completion: LlamaCompletion) -> dict[str, Any]:
        """Return the answer, or the fields that the request names; `a/b` is the field b inside of a."""
        data = completion.model_dump()
        if not self._body.response_fields:
            return data
        kept = {}
        for name in self._body.response_fields:
            outer, _, inner = name.partition("/")
            value = data.get(outer)
            if inner and isinstance(value, dict) and inner in value:
                kept[name] = value[inner]
            elif not inner and outer in data:
                kept[name] = value
        return kept

    def _probabilities(self, delta: Delta) -> list[TokenProbability] | None:
        if not self._num_top or not delta.logprobs:
            return None
        return [self._probability(i, entry) for i, entry in zip(delta.token_ids, delta.logprobs, strict=True)]

    def _probability(self, token_id: int, entry: TokenLogprobs) -> TokenProbability:
        top = list(zip(entry.top_token_ids, entry.top_logprobs, strict=True))[: self._num_top]
        alternatives = [TokenProbability(id=i, **self._names.entry(i, value)) for i, value in top]
        return TokenProbability(id=token_id, **self._names.entry(token_id, entry.sampled), top_logprobs=alternatives)

    def _timings(self) -> Timings | None:
        times = self.generation.times(is_asked=True)
        if times is None:
            return None
        usage = self.generation.usage()
        cached, predicted = usage.prompt_tokens_details.cached_tokens, usage.completion_tokens
        prompt_ms, predicted_ms = times.time_to_first_token_ms or 0.0, times.generation_time_ms or 0.0
        num_prompt, num_steps = usage.prompt_tokens - cached, max(0, predicted - 1)
        return Timings(
            cache_n=cached,
            prompt_n=num_prompt,
            prompt_ms=prompt_ms,
            prompt_per_token_ms=prompt_ms / num_prompt if num_prompt else 0.0,
            prompt_per_second=num_prompt / prompt_ms * MS if prompt_ms else 0.0,
            predicted_n=predicted,
            predicted_ms=predicted_ms,
            predicted_per_token_ms=predicted_ms / num_steps if num_steps else 0.0,
            predicted_per_second=num_steps / predicted_ms * MS if predicted_ms else 0.0,
        )

    def _settings(self, sampling: SamplingParams) -> dict[str, Any]:
        return settings_of(sampling) | {
            "n_probs": self._num_top,
            "stop": list(self._body.stop_strings),
            "stream": bool(self._body.stream),
            "timings_per_token": bool(self._body.timings_per_token),
        }


def settings_of(sampling: SamplingParams) -> dict[str, Any]:
    """Return how a sequence is sampled, under llama.cpp's names."""
    ends = [{"token": token, "bias": None} for token in sampling.eos_token_ids] if sampling.ignore_eos else []
    return OFF | {
        "n_predict": sampling.max_tokens,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": sampling.ignore_eos,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in sampling.logit_bias] + ends,
        "grammar": "",
    }


def _stop_type(finish: FinishReason | None, reason: str | int | None) -> Literal["eos", "limit", "word"]:
    if finish != "stop":
        return "limit"
    return "eos" if reason is None else "word"
