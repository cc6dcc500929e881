"""POST /reset_prefix_cache: for whoever operates the server. Asks for a key where one is set."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from server.api.service import ServiceOf

router = APIRouter()


class Reset(BaseModel):
    success: bool


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(service: ServiceOf) -> Reset:
    """Forget every cached prefix; no request that comes after this answer finds one that was there before it."""
    service.reset_prefix_cache()
    return Reset(success=True)
