"""POST /v1/embeddings: texts or token ids in, one vector for each out."""

from collections.abc import Callable
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from ...errors import InvalidRequest
from ...link.messages import PoolingFacts
from ...types import PoolingParams
from ..http.body import BodyOf
from ..http.event_stream import until_disconnect
from ..http.openapi import OF_BODIES, documented, errors_of
from ..http.origin import Origin, origin_of
from ..pipeline.pooling import Pooling, PoolingWork, require_kind, require_pooling
from ..pipeline.rows import Float32, encoded, row_response
from ..pipeline.texts import given_texts, tokenized
from ..service import Service, ServiceOf
from ..wire.pooling import EmbeddingItem, EmbeddingList, EmbeddingRequest

router = APIRouter()
RESPONSES = errors_of(401, 429, *OF_BODIES)


@router.post(
    "/v1/embeddings",
    responses=RESPONSES,
    openapi_extra=documented(EmbeddingRequest, EmbeddingList),
)
async def create_embeddings(request: Request, body: BodyOf[EmbeddingRequest], service: ServiceOf) -> Response:
    """Encode every text."""
    return await until_disconnect(request.receive, _embed(origin_of(request), body, service))


async def _embed(origin: Origin, body: EmbeddingRequest, service: Service) -> Response:
    return await row_response(*await embedded(origin, body, service))


class Embedded(NamedTuple):
    """Rows of a request's texts; `make` writes the answer, in a thread if there are many."""

    make: Callable[[], EmbeddingList]
    rows: list[Float32]
    facts: PoolingFacts


async def embedded(origin: Origin, body: EmbeddingRequest, service: Service) -> Embedded:
    """Encode every text. Raises RequestError."""
    name, facts = require_pooling(service, body.model)
    require_kind(service, is_classifier=False)
    params = embedding_params(body, facts)
    given = given_texts(body.input, service.model.sentences.prompt(body.prompt_name))
    texts = await tokenized(service.model, given, body.truncate_prompt_tokens, body.truncation_side)
    pooling = Pooling(service, origin, PoolingWork(texts, params, body.priority))
    rows = await pooling.rows()

    def make() -> EmbeddingList:
        items = [
            EmbeddingItem.model_construct(index=i, embedding=encoded(row, body.encoding_format))
            for i, row in enumerate(rows)
        ]
        return EmbeddingList.model_construct(data=items, model=name, usage=pooling.usage())

    return Embedded(make, rows, facts)


def embedding_params(body: EmbeddingRequest, facts: PoolingFacts) -> PoolingParams:
    """Return how embeddings are made. Raises InvalidRequest for more dimensions than the model has."""
    if body.dimensions is not None and body.dimensions > facts.size:
        raise InvalidRequest(f"dimensions is {body.dimensions}: an embedding has {facts.size}.", "dimensions")
    return PoolingParams(is_raw=body.normalize is False, dimensions=body.dimensions)
