"""GET /v1/models and /v1/models/{id}: the one model, under each of its names, and its adapters."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import ConfigDict

from ...errors import InvalidRequest
from ...link.messages import EngineInfo
from ..errors import ANTHROPIC_HEADER
from ..http.openapi import errors_of
from ..service import Service, ServiceOf
from ..wire.model import WireModel

Task = Literal["generate", "embed", "classify", "score"]
MAX_LISTED = 1000
router = APIRouter()


class ModelCard(WireModel):
    model_config = ConfigDict(protected_namespaces=())

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "neuronserve"
    max_model_len: int
    root: str  # the name of the answering model, as in vLLM
    parent: str | None = None  # of an adapter: the model it is for
    tasks: list[Task]
    dimensions: int | None = None  # of an embedding
    max_embedding_len: int | None = None  # tokens of a text to embed or classify; max_model_len is for generation
    notice: str | None = None  # caution about the embeddings


class AnthropicModel(WireModel):
    """A model as Anthropic's API lists it."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str  # RFC 3339
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    max_tokens: int


class AnthropicModelList(WireModel):
    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ModelList(WireModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


AnyList = ModelList | AnthropicModelList
AnyCard = ModelCard | AnthropicModel


@router.get(
    "/v1/models/", response_model=AnyList, response_model_exclude_none=True, include_in_schema=False
)  # else it would be the model without a name
@router.get("/models", response_model=AnyList, response_model_exclude_none=True, responses=errors_of(400, 401, 503))
@router.get("/v1/models", response_model=AnyList, response_model_exclude_none=True, responses=errors_of(400, 401, 503))
async def list_models(
    request: Request,
    service: ServiceOf,
    after_id: str | None = None,
    before_id: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = MAX_LISTED,
) -> AnyList:
    """A card for each name that requests may use; in Anthropic's format and in pages for Anthropic's clients."""
    names = [*service.config.model_names, *service.adapters.names]
    if ANTHROPIC_HEADER not in request.headers:
        return ModelList(data=[_card(service, name) for name in names])
    begin = _place(names, after_id, "after_id") + 1 if after_id is not None else 0
    end = _place(names, before_id, "before_id") if before_id is not None else len(names)
    shown = names[begin:end][-limit:] if before_id is not None else names[begin:end][:limit]
    first_id, last_id = (shown[0], shown[-1]) if shown else (None, None)
    data = [_anthropic(_card(service, name)) for name in shown]
    return AnthropicModelList(data=data, first_id=first_id, last_id=last_id, has_more=len(shown) < end - begin)


@router.get(
    "/v1/models/{model_id:path}",
    response_model=AnyCard,
    response_model_exclude_none=True,
    responses=errors_of(401, 404, 503),
)
async def get_model(model_id: str, request: Request, service: ServiceOf) -> AnyCard:
    """The card of one name; 404 for any that is not served."""
    card = _card(service, service.require_name(model_id))
    return _anthropic(card) if ANTHROPIC_HEADER in request.headers else card


def _place(names: list[str], name: str, param: str) -> int:
    if name not in names:
        raise InvalidRequest(f"{param} is {name[:80]!r}, which is not a model of this server.", param)
    return names.index(name)


def _anthropic(card: ModelCard) -> AnthropicModel:
    created_at = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
    most = card.max_model_len
    return AnthropicModel(
        id=card.id, display_name=card.id, created_at=created_at, max_input_tokens=most, max_tokens=most
    )


def _card(service: Service, name: str) -> ModelCard:
    model, adapter = service.model, service.adapters.get(name)
    info = model.info
    if adapter is not None:
        parent = service.config.model_names[0]
        return ModelCard(
            id=name,
            created=adapter.created,
            max_model_len=info.max_model_len,
            root=name,
            parent=parent,
            tasks=["generate"],
        )
    root = service.config.model_names[0]
    card = ModelCard(id=name, created=model.created, max_model_len=info.max_model_len, root=root, tasks=_tasks(info))
    if info.pooling is None:
        return card
    length = {"max_embedding_len": info.pooling.max_length}
    if info.pooling.labels:
        return card.model_copy(update=length)
    return card.model_copy(update=length | {"dimensions": info.pooling.size, "notice": info.pooling.notice or None})


def _tasks(info: EngineInfo) -> list[Task]:
    found: list[Task] = ["generate"] if info.generates else []
    if info.pooling is None:
        return found
    kind: Task = "classify" if info.pooling.labels else "embed"
    return [*found, kind] if len(info.pooling.labels) > 1 else [*found, kind, "score"]
