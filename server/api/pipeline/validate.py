"""First stage of the pipeline: the checks of a generation request that hold for every dialect.

A parameter that changes what an answer means and that this server does not have is refused by name, never ignored. Any
other unknown field is harmless here (user, metadata, store and what clients will think of next).
"""

from __future__ import annotations

from typing import Any

from neuronserve.server.api.pipeline.stream_options import stream_usage
from neuronserve.server.api.service import Service
from neuronserve.server.api.wire.generation import GenerationRequest
from neuronserve.server.errors import InvalidRequest
from neuronserve.server.link.messages import EngineInfo

# Field -> values, besides null, false and what is empty, that request nothing beyond what this server does anyway.
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


def validate(service: Service, body: GenerationRequest) -> str:
    """The model name for the answer. Raises RequestError when the request cannot be served, whatever its prompt."""
    require_generator(service.model.info)
    name = service.require_name(body.model)
    refuse_unsupported(body.model_extra)
    stream_usage(body)
    return name


def require_generator(info: EngineInfo) -> None:
    """Raise InvalidRequest where the model only encodes."""
    if not info.generates:
        raise InvalidRequest(
            f"{info.facts.architecture} encodes texts here and generates none: ask {paths_of(info)}.",
            "model",
            "unsupported_endpoint",
        )


def paths_of(info: EngineInfo) -> str:
    """The endpoints that the model of this server answers."""
    paths = ["/v1/chat/completions", "/v1/completions"] if info.generates else []
    if info.pooling is not None:
        labels = len(info.pooling.labels)
        paths += ["/classify"] if labels else ["/v1/embeddings"]
        paths += ["/v1/score", "/v1/rerank"] if labels < 2 else []
    return ", ".join(paths)


def refuse_unsupported(extra: dict[str, Any] | None) -> None:
    """Raise InvalidRequest naming the first unsupported field of a request's unknown fields."""
    for name, value in (extra or {}).items():
        if name in _REFUSED and not _is_empty(value) and value not in _REFUSED[name]:
            raise InvalidRequest(f"{name} is not supported by this server.", name, "unsupported_parameter")


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})
