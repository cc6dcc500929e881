"""GET /v1/models and /v1/models/{id}: the one model, under each of its names."""

from __future__ import annotations

from fastapi import APIRouter

from server.api.schemas_response import ModelCard, ModelList
from server.api.service import Service, ServiceOf

router = APIRouter()


def _card(service: Service, name: str) -> ModelCard:
    model = service.model
    return ModelCard(id=name, created=model.created, max_model_len=model.info.max_model_len)


@router.get("/v1/models")
async def list_models(service: ServiceOf) -> ModelList:
    """All names this server answers to."""
    return ModelList(data=[_card(service, name) for name in service.config.model_names])


@router.get("/v1/models/{model_id:path}")
async def get_model(model_id: str, service: ServiceOf) -> ModelCard:
    """One of them; 404 for any other."""
    return _card(service, service.require_name(model_id))
