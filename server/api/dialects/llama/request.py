"""Requests of llama.cpp's server as completions of the shared pipeline: fields by other names, and prompts."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from ....errors import InvalidRequest
from ....text.tokenizer import Tokenizer
from ...config import MAX_PROMPTS
from ...errors import as_body, unsupported
from ...pipeline.fill_in import fill_in_prompts
from ...pipeline.prompts import Prompt, check_ids, encode
from ...pipeline.sampling import check_logprobs
from ...service import ServedModel, Service
from ...wire.completions import CompletionRequest
from ...wire.llama import InfillRequest, LlamaRequest

NEVER = -100.0  # bias of a token that is left out
FILE_MARK = "<|file_sep|>"  # before each file, where the vocabulary has it
# Fields of the dialect alone: they are read here or in `writer.py`.
_OWN = frozenset(LlamaRequest.model_fields) - frozenset(CompletionRequest.model_fields)
# Unsupported samplers and controls -> the values at which they do nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_n_sigma": (-1, 0),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "dry_multiplier": (0,),
    "adaptive_target": (-1,),
    "repeat_last_n": (-1,),
    "n_indent": (0,),
    "min_keep": (0,),
    "t_max_predict_ms": (0, -1),
    "lora": ([],),
    "post_sampling_probs": (),
    "return_progress": (),
    "grammar_lazy": (),
    "image_data": ([],),
}
_SPECIFIC = {"repeat_last_n": "penalties count all tokens of a sequence"}


def completion_request(service: Service, body: LlamaRequest) -> CompletionRequest:
    """Return the request under OpenAI's and vLLM's names, without its prompts. Raises InvalidRequest."""
    _refuse_samplers(body)
    check_logprobs(body.n_probs, service.config.max_logprobs, "n_probs")
    fields = body.model_dump(exclude_unset=True, by_alias=True, exclude={*_OWN, "prompt", "input_prefix"})
    for name in ("input_suffix", "input_extra", "max_tokens", "logprobs"):
        fields.pop(name, None)
    fields |= {
        "prompt": "",
        "n": body.n_cmpl or body.n,
        "seed": None if body.seed == -1 else body.seed,
        "max_tokens": limit_of(body),
        "logprobs": body.n_probs or body.logprobs or None,
        "repetition_penalty": body.repetition_penalty if body.repeat_penalty is None else body.repeat_penalty,
        "logit_bias": _bias(service.model.tokenizer, body),
    }
    if body.cache_prompt is False:  # a salt of its own finds no cached blocks
        fields["cache_salt"] = secrets.token_hex(16)
    return as_body(CompletionRequest, fields)


def limit_of(body: LlamaRequest) -> int | None:
    """Return the most tokens of the output; None = all that the context has room for."""
    limit = body.max_tokens if body.n_predict is None else body.n_predict
    return None if limit == -1 else limit


def _refuse_samplers(body: LlamaRequest) -> None:
    for name, value in (body.model_extra or {}).items():
        if name in _NEUTRAL and value not in (None, False, *_NEUTRAL[name]):
            why = f": {_SPECIFIC[name]}" if name in _SPECIFIC else ""
            raise unsupported(name, f" is not supported by this server{why}.")


def _bias(tokenizer: Tokenizer, body: LlamaRequest) -> dict[str, float] | None:
    """Return biases by token id. A text stands for each of its tokens."""
    if body.logit_bias is None:
        return None
    given = body.logit_bias
    pairs: Sequence[tuple[Any, Any]] = [*given.items()] if isinstance(given, dict) else [(a, b) for a, b in given]
    biases: dict[str, float] = {}
    for token, value in pairs:
        is_id = isinstance(token, int) or (isinstance(given, dict) and token.isdecimal())
        if isinstance(token, bool | float) or isinstance(value, str):
            raise InvalidRequest("logit_bias: each pair is a token id or a text, and a number or false.", "logit_bias")
        ids = [int(token)] if is_id else tokenizer.encode(token, add_special_tokens=False)
        biases |= dict.fromkeys(map(str, ids), NEVER if value is False else float(value))
    return biases


def split_mixed(given: Any) -> tuple[list[tuple[str, Any]], bool]:
    """Return each prompt with the name of its field, and whether they are a list of prompts."""
    if isinstance(given, list) and given and not any(isinstance(part, int) for part in given):
        if len(given) > MAX_PROMPTS:
            raise InvalidRequest(f"prompt has {len(given)} prompts; at most {MAX_PROMPTS} are taken.", "prompt")
        return [(f"prompt[{i}]", item) for i, item in enumerate(given)], True
    return [("prompt", given)], False


async def mixed_prompt(model: ServedModel, given: Any, param: str) -> Prompt:
    """Return the prompt of a text, of an object with one, or of token ids and texts. Raises InvalidRequest."""
    if isinstance(given, dict):
        if given.get("multimodal_data"):
            raise InvalidRequest(f"{param}.multimodal_data is not supported by this server.", param)
        given = given.get("prompt_string")
    if isinstance(given, str):
        return Prompt(await encode(model, given, True, param, model.info.max_model_len), given, param)
    parts = given if isinstance(given, list) else []
    if not parts or not all(isinstance(part, int | str) and not isinstance(part, bool) for part in parts):
        raise InvalidRequest(f"{param} must be a text, an object with prompt_string, or token ids and texts.", param)
    ids: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, int):
            ids += check_ids([part], model.vocab_size, param)
        elif part:
            ids += await encode(model, part, index == 0, param, model.info.max_model_len)
    return Prompt(tuple(ids), None, param)


async def infill_prompt(model: ServedModel, body: InfillRequest) -> Prompt:
    """Return files, the text around the gap, and the beginning of the text that fills it, as one prompt."""
    mark = FILE_MARK if model.tokenizer.token_id(FILE_MARK) is not None else ""
    files = "".join(f"{mark}{each.filename}\n{each.text}\n" for each in body.input_extra or ())
    (gap,) = await fill_in_prompts(model, [("input_prefix", body.input_prefix)], body.input_suffix, True)
    before = await encode(model, files, False, "input_extra") if files else ()
    begun = await encode(model, body.prompt, False, "prompt") if body.prompt else ()
    return Prompt((*before, *gap.token_ids, *begun), None, "input_prefix")
