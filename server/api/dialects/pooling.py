"""POST /pooling and /classify in vLLM's shapes: rows of the model, states of tokens, or scores of classes."""

import time

from fastapi import APIRouter, Request, Response

from ...errors import InvalidRequest
from ...link.messages import PoolingFacts
from ...types import PoolingParams
from ..http.body import BodyOf
from ..http.event_stream import until_disconnect
from ..http.openapi import OF_BODIES, documented, errors_of
from ..http.origin import Origin, origin_of
from ..pipeline.pooling import Pooling, PoolingWork, require_kind, require_pooling
from ..pipeline.rows import Float32, encoded, new_id, row_response, rows_of
from ..pipeline.texts import given_texts, tokenized
from ..service import Service, ServiceOf
from ..wire.pooling import (
    ClassifyItem,
    ClassifyList,
    ClassifyRequest,
    InputBody,
    PoolingItem,
    PoolingList,
    TextPoolingRequest,
)
from .embeddings import embedding_params

router = APIRouter()
RESPONSES = errors_of(401, 429, *OF_BODIES)
MAX_TOKEN_WISE = 32  # texts in one answer that has a row for each token, as such answers are large


@router.post("/pooling", responses=RESPONSES, openapi_extra=documented(TextPoolingRequest, PoolingList))
async def create_pooling(request: Request, body: BodyOf[TextPoolingRequest], service: ServiceOf) -> Response:
    """Encode every text: embeddings, scores of classes, or the last state of each of its tokens."""
    return await until_disconnect(request.receive, _pool(origin_of(request), body, service))


@router.post("/classify", responses=RESPONSES, openapi_extra=documented(ClassifyRequest, ClassifyList))
async def classify(request: Request, body: BodyOf[ClassifyRequest], service: ServiceOf) -> Response:
    """Score the classes of each text, and name the best."""
    return await until_disconnect(request.receive, _classify(origin_of(request), body, service))


async def _pool(origin: Origin, body: TextPoolingRequest, service: Service) -> Response:
    name, facts = require_pooling(service, body.model)
    pooling = await _pooling(origin, body, service, _params(body, facts, service))
    rows = await pooling.rows()
    if body.task == "token_embed":
        rows = [rows_of(row, length) for row, length in zip(rows, pooling.lengths, strict=True)]

    def make() -> PoolingList:
        items = [
            PoolingItem.model_construct(index=i, data=encoded(row, body.encoding_format)) for i, row in enumerate(rows)
        ]
        return PoolingList.model_construct(
            id=new_id("pool"), created=int(time.time()), model=name, data=items, usage=pooling.usage()
        )

    return await row_response(make, rows, facts)


async def _classify(origin: Origin, body: ClassifyRequest, service: Service) -> Response:
    name, facts = require_pooling(service, body.model)
    require_kind(service, is_classifier=True)
    is_raw = False in (body.use_activation, body.activation)
    pooling = await _pooling(origin, body, service, PoolingParams(is_raw=is_raw))
    rows = await pooling.rows()

    def make() -> ClassifyList:
        items = [_class(i, row, facts) for i, row in enumerate(rows)]
        return ClassifyList(
            id=new_id("classify"), created=int(time.time()), model=name, data=items, usage=pooling.usage()
        )

    return await row_response(make, rows, facts)


async def _pooling(origin: Origin, body: InputBody, service: Service, params: PoolingParams) -> Pooling:
    given = given_texts(body.input, service.model.sentences.prompt(body.prompt_name))
    if params.is_token_wise and len(given) > MAX_TOKEN_WISE:
        what = f"input has {len(given)} texts; a request for the states of tokens may have {MAX_TOKEN_WISE}."
        raise InvalidRequest(what, "input")
    texts = await tokenized(service.model, given, body.truncate_prompt_tokens, body.truncation_side)
    return Pooling(service, origin, PoolingWork(texts, params, body.priority))


def _params(body: TextPoolingRequest, facts: PoolingFacts, service: Service) -> PoolingParams:
    """Return the kind of rows: by default embeddings, or the scores of a classifier."""
    is_raw = False in (body.use_activation, body.activation, body.normalize)
    if body.task == "token_embed":
        if body.dimensions is not None:
            raise InvalidRequest("dimensions is for embeddings of texts, not of tokens.", "dimensions")
        return PoolingParams(is_token_wise=True)
    if body.task is not None:
        require_kind(service, is_classifier=body.task == "classify")
    if not facts.labels:
        return embedding_params(body, facts)
    if body.dimensions is not None:
        raise InvalidRequest("dimensions is for embeddings: this model classifies.", "dimensions")
    return PoolingParams(is_raw=is_raw)


def _class(index: int, row: Float32, facts: PoolingFacts) -> ClassifyItem:
    label = facts.labels[max(range(len(row)), key=row.__getitem__)]
    return ClassifyItem(index=index, label=label, probs=row.tolist(), num_classes=len(row))
