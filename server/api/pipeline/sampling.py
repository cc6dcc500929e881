"""Stage 3: sampling parameters of each sequence: the request's, else the checkpoint's defaults, else OpenAI's."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from ...errors import InvalidRequest
from ...scheduler.admission import resolve_max_tokens
from ...types import SamplingParams
from ..config import MAX_LOGIT_BIAS
from ..http.chance import seed as draw_seed
from ..service import ServedModel
from ..wire.generation import GenerationRequest
from .prompts import Prompt, check_ids
from .sources import first_tokens
from .stages import PlannedSequence, Rendered, Sampled, Validated

GREEDY_BELOW = 1e-5  # temperatures below this are as good as greedy, and would overflow the logits
SEED_MASK = 2**63 - 1
T = TypeVar("T")


def sampled(rendered: Rendered) -> Sampled:
    """Check the fields of sampling, and plan the sequences of each prompt. Raises InvalidRequest."""
    request = rendered.request
    service, body, n = request.service, request.body, request.body.n or 1
    shared = replace(
        sampling_of(service.model, body),
        logprobs=body.num_logprobs,
        prompt_logprobs=_prompt_logprobs(body, service.config.max_logprobs),
        grammar=rendered.constraint.grammar,
    )
    sequences = []
    for prompt in rendered.prompts:
        room = room_of(service.model, prompt, rendered.max_tokens)
        _check_room(request, prompt, 0 if rendered.max_tokens == 0 else room)
        for child in range(n):
            seed = (shared.seed + child) & SEED_MASK
            sampling = replace(shared, max_tokens=room, seed=seed, transcript=prompt.transcript)
            sequences.append(PlannedSequence(prompt, sampling))
    return Sampled(request, sequences, n, rendered.constraint)


def sampling_of(model: ServedModel, body: GenerationRequest) -> SamplingParams:
    """Return the parameters that no prompt changes; `max_tokens` is the whole context. Raises InvalidRequest."""
    defaults = model.defaults
    temperature = first(body.temperature, defaults.temperature, 1.0)
    top_p = first(body.top_p, defaults.top_p, 1.0)
    bias = _logit_bias(body)
    token_ids = {
        "logit_bias": [token_id for token_id, _ in bias],
        "logprob_token_ids": body.logprob_token_ids or (),
        "stop_token_ids": body.stop_token_ids or (),
    }
    for name, ids in token_ids.items():
        check_ids(ids, model.vocab_size, name)
    return SamplingParams(
        max_tokens=model.info.max_model_len,
        min_tokens=body.min_tokens or 0,
        temperature=0.0 if temperature < GREEDY_BELOW or top_p == 0 else temperature,
        top_p=top_p or 1.0,  # 0 leaves the best token alone, which is greedy
        top_k=max(0, first(body.top_k, defaults.top_k, 0)),
        min_p=first(body.min_p, defaults.min_p, 0.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=first(body.repetition_penalty, defaults.repetition_penalty, 1.0),
        logit_bias=bias,
        eos_token_ids=defaults.eos_token_ids,
        stop_token_ids=tuple(dict.fromkeys(body.stop_token_ids or ())),
        ignore_eos=bool(body.ignore_eos),
        seed=draw_seed() if body.seed is None else body.seed & SEED_MASK,
        logprob_token_ids=tuple(dict.fromkeys(body.logprob_token_ids or ())),
    )


def first(given: T | None, default: T | None, otherwise: T) -> T:
    """Return the first value that is not None."""
    if given is not None:
        return given
    return otherwise if default is None else default


def room_of(model: ServedModel, prompt: Prompt, max_tokens: int | None) -> int:
    """Tokens to generate for a prompt, at least 1 as the engine always adds one. Raises InvalidRequest."""
    room = resolve_max_tokens(
        len(first_tokens(model, prompt)),
        None if max_tokens is None else max(1, max_tokens),
        max_model_len=model.info.max_model_len,
        cache=model.cache,
        param=prompt.param,
    )
    if max_tokens is None and model.defaults.max_new_tokens is not None:
        room = min(room, model.defaults.max_new_tokens)
    return room


def _check_room(request: Validated, prompt: Prompt, room: int) -> None:
    """Raise InvalidRequest when the request asks for more tokens than the context has, or needs more than `room`."""
    body, num_prompt_tokens = request.body, len(first_tokens(request.service.model, prompt))
    param, limit = body.token_limit
    num_asked, context = num_prompt_tokens + (limit or 0), request.service.model.info.max_model_len
    if num_asked > context and request.service.config.context_overflow == "refuse" and not request.clips:
        raise InvalidRequest(
            f"This model's maximum context length is {context} tokens, but {num_asked} were "
            f"asked for: {num_prompt_tokens} in the prompt and {limit or 0} in {param}.",
            param,
            "context_length_exceeded",
        )
    min_tokens = body.min_tokens or 0
    if min_tokens > room:
        raise InvalidRequest(f"min_tokens is {min_tokens}, but at most {room} tokens can be generated.", "min_tokens")


def check_logprobs(num_top: int | None, most: int, param: str) -> None:
    """Raise InvalidRequest when a request wants more alternatives than this server gives."""
    if num_top is not None and num_top > most:
        raise InvalidRequest(f"{param} is {num_top}, but this server gives at most {most}.", param)


def _prompt_logprobs(body: GenerationRequest, most: int) -> int | None:
    """Check the log-probabilities of a request; return the alternatives to each token of its prompt."""
    check_logprobs(body.num_logprobs, most, body.LOGPROBS_FIELD)
    if body.logprob_token_ids and body.num_logprobs is None:
        raise InvalidRequest("logprob_token_ids needs logprobs.", "logprob_token_ids")
    echoed = body.num_echoed_logprobs
    if body.prompt_logprobs is None:
        return echoed
    if body.stream:
        raise InvalidRequest("prompt_logprobs are not available in streams; echo with logprobs is.", "prompt_logprobs")
    check_logprobs(body.prompt_logprobs, most, "prompt_logprobs")
    return max(body.prompt_logprobs, echoed or 0)


def _logit_bias(body: GenerationRequest) -> tuple[tuple[int, float], ...]:
    bias = body.logit_bias or {}
    if len(bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"logit_bias has {len(bias)} entries; at most {MAX_LOGIT_BIAS} are taken.", "logit_bias")
    wrong = [key[:40] for key in bias if not (key.isascii() and key.isdigit() and len(key) <= 10)]
    if wrong:
        raise InvalidRequest(f"logit_bias: these are no token ids: {', '.join(map(repr, wrong[:8]))}.", "logit_bias")
    return tuple((int(key), float(value)) for key, value in bias.items())
