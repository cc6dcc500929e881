"""POST /rerank of Jina and Cohere, and /score of vLLM: how well pairs of texts belong together.

A cross-encoder, whose head has one label, reads each pair as one text. With any other model the score of a pair is the
cosine of the two embeddings.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter, Request, Response

from ...errors import InvalidRequest
from ...link.messages import PoolingFacts
from ..http.body import BodyOf
from ..http.event_stream import until_disconnect
from ..http.openapi import OF_BODIES, documented, errors_of
from ..http.origin import Origin, origin_of
from ..pipeline.pooling import Pooling, PoolingWork, require_kind, require_pooling
from ..pipeline.rows import Float32, cosine, new_id, row_response
from ..pipeline.texts import Given, tokenized
from ..service import Service, ServiceOf
from ..wire.pooling import (
    ApiVersion,
    Document,
    PoolingBody,
    RerankAnswer,
    RerankItem,
    RerankMeta,
    RerankRequest,
    ScoreItem,
    ScoreList,
    ScoreRequest,
    TeiAnswer,
    TeiItem,
)
from ..wire.usage import PoolingUsage

router = APIRouter()
RESPONSES = errors_of(401, 429, *OF_BODIES)
WHOLE = -1  # `truncate_prompt_tokens`: as many tokens as the model takes
Version = Literal["1", "2"]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two texts, each with the name of its field."""

    first: Given
    second: Given


@router.post("/score", responses=RESPONSES, openapi_extra=documented(ScoreRequest, ScoreList))
@router.post("/v1/score", responses=RESPONSES, openapi_extra=documented(ScoreRequest, ScoreList))
async def score(request: Request, body: BodyOf[ScoreRequest], service: ServiceOf) -> Response:
    """Score each pair: one text with many, or each text with the one at the same place."""
    return await until_disconnect(request.receive, _score(origin_of(request), body, service))


@router.post("/rerank", responses=RESPONSES, openapi_extra=documented(RerankRequest, RerankAnswer))
@router.post("/v1/rerank", responses=RESPONSES, openapi_extra=documented(RerankRequest, RerankAnswer))
async def rerank(request: Request, body: BodyOf[RerankRequest], service: ServiceOf) -> Response:
    """Sort the documents by how well they answer the query; the answer has their texts unless the request declines."""
    return await until_disconnect(request.receive, _rerank(origin_of(request), body, service, "1"))


@router.post("/v2/rerank", responses=RESPONSES, openapi_extra=documented(RerankRequest, RerankAnswer))
async def rerank_v2(request: Request, body: BodyOf[RerankRequest], service: ServiceOf) -> Response:
    """Sort the documents as Cohere's second version does: without their texts, unless the request wants them."""
    return await until_disconnect(request.receive, _rerank(origin_of(request), body, service, "2"))


async def _score(origin: Origin, body: ScoreRequest, service: Service) -> Response:
    name, facts = require_pooling(service, body.model)
    pairs = _pairs(_given(body.text_1, "text_1"), _given(body.text_2, "text_2"))
    scores, usage = await _Scorer(service, origin, body).scores(pairs, facts)

    def make() -> ScoreList:
        items = [ScoreItem(index=i, score=each) for i, each in enumerate(scores)]
        return ScoreList(id=new_id("score"), created=int(time.time()), model=name, data=items, usage=usage)

    return await row_response(make, (), facts)


async def _rerank(origin: Origin, body: RerankRequest, service: Service, version: Version) -> Response:
    name, facts = require_pooling(service, body.model)
    field, texts = _documents(body)
    read = texts
    if body.max_tokens_per_doc is not None:
        read = await asyncio.to_thread(service.model.sentences.tokenizer.beginnings, texts, body.max_tokens_per_doc)
    query = Given("query", body.query)
    pairs = [_Pair(query, Given(f"{field}[{i}]", text)) for i, text in enumerate(read)]
    scores, usage = await _Scorer(service, origin, body).scores(pairs, facts)
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))[: body.top_n]
    if body.texts is not None:
        shown = [TeiItem(index=i, score=scores[i], text=texts[i] if body.return_text else None) for i in order]
        return await row_response(lambda: TeiAnswer(shown), (), facts)
    has_texts = version == "1" if body.return_documents is None else body.return_documents

    def make() -> RerankAnswer:
        results = [
            RerankItem(index=i, relevance_score=scores[i], document=Document(text=texts[i]) if has_texts else None)
            for i in order
        ]
        meta = RerankMeta(api_version=ApiVersion(version=version))
        return RerankAnswer(id=new_id("rerank"), model=name, results=results, usage=usage, meta=meta)

    return await row_response(make, (), facts)


def _given(texts: str | list[str], param: str) -> list[Given]:
    if isinstance(texts, str):
        return [Given(param, texts)]
    return [Given(f"{param}[{i}]", text) for i, text in enumerate(texts)]


def _pairs(first: Sequence[Given], second: Sequence[Given]) -> list[_Pair]:
    if len(first) not in (1, len(second)):
        raise InvalidRequest(
            f"text_1 has {len(first)} texts and text_2 {len(second)}: one, or as many as text_2, are taken.", "text_1"
        )
    return [_Pair(first[i % len(first)], text) for i, text in enumerate(second)]


def _documents(body: RerankRequest) -> tuple[str, list[str]]:
    """Return the documents and the name of their field. Raises InvalidRequest unless one field has them."""
    if (body.documents is None) == (body.texts is None):
        raise InvalidRequest("Exactly one of documents and texts is required.", "documents")
    if body.texts is not None:
        return "texts", body.texts
    return "documents", [each if isinstance(each, str) else each.text for each in body.documents or ()]


class _Scorer:
    """Scores the pairs of one request."""

    def __init__(self, service: Service, origin: Origin, body: PoolingBody) -> None:
        self._service, self._origin, self._priority = service, origin, body.priority
        is_whole = body.truncate_prompt_tokens is None and isinstance(body, RerankRequest)
        self._truncate = WHOLE if is_whole else body.truncate_prompt_tokens
        self._side = body.truncation_side

    async def scores(self, pairs: Sequence[_Pair], facts: PoolingFacts) -> tuple[list[float], PoolingUsage]:
        """Return the score of each pair. Raises InvalidRequest for a model that has several classes."""
        if not facts.labels:
            return await self._compare(pairs)
        if len(facts.labels) > 1:
            require_kind(self._service, is_classifier=False)
        read = [Given(pair.second.param, (str(pair.first.text), str(pair.second.text))) for pair in pairs]
        rows, usage = await self._encode(read)
        return [float(row[0]) for row in rows], usage

    async def _compare(self, pairs: Sequence[_Pair]) -> tuple[list[float], PoolingUsage]:
        """Return cosines; a text that is in several pairs is encoded once."""
        prompt = self._service.model.sentences.prompt(None)
        texts = {each.text: each for pair in pairs for each in (pair.first, pair.second)}
        rows, usage = await self._encode([Given(each.param, prompt + str(text)) for text, each in texts.items()])
        found = dict(zip(texts, rows, strict=True))
        return [cosine(found[pair.first.text], found[pair.second.text]) for pair in pairs], usage

    async def _encode(self, given: Sequence[Given]) -> tuple[list[Float32], PoolingUsage]:
        texts = await tokenized(self._service.model, given, self._truncate, self._side)
        pooling = Pooling(self._service, self._origin, PoolingWork(texts, priority=self._priority))
        return await pooling.rows(), pooling.usage()
