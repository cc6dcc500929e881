"""The ASGI application, composed of routes, error table and middleware."""

from __future__ import annotations

import re

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from .. import __version__
from . import errors
from .dialects import audio, chat, cohere, completions, embeddings, generate, pooling, rerank, sagemaker
from .dialects.llama import routes as llama
from .dialects.messages import batches as message_batches
from .dialects.messages import routes as messages
from .dialects.ollama import routes as ollama
from .dialects.responses import conversations
from .dialects.responses import routes as responses
from .dialects.responses.background import Background
from .endpoints import (
    admin,
    batches,
    docs,
    files,
    inventory,
    lora,
    models,
    render,
    status,
    tokenize,
    usage,
)
from .endpoints.admin import AbortRequest
from .endpoints.lora import LoadLoraAdapterRequest, UnloadLoraAdapterRequest
from .endpoints.tokenize import DetokenizeRequest, TokenizeRequest
from .http.body_limit import BodyLimit
from .http.cross_site import CrossSite
from .http.load_report import LoadReports, load_of
from .http.middleware import CloseWhileDraining, HeadAsGet, RequestIds
from .http.openapi import EVERYWHERE, Application, errors_of
from .http.resume import Resuming
from .keys.guard import Guard, needs_local, refusals
from .service import Service
from .telemetry.http_metrics import HttpObserver
from .wire.audio import Transcript, VerboseTranscript
from .wire.batches import BatchRequest
from .wire.chat import ChatCompletion, ChatRequest
from .wire.completions import Completion, CompletionRequest
from .wire.generate import GenerateAnswer, GenerateRequest
from .wire.llama import (
    ApplyTemplateRequest,
    InfillRequest,
    LlamaCompletion,
    LlamaCompletionRequest,
    LlamaEmbeddingRequest,
)
from .wire.message import MessageAnswer
from .wire.message_batches import MessageBatchRequest
from .wire.messages import CountTokensRequest, MessagesRequest
from .wire.ollama import (
    OllamaAnswer,
    OllamaChatRequest,
    OllamaEmbeddingRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from .wire.pooling import (
    ClassifyList,
    ClassifyRequest,
    CohereEmbedAnswer,
    CohereEmbedRequest,
    EmbeddingList,
    EmbeddingRequest,
    PoolingList,
    RerankAnswer,
    RerankRequest,
    ScoreList,
    ScoreRequest,
    TextPoolingRequest,
)
from .wire.response import Compaction, Response
from .wire.responses import (
    CompactRequest,
    ConversationRequest,
    ItemsRequest,
    MetadataRequest,
    ResponsesRequest,
)

RATE_LIMIT_HEADERS = [
    f"x-ratelimit-{name}-{kind}" for kind in ("requests", "tokens") for name in ("limit", "remaining", "reset")
]
GENERATING = (audio, chat, completions, responses, conversations, messages, llama, ollama, generate, sagemaker)
ENCODING = (embeddings, pooling, rerank, cohere)
ABOUT = (models, tokenize, render, status, admin, inventory, usage, docs)
MODULES = (*GENERATING, *ENCODING, *ABOUT, lora, files, batches, message_batches)
BODIES = (
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    CompactRequest,
    ConversationRequest,
    ItemsRequest,
    MetadataRequest,
    MessagesRequest,
    CountTokensRequest,
    MessageBatchRequest,
    BatchRequest,
    TokenizeRequest,
    DetokenizeRequest,
    LoadLoraAdapterRequest,
    UnloadLoraAdapterRequest,
    EmbeddingRequest,
    TextPoolingRequest,
    ClassifyRequest,
    ScoreRequest,
    RerankRequest,
    AbortRequest,
    LlamaCompletionRequest,
    InfillRequest,
    LlamaEmbeddingRequest,
    ApplyTemplateRequest,
    CohereEmbedRequest,
    GenerateRequest,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaEmbedRequest,
    OllamaEmbeddingRequest,
    OllamaShowRequest,
)

ANSWERS = (
    Transcript,
    VerboseTranscript,
    ChatCompletion,
    Completion,
    MessageAnswer,
    Response,
    Compaction,
    EmbeddingList,
    PoolingList,
    ClassifyList,
    ScoreList,
    RerankAnswer,
    LlamaCompletion,
    CohereEmbedAnswer,
    GenerateAnswer,
    OllamaAnswer,
)


def build_app(service: Service) -> FastAPI:
    """Build the ASGI application of one service."""
    app = Application(title="neuronserve", version=__version__, docs_url=None, redoc_url=None)
    app.bodies, app.answers = BODIES, ANSWERS
    app.refusals = refusals
    app.state.service = service
    app.state.background = Background()
    for module in MODULES:
        app.include_router(module.router, responses=errors_of(*EVERYWHERE))
    offered = sorted(path for path in _fixed_paths() if re.fullmatch("/v1/.*[^/]", path))
    errors.install(app, offered, [route for module in MODULES for route in module.router.routes])
    config = service.config
    # The last one added is the outermost: even a refusal has its request id, and CORS headers that a browser can read.
    for addition in config.additions:
        addition.mount(app, service)
    app.add_middleware(HeadAsGet)
    app.add_middleware(LoadReports, read=lambda: load_of(service.engine))
    uploads = {files.PATH: config.store.max_file_bytes + files.FORM_BYTES}
    uploads |= dict.fromkeys(audio.PATHS, config.media.max_audio_bytes + files.FORM_BYTES)
    app.add_middleware(Resuming, max_journal_bytes=config.max_body_bytes)
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes, of_paths=uploads, release=service.return_memory)
    app.add_middleware(Guard, ring=service.keys, public_paths=config.keys.public_paths)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.allowed_origins),
            allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", *RATE_LIMIT_HEADERS],
        )
    app.add_middleware(
        CrossSite,
        names=config.allowed_hosts,
        origins=config.allowed_origins,
        is_operators=lambda path: needs_local(service.keys, path),
    )
    app.add_middleware(CloseWhileDraining, is_draining=lambda: service.is_draining)
    app.add_middleware(RequestIds)
    app.add_middleware(HttpObserver, metrics=service.telemetry.http, paths=_fixed_paths())
    return app


def _fixed_paths() -> frozenset[str]:
    """Return the paths of the routes without parameters."""
    paths = {str(getattr(route, "path", "")) for module in MODULES for route in module.router.routes}
    return frozenset(path for path in paths if "{" not in path)
