"""Ollama's API: chats, completions and embeddings, and what its clients ask about the model."""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from .... import __version__
from ...http.body import body_of
from ...http.event_stream import LineStream, until_disconnect
from ...http.openapi import LINES, OF_BODIES, documented, ollama_errors_of
from ...http.origin import Origin, origin_of
from ...pipeline.fill_in import fill_in_prompts, form_of
from ...pipeline.generation import Generation
from ...pipeline.prompts import completion_prompts, template_source
from ...pipeline.respond import respond
from ...pipeline.start import chat_generation, start
from ...pipeline.validate import validated
from ...service import Service, ServiceOf
from ...tools.plan import chosen_parsers
from ...wire.ollama import (
    Details,
    OllamaAnswer,
    OllamaChatRequest,
    OllamaEmbedding,
    OllamaEmbeddingRequest,
    OllamaEmbeddings,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaModel,
    OllamaModels,
    OllamaRequest,
    OllamaShown,
    OllamaShowRequest,
    OllamaVersion,
)
from ...wire.pooling import EmbeddingRequest
from ..embeddings import Embedded, embedded
from .request import (
    chat_request,
    completion_request,
    instruction_request,
    is_load,
    require_thinking,
    served_name,
)
from .writer import NOTHING, OllamaWriter, shaped

router = APIRouter()
ERRORS = ollama_errors_of(401, 408, 429, *OF_BODIES)
RESPONSES = LINES | ERRORS
FOREVER = "9999-12-31T23:59:59Z"  # the model is never unloaded
SIZES = ((10**9, "B"), (10**6, "M"), (10**3, "K"))


@router.post("/api/chat", responses=RESPONSES, openapi_extra=documented(OllamaChatRequest, OllamaAnswer))
async def chat(
    request: Request, body: Annotated[OllamaChatRequest, Depends(body_of(OllamaChatRequest))], service: ServiceOf
) -> Response:
    """Answer a conversation, as a stream unless `stream` is false."""
    served_name(service, body.model)
    if is_load(body):
        return _loaded(body, is_chat=True)
    asked, terms = await service.parsing.run_large(partial(chat_request, service, body))
    require_thinking(service, body, template_source(service.model, asked))
    with terms.applied():
        generation = await chat_generation(origin_of(request), asked, service, clips=True)
    return await _answer(request, generation, body, is_chat=True)


@router.post("/api/generate", responses=RESPONSES, openapi_extra=documented(OllamaGenerateRequest, OllamaAnswer))
async def generate(
    request: Request,
    body: Annotated[OllamaGenerateRequest, Depends(body_of(OllamaGenerateRequest))],
    service: ServiceOf,
) -> Response:
    """Answer one prompt, by the chat template unless `raw` is true."""
    served_name(service, body.model)
    if is_load(body):
        return _loaded(body, is_chat=False)
    return await _answer(request, await _generation(origin_of(request), body, service), body, is_chat=False)


async def _generation(origin: Origin, body: OllamaGenerateRequest, service: Service) -> Generation:
    """Return the generation of a prompt: of a chat, of a raw text, or of a gap before `suffix`. Raises RequestError."""
    model = service.model
    if not (body.raw or body.suffix) and model.template is not None:
        chat, terms = await service.parsing.run_large(partial(instruction_request, service, body))
        require_thinking(service, body, model.template.source)
        with terms.applied():
            return await chat_generation(origin, chat, service, clips=True)
    asked, terms = completion_request(service, body)
    with terms.applied():
        checked = validated(origin, asked, service, clips=True)
        given = [("prompt", body.prompt)]
        if body.suffix:
            prompts = await fill_in_prompts(model, given, body.suffix, True)
        else:
            prompts = await completion_prompts(model, given, True, checked.max_prompt_tokens)
        return await start(checked, prompts, asked.max_tokens)


async def _answer(request: Request, generation: Generation, body: OllamaRequest, is_chat: bool) -> Response:
    writer = OllamaWriter(generation, body.model, is_chat)
    return await respond(request.receive, writer, body.stream is not False, b"", LineStream)


def _loaded(body: OllamaRequest, is_chat: bool) -> Response:
    answer = shaped(body.model, is_chat, NOTHING, [], done_reason="load")
    return Response(answer.model_dump_json(), media_type="application/json")


@router.post("/api/embed", responses=ERRORS, openapi_extra=documented(OllamaEmbedRequest))
async def embed(
    request: Request, body: Annotated[OllamaEmbedRequest, Depends(body_of(OllamaEmbedRequest))], service: ServiceOf
) -> OllamaEmbeddings:
    """Encode texts, cut to what the model takes unless `truncate` is false."""
    begin = service.clock.now()
    cut = None if body.truncate is False else -1
    found = await _embedded(request, service, body.model, body.input, dimensions=body.dimensions, cut=cut)
    return OllamaEmbeddings(
        model=body.model,
        embeddings=[row.tolist() for row in found.rows],
        total_duration=int((service.clock.now() - begin) * 1e9),
        prompt_eval_count=found.make().usage.prompt_tokens,
    )


@router.post("/api/embeddings", responses=ERRORS, openapi_extra=documented(OllamaEmbeddingRequest))
async def embed_one(
    request: Request,
    body: Annotated[OllamaEmbeddingRequest, Depends(body_of(OllamaEmbeddingRequest))],
    service: ServiceOf,
) -> OllamaEmbedding:
    """Encode one text."""
    found = await _embedded(request, service, body.model, body.prompt, cut=-1)
    return OllamaEmbedding(embedding=found.rows[0].tolist())


async def _embedded(
    request: Request, service: Service, model: str, given: Any, cut: int | None, dimensions: int | None = None
) -> Embedded:
    body = EmbeddingRequest(
        model=served_name(service, model), input=given, truncate_prompt_tokens=cut, dimensions=dimensions
    )
    return await until_disconnect(request.receive, embedded(origin_of(request), body, service))


@router.get("/api/version")
async def version() -> OllamaVersion:
    """Return this server's version."""
    return OllamaVersion(version=__version__)


@router.get("/api/tags", responses=ollama_errors_of(401, 503))
async def tags(service: ServiceOf) -> OllamaModels:
    """List the names that requests may use."""
    return OllamaModels(models=[_listed(service, name) for name in _names(service)])


@router.get("/api/ps", responses=ollama_errors_of(401, 503))
async def running(service: ServiceOf) -> OllamaModels:
    """List the same names as loaded models."""
    info = service.model.info
    loaded = [
        _listed(service, name).model_copy(
            update={"expires_at": FOREVER, "size_vram": _size(service), "context_length": info.max_model_len}
        )
        for name in _names(service)
    ]
    return OllamaModels(models=loaded)


@router.post("/api/show", responses=ERRORS, openapi_extra=documented(OllamaShowRequest))
async def show(
    body: Annotated[OllamaShowRequest, Depends(body_of(OllamaShowRequest))], service: ServiceOf
) -> OllamaShown:
    """Return what the model is, and what it can do."""
    name, model = served_name(service, body.model or body.name), service.model
    template = model.template.source if model.template else ""
    facts = model.info.facts
    return OllamaShown(
        modelfile=f"FROM {name}",
        parameters="",
        template=template,
        details=_details(service),
        model_info={
            "general.architecture": facts.architecture,
            "general.parameter_count": facts.num_params,
            f"{facts.architecture}.context_length": model.info.max_model_len,
        },
        capabilities=_capabilities(service, template),
        modified_at=_created(service),
    )


def _names(service: Service) -> list[str]:
    return [*service.config.model_names, *service.adapters.names]


def _capabilities(service: Service, template: str) -> list[str]:
    model = service.model
    tools, reasoning = chosen_parsers(service.config, template)
    offered = {
        "completion": model.info.generates,
        "tools": model.info.generates and bool(template) and tools != "none",
        "thinking": reasoning != "none",
        "vision": model.info.reads_pictures,
        "insert": form_of(model.tokenizer) is not None,
        "embedding": model.info.pooling is not None and not model.info.pooling.labels,
    }
    return [name for name, is_offered in offered.items() if is_offered]


def _listed(service: Service, name: str) -> OllamaModel:
    return OllamaModel(
        name=name,
        model=name,
        modified_at=_created(service),
        size=_size(service),
        digest=service.model.info.facts.weights.sha256,
        details=_details(service),
    )


def _created(service: Service) -> str:
    return datetime.fromtimestamp(service.model.created, UTC).isoformat().replace("+00:00", "Z")


def _size(service: Service) -> int:
    return sum(core.used.get("weights", 0) for core in service.model.info.memory)


def _details(service: Service) -> Details:
    facts = service.model.info.facts
    return Details(
        format="gguf" if service.config.model_path.suffix == ".gguf" else "safetensors",
        family=facts.architecture,
        families=[facts.architecture],
        parameter_size=_count(facts.num_params),
        quantization_level=(facts.quantization or service.model.info.dtype).upper(),
    )


def _count(number: int) -> str:
    unit, name = next((pair for pair in SIZES if number >= pair[0]), (1, ""))
    return f"{number / unit:.1f}{name}"
