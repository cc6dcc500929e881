"""GET /v1/models and /v1/models/{id}: the one model, under each of its names, and its adapters."""

from typing import Literal

from fastapi import APIRouter
from pydantic import ConfigDict

from server.api.http.openapi import errors_of
from server.api.service import Service, ServiceOf
from server.api.wire.model import WireModel
from server.link.messages import EngineInfo

Task = Literal["generate", "embed", "classify", "score"]
router = APIRouter()


class ModelCard(WireModel):
    model_config = ConfigDict(protected_namespaces=())

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "neuronserve"
    max_model_len: int
    root: str  # the name of the model that answers, as vLLM has it
    parent: str | None = None  # of an adapter: the model it is for
    tasks: list[Task]
    dimensions: int | None = None  # of an embedding
    max_embedding_len: int | None = None  # tokens of a text to embed or to classify; max_model_len is for generating
    notice: str | None = None  # what a user of the embeddings should know of them


class ModelList(WireModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


@router.get(
    "/v1/models/", response_model_exclude_none=True, include_in_schema=False
)  # else it would be the model without a name
@router.get("/models", response_model_exclude_none=True, responses=errors_of(401, 503))
@router.get("/v1/models", response_model_exclude_none=True, responses=errors_of(401, 503))
async def list_models(service: ServiceOf) -> ModelList:
    """A card for each name that requests may use."""
    return ModelList(data=[_card(service, name) for name in (*service.config.model_names, *service.adapters.names)])


@router.get("/v1/models/{model_id:path}", response_model_exclude_none=True, responses=errors_of(401, 404, 503))
async def get_model(model_id: str, service: ServiceOf) -> ModelCard:
    """The card of one name; 404 for any that is not served."""
    return _card(service, service.require_name(model_id))


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
