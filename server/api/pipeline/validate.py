"""Stage 1: the checks of a generation request that hold for every dialect.

A parameter that changes the meaning of an answer and is not implemented is refused by name, never ignored. Any other
unknown field is harmless here (user, metadata, store, and fields that clients will add).
"""

from __future__ import annotations

from typing import Any

from ...errors import InvalidRequest
from ...link.messages import EngineInfo
from ..errors import unsupported
from ..http.origin import Origin
from ..service import Service
from ..tools.output import keep_tags, output_plan
from ..wire.generation import GenerationRequest
from .room import require_room
from .sources import require_no_prompt_output
from .stages import Validated

# Field -> values, besides null, false and empty ones, that ask for nothing beyond the default.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "tools": (),
    "tool_choice": ("none",),
    "functions": (),
    "function_call": ("none",),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "stop_regex": (),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "prompt_embeds": (),
    "kv_transfer_params": (),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "logits_processors": (),
    "mm_processor_kwargs": (),
    "typical_p": (1, 1.0),
    "mirostat": (0,),
    "best_of": (1,),
    "use_beam_search": (),
    "length_penalty": (1, 1.0),
    "early_stopping": (),
    "lora": (),
    "lora_path": (),
    "adapter_id": (),
}


def validated(
    origin: Origin, body: GenerationRequest, service: Service, num_prompts: int = 1, clips: bool = False
) -> Validated:
    """Check everything but the prompts and their sampling. Raises RequestError."""
    name = check_fields(service, body)
    require_room(service, num_prompts * (body.n or 1))
    plan = output_plan(service.model, service.config, body)
    return Validated(service, origin, keep_tags(service.model, plan, body), name, plan, clips)


def check_fields(service: Service, body: GenerationRequest) -> str:
    """Check the fields that no prompt changes; return the model name for the answer. Raises RequestError."""
    info = service.model.info
    if not info.generates:
        raise InvalidRequest(
            f"{info.facts.architecture} encodes texts here and generates none: ask {paths_of(info)}.",
            "model",
            "unsupported_endpoint",
        )
    _refuse_unsupported(body.model_extra or {})
    require_no_prompt_output(info, body)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is allowed only with stream.", "stream_options")
    return service.require_name(body.model)


def paths_of(info: EngineInfo) -> str:
    """Return the endpoints that the model of this server answers."""
    paths = ["/v1/chat/completions", "/v1/completions"] if info.generates else []
    paths = paths[bool(info.max_source_len) :]
    if info.pooling is not None:
        labels = len(info.pooling.labels)
        paths += ["/classify"] if labels else ["/v1/embeddings"]
        paths += ["/v1/score", "/v1/rerank"] if labels < 2 else []
    return ", ".join(paths)


def _refuse_unsupported(extra: dict[str, Any]) -> None:
    """Raise InvalidRequest that names the first unsupported field among a request's unknown fields."""
    for name, value in extra.items():
        if name in _REFUSED and not _is_empty(value) and value not in _REFUSED[name]:
            raise unsupported(name)


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})
