"""The endpoints of llama.cpp's server: completions, infilling, embeddings, templates, and what clients ask about it."""

from dataclasses import replace

from fastapi import APIRouter, Request, Response

from .... import __version__
from ....errors import InvalidRequest
from ...http.body import BodyOf
from ...http.event_stream import until_disconnect
from ...http.openapi import OF_BODIES, STREAM, documented, errors_of
from ...http.origin import origin_of
from ...pipeline.prompts import Prompt, chat_prompt, template_source
from ...pipeline.respond import respond
from ...pipeline.sampling import room_of, sampling_of
from ...pipeline.start import start
from ...pipeline.validate import validated
from ...service import Service, ServiceOf
from ...tools.plan import require_template
from ...wire.completions import CompletionRequest
from ...wire.llama import (
    AppliedTemplate,
    ApplyTemplateRequest,
    InfillRequest,
    LlamaCompletion,
    LlamaCompletionRequest,
    LlamaEmbedding,
    LlamaEmbeddingRequest,
    Props,
    Slot,
)
from ...wire.pooling import EmbeddingRequest
from ...wire.tools import functions_of
from ..embeddings import embedded
from .request import (
    completion_request,
    infill_prompt,
    limit_of,
    mixed_prompt,
    split_mixed,
)
from .writer import LlamaWriter, settings_of

router = APIRouter()
RESPONSES = STREAM | errors_of(401, 408, 429, *OF_BODIES)
_DESCRIBED = documented(LlamaCompletionRequest, LlamaCompletion)
_EMBEDDED = documented(LlamaEmbeddingRequest)


@router.post("/completion", responses=RESPONSES, openapi_extra=_DESCRIBED)
@router.post("/completions", responses=RESPONSES, openapi_extra=_DESCRIBED)
async def complete(request: Request, body: BodyOf[LlamaCompletionRequest], service: ServiceOf) -> Response:
    """Continue the prompts, whole or as a stream."""
    given, is_list = split_mixed(body.prompt)
    checked = validated(origin_of(request), completion_request(service, body), service, len(given), clips=True)
    prompts = [await mixed_prompt(service.model, item, param) for param, item in given]
    generation = await start(checked, prompts, limit_of(body))
    return await respond(request.receive, LlamaWriter(generation, body, is_list), bool(body.stream), b"")


@router.post("/infill", responses=RESPONSES, openapi_extra=documented(InfillRequest, LlamaCompletion))
async def infill(request: Request, body: BodyOf[InfillRequest], service: ServiceOf) -> Response:
    """Fill the gap between a beginning and an end, by a model with fill-in-the-middle tokens."""
    checked = validated(origin_of(request), completion_request(service, body), service, clips=True)
    generation = await start(checked, [await infill_prompt(service.model, body)], limit_of(body))
    return await respond(request.receive, LlamaWriter(generation, body), bool(body.stream), b"")


@router.post("/embedding", responses=errors_of(401, 429, *OF_BODIES), openapi_extra=_EMBEDDED)
@router.post("/embeddings", responses=errors_of(401, 429, *OF_BODIES), openapi_extra=_EMBEDDED)
async def embed(request: Request, body: BodyOf[LlamaEmbeddingRequest], service: ServiceOf) -> list[LlamaEmbedding]:
    """Encode every text; the answer has a list of one vector for each."""
    given = body.input if body.content is None else body.content
    if given is None:
        raise InvalidRequest("content is required.", "content")
    found = await until_disconnect(
        request.receive, embedded(origin_of(request), EmbeddingRequest(model=body.model, input=given), service)
    )
    return [LlamaEmbedding(index=i, embedding=[row.tolist()]) for i, row in enumerate(found.rows)]


@router.post("/apply-template", responses=errors_of(401, *OF_BODIES), openapi_extra=documented(ApplyTemplateRequest))
async def apply_template(body: BodyOf[ApplyTemplateRequest], service: ServiceOf) -> AppliedTemplate:
    """Return the prompt that a conversation becomes."""
    model, tools = service.model, functions_of(body.tools)
    service.require_name(body.model)
    require_template(template_source(model, body), body.messages, tools)
    prompt = await chat_prompt(model, body, tools)
    return AppliedTemplate(prompt=prompt.text or "")


@router.get("/props", responses=errors_of(401, 503))
async def props(service: ServiceOf) -> Props:
    """Return the sampling defaults, the number of slots, and the template and marks of the model."""
    model, config = service.model, service.config
    default = replace(
        sampling_of(model, CompletionRequest(prompt="")), max_tokens=room_of(model, Prompt((0,), None, "prompt"), None)
    )
    special = model.tokenizer.special
    return Props(
        default_generation_settings={
            "n_ctx": model.info.max_model_len,
            "params": settings_of(default) | {"seed": -1},  # one is drawn for each request
        },
        total_slots=len(_slots(service)),
        model_alias=config.model_names[0],
        model_path=config.model_path.name,
        modalities={"vision": False, "audio": False},
        chat_template=model.template.source if model.template else "",
        bos_token=special.get("bos_token", ""),
        eos_token=special.get("eos_token", ""),
        build_info=f"neuronserve {__version__}",
    )


@router.get("/slots", responses=errors_of(401, 503))
async def slots(service: ServiceOf) -> list[Slot]:
    """Return the slots of every engine; as many are busy as sequences are open."""
    return _slots(service)


def _slots(service: Service) -> list[Slot]:
    num_slots = service.config.max_num_seqs
    busy = [i < client.num_open for client in service.engine.clients for i in range(num_slots)]
    n_ctx = service.model.info.max_model_len
    return [Slot(id=i, n_ctx=n_ctx, is_processing=is_busy) for i, is_busy in enumerate(busy)]
