"""POST /v2/embed in Cohere's shapes: texts in, one vector for each out, in every type that is requested."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from ...errors import InvalidRequest
from ...types import PoolingParams, TokenizedText
from ..errors import unsupported
from ..http.body import BodyOf
from ..http.event_stream import until_disconnect
from ..http.openapi import OF_BODIES, documented, errors_of
from ..http.origin import Origin, origin_of
from ..pipeline.pooling import Pooling, PoolingWork, require_kind, require_pooling
from ..pipeline.rows import Float32, encoded, new_id, row_response
from ..pipeline.texts import Given, tokenized
from ..sentences import Sentences
from ..service import Service, ServiceOf
from ..wire.pooling import (
    ApiVersion,
    CohereEmbedAnswer,
    CohereEmbeddings,
    CohereEmbedMeta,
    CohereEmbedRequest,
    InputUnits,
)

router = APIRouter()
WHOLE = -1  # as many tokens as the model takes
SIGN = 1 << 7  # `binary` is `ubinary` minus this
# Cohere's types of input -> names that models have for the prompts.
PROMPTS = {
    "search_query": ("search_query", "query"),
    "search_document": ("search_document", "document", "passage"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}


@router.post(
    "/v2/embed",
    responses=errors_of(401, 429, *OF_BODIES),
    openapi_extra=documented(CohereEmbedRequest, CohereEmbedAnswer),
)
async def embed(request: Request, body: BodyOf[CohereEmbedRequest], service: ServiceOf) -> Response:
    """Encode every text."""
    return await until_disconnect(request.receive, _embed(origin_of(request), body, service))


async def _embed(origin: Origin, body: CohereEmbedRequest, service: Service) -> Response:
    _, facts = require_pooling(service, body.model)
    require_kind(service, is_classifier=False)
    for name in ("images", "inputs"):
        if (body.model_extra or {}).get(name):
            raise unsupported(name, " is not supported by this server: send texts.")
    dimensions, size = body.output_dimension, facts.size
    if dimensions is not None and dimensions > size:
        raise InvalidRequest(f"output_dimension is {dimensions}: an embedding has {size}.", "output_dimension")
    prefix = _prefix(service.model.sentences, body.input_type)
    given = [Given(f"texts[{i}]", prefix + text) for i, text in enumerate(body.texts)]
    texts = await _tokens(service, body, given, facts.max_length)
    pooling = Pooling(service, origin, PoolingWork(texts, PoolingParams(dimensions=dimensions), body.priority))
    rows = await pooling.rows()

    def make() -> CohereEmbedAnswer:
        units = InputUnits(input_tokens=pooling.usage().prompt_tokens)
        return CohereEmbedAnswer(
            id=new_id("embd"),
            embeddings=_by_type(rows, body.embedding_types or ["float"]),
            texts=body.texts,
            meta=CohereEmbedMeta(api_version=ApiVersion(version="2"), billed_units=units),
        )

    return await row_response(make, rows, facts)


async def _tokens(
    service: Service, body: CohereEmbedRequest, given: Sequence[Given], max_length: int
) -> list[TokenizedText]:
    """Return the tokens of each text; with `truncate` NONE one that is too long is refused."""
    limit = None if body.max_tokens is None or body.max_tokens >= max_length else body.max_tokens
    if body.truncate != "NONE":
        num_special = service.model.sentences.tokenizer.num_special
        if limit is not None and limit <= num_special:
            raise InvalidRequest(f"max_tokens is {limit}; it must be more than {num_special}.", "max_tokens")
        return await tokenized(service.model, given, limit or WHOLE, "left" if body.truncate == "START" else "right")
    texts = await tokenized(service.model, given, None)
    for each, text in zip(given, texts, strict=True):
        if limit is not None and len(text.token_ids) > limit:
            raise InvalidRequest(f"{each.param} has {len(text.token_ids)} tokens; max_tokens is {limit}.", each.param)
    return texts


def _prefix(sentences: Sentences, input_type: str | None) -> str:
    """Return the model's prompt for a type of input, "" for a model without prompts. Raises InvalidRequest."""
    if input_type is None:
        return sentences.prompt(None)
    known = sentences.prompt_names
    name = next((name for name in (*PROMPTS.get(input_type, ()), input_type) if name in known), None)
    if name is None and (known or input_type not in PROMPTS):
        names = ", ".join(known or PROMPTS)
        raise InvalidRequest(f"Unsupported input_type {input_type!r}: this model has {names}.", "input_type")
    return sentences.prompt(name)


def _by_type(rows: Sequence[Float32], types: Sequence[str]) -> CohereEmbeddings:
    found = CohereEmbeddings()
    if "float" in types:
        found.float = [[*row] for row in rows]
    if "base64" in types:
        found.base64 = [str(encoded(row, "base64")) for row in rows]
    if "binary" in types or "ubinary" in types:
        packed = [_packed(row) for row in rows]
        found.ubinary = packed if "ubinary" in types else None
        found.binary = [[byte - SIGN for byte in each] for each in packed] if "binary" in types else None
    return found


def _packed(row: Float32) -> list[int]:
    """Return one bit for each value, 1 unless it is negative. Raises InvalidRequest if a byte would not be full."""
    values = row.tolist()
    if len(values) % 8:
        raise InvalidRequest(
            f"embedding_types: binary embeddings have a multiple of 8 dimensions, not {len(values)}.", "embedding_types"
        )
    eights = (values[i : i + 8] for i in range(0, len(values), 8))
    return [sum((value >= 0) << (7 - bit) for bit, value in enumerate(eight)) for eight in eights]
