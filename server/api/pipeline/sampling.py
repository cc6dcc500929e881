"""Sampling parameters of each sequence: the request's, else the checkpoint's defaults, else OpenAI's."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeVar

from neuronserve.server.api.config import MAX_LOGIT_BIAS
from neuronserve.server.api.pipeline.generation import PlannedSequence
from neuronserve.server.api.pipeline.prompts import Prompt, check_ids, truncated
from neuronserve.server.api.service import Service
from neuronserve.server.api.wire.generation import GenerationRequest
from neuronserve.server.errors import InvalidRequest
from neuronserve.server.scheduler.admission import resolve_max_tokens
from neuronserve.server.types import SamplingParams

GREEDY_BELOW = 1e-5  # temperatures below this are as good as greedy, and would overflow the logits
SEED_MASK = 2**63 - 1
T = TypeVar("T")


class SamplingBuilder:
    """Builds the sequences of one request, whose parameters differ in seed and room for tokens only."""

    def __init__(
        self,
        service: Service,
        body: GenerationRequest,
        logprobs: int | None,
        is_echoed: bool = False,
        clips: bool = False,
    ) -> None:
        """`logprobs` is how many alternatives the output has, None for no log-probabilities.

        `is_echoed`: the prompt is a part of the output. `clips`: more tokens than there is room for are cut,
        whatever the settings say.
        """
        self._body = body
        self._model = model = service.model
        self._refuses_overflow = service.config.context_overflow == "refuse" and not clips
        self._logprobs = logprobs
        self._prompt_logprobs = _prompt_logprobs(body, service.config.max_logprobs, logprobs if is_echoed else None)
        self._bias = _logit_bias(body, model.vocab_size)
        self._seed = secrets.randbits(63) if body.seed is None else body.seed
        check_ids(body.logprob_token_ids or (), model.vocab_size, "logprob_token_ids")
        if body.logprob_token_ids and logprobs is None:
            raise InvalidRequest("logprob_token_ids needs logprobs.", "logprob_token_ids")
        check_ids(body.stop_token_ids or (), model.vocab_size, "stop_token_ids")

    def sequences(
        self, prompts: Sequence[Prompt], max_tokens: int | None, grammar: str, num_choices: int
    ) -> list[PlannedSequence]:
        """`num_choices` sequences for each prompt, in order. Raises InvalidRequest when a prompt leaves no room."""
        children = range(num_choices)
        kept = [truncated(prompt, self._body, self._model.info.max_model_len, max_tokens or 1) for prompt in prompts]
        return [
            PlannedSequence(prompt, self._params(prompt, child, max_tokens, grammar))
            for prompt in kept
            for child in children
        ]

    def _params(self, prompt: Prompt, child: int, max_tokens: int | None, grammar: str) -> SamplingParams:
        body, defaults = self._body, self._model.defaults
        room = resolve_max_tokens(
            len(prompt.token_ids),
            None if max_tokens is None else max(1, max_tokens),  # the engine always adds one
            max_model_len=self._model.info.max_model_len,
            cache=self._model.cache,
            param=prompt.param,
        )
        if self._refuses_overflow:
            _require_context(body, len(prompt.token_ids), self._model.info.max_model_len)
        if max_tokens is None and defaults.max_new_tokens is not None:
            room = min(room, defaults.max_new_tokens)
        min_tokens = body.min_tokens or 0
        most = 0 if max_tokens == 0 else room
        if min_tokens > most:
            raise InvalidRequest(
                f"min_tokens is {min_tokens}, but at most {most} tokens can be generated.", "min_tokens"
            )
        temperature = first(body.temperature, defaults.temperature, 1.0)
        top_p = first(body.top_p, defaults.top_p, 1.0)
        return SamplingParams(
            max_tokens=room,
            min_tokens=min_tokens,
            temperature=0.0 if temperature < GREEDY_BELOW or top_p == 0 else temperature,
            top_p=top_p or 1.0,  # 0 leaves the best token alone, which is greedy
            top_k=max(0, first(body.top_k, defaults.top_k, 0)),
            min_p=first(body.min_p, defaults.min_p, 0.0),
            presence_penalty=first(body.presence_penalty, None, 0.0),
            frequency_penalty=first(body.frequency_penalty, None, 0.0),
            repetition_penalty=first(body.repetition_penalty, defaults.repetition_penalty, 1.0),
            logit_bias=self._bias,
            eos_token_ids=defaults.eos_token_ids,
            stop_token_ids=tuple(dict.fromkeys(body.stop_token_ids or ())),
            ignore_eos=bool(body.ignore_eos),
            seed=(self._seed + child) & SEED_MASK,
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            logprob_token_ids=tuple(dict.fromkeys(body.logprob_token_ids or ())),
            grammar=grammar,
        )


def first(given: T | None, default: T | None, otherwise: T) -> T:
    """The first value that is not None."""
    if given is not None:
        return given
    return otherwise if default is None else default


def _require_context(body: GenerationRequest, num_prompt_tokens: int, max_model_len: int) -> None:
    """Raise InvalidRequest when the tokens that the client itself asks for pass the context."""
    completion: int | None = getattr(body, "max_completion_tokens", None)
    param = "max_tokens" if completion is None else "max_completion_tokens"
    asked = (body.max_tokens or 0) if completion is None else completion
    if num_prompt_tokens + asked > max_model_len:
        raise InvalidRequest(
            f"This model's maximum context length is {max_model_len} tokens, but {num_prompt_tokens + asked} were "
            f"asked for: {num_prompt_tokens} in the prompt and {asked} in {param}.",
            param,
            "context_length_exceeded",
        )


def check_logprobs(num_top: int | None, most: int, param: str) -> int | None:
    """`num_top`. Raises InvalidRequest when this server gives fewer alternatives than that."""
    if num_top is not None and num_top > most:
        raise InvalidRequest(f"{param} is {num_top}, but this server gives at most {most}.", param)
    return num_top


def _prompt_logprobs(body: GenerationRequest, most: int, echoed: int | None) -> int | None:
    """How many alternatives each token of the prompt has, `echoed` at least. Raises InvalidRequest."""
    if body.prompt_logprobs is None:
        return echoed
    if body.stream:
        raise InvalidRequest("prompt_logprobs are not available in streams; echo with logprobs is.", "prompt_logprobs")
    check_logprobs(body.prompt_logprobs, most, "prompt_logprobs")
    return max(body.prompt_logprobs, echoed or 0)


def _logit_bias(body: GenerationRequest, vocab_size: int) -> tuple[tuple[int, float], ...]:
    bias = body.logit_bias or {}
    if len(bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"logit_bias has {len(bias)} entries; at most {MAX_LOGIT_BIAS} are taken.", "logit_bias")
    wrong = [key[:40] for key in bias if not (key.isascii() and key.isdigit() and len(key) <= 10)]
    if wrong:
        raise InvalidRequest(f"logit_bias: these are no token ids: {', '.join(map(repr, wrong[:8]))}.", "logit_bias")
    pairs = [(int(key), float(value)) for key, value in bias.items()]
    check_ids([token_id for token_id, _ in pairs], vocab_size, "logit_bias")
    return tuple(pairs)
