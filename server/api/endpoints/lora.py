"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's formats: behind a flag, for operators.

A caller can make the server read any directory that the server's user can read. Where API keys are set, these endpoints
require one like all of /v1.
"""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from pydantic import ConfigDict, Field

from ...errors import InvalidRequest, UpdatesDisabled
from ..config import MAX_ADAPTER_NAME
from ..http.body import BodyOf
from ..http.openapi import OF_BODIES, TEXT, Responses, documented, errors_of
from ..service import Service, ServiceOf
from ..wire.model import WireModel

router = APIRouter()
TEXT_ANSWER: Responses = {200: {"content": {"text/plain": TEXT}}}
ANSWERS = TEXT_ANSWER | errors_of(401, 403, *OF_BODIES)


class LoadLoraAdapterRequest(WireModel):
    """An adapter to load: its model name, and a directory on the server's host."""

    model_config = ConfigDict(strict=True, extra="forbid")

    lora_name: str = Field(min_length=1, max_length=MAX_ADAPTER_NAME)
    lora_path: str = Field(min_length=1, max_length=4096)
    load_inplace: bool = False


class UnloadLoraAdapterRequest(WireModel):
    """An adapter to unload, by its model name."""

    model_config = ConfigDict(strict=True, extra="forbid")

    lora_name: str = Field(min_length=1, max_length=4096)
    lora_int_id: int | None = None  # sent by vLLM's clients, and ignored


@router.post(
    "/v1/load_lora_adapter",
    response_class=Response,  # errors are JSON
    responses=ANSWERS,
    openapi_extra=documented(LoadLoraAdapterRequest),
)
async def load_lora_adapter(body: BodyOf[LoadLoraAdapterRequest], service: ServiceOf) -> Response:
    """Load an adapter into every engine; requests may name it as their model afterwards."""
    _require_updates(service)
    if body.lora_name in service.config.model_names:
        raise InvalidRequest(f"{body.lora_name!r} is the name of the model itself.", "lora_name")
    await service.adapters.load(body.lora_name, body.lora_path, body.load_inplace)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post(
    "/v1/unload_lora_adapter",
    response_class=Response,  # errors are JSON
    responses=ANSWERS,
    openapi_extra=documented(UnloadLoraAdapterRequest),
)
async def unload_lora_adapter(body: BodyOf[UnloadLoraAdapterRequest], service: ServiceOf) -> Response:
    """Stop accepting requests for an adapter; open requests continue."""
    _require_updates(service)
    await service.adapters.unload(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _require_updates(service: Service) -> None:
    _ = service.model  # raises while it loads, drains or is dead
    if not service.config.allow_runtime_lora_updating:
        raise UpdatesDisabled("The adapters of this server are fixed: start it with --allow-runtime-lora-updating.")
