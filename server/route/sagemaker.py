"""SageMaker's contract for multi-model endpoints (docs.aws.amazon.com/sagemaker/latest/dg/mms-container-apis.html).

SageMaker decides what is loaded: after a 507 it unloads another model, and asks again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ..errors import Conflict, DeviceMemoryError, HostMemoryError, InvalidRequest, StartError, StorageFull, Unavailable
from .asked import Asked
from .models import Describe, Model, Models


class _Load(msgspec.Struct):
    model_name: str
    url: str


async def answer(models: Models, describe: Describe, request: Asked) -> dict[str, Any]:
    """Return the answer of a command. Raises RequestError."""
    name = request.path.removeprefix("/models").strip("/")
    shown, is_list = list(models.by_name.values()), not name and request.method == "GET"
    if not is_list:
        shown = [models.named(name) if name else await _load(models, describe, request.body)]
    rows = [{"modelName": each.name, "modelUrl": each.path} for each in shown]
    if request.method == "DELETE":
        await models.remove(shown[0])
    return {"models": rows} if is_list else rows[0]


async def _load(models: Models, describe: Describe, body: bytes) -> Model:
    """Load a model. Raises Conflict, InvalidRequest, Unavailable, and StorageFull without room for it."""
    try:
        asked = msgspec.json.decode(body, type=_Load)
        async with models.adding:
            if asked.model_name in models.by_name:
                raise Conflict(f"The model {asked.model_name[:200]!r} is loaded.", "model_name", "already_loaded")
            account = await asyncio.to_thread(describe, asked.model_name, asked.url)
            if models.room.enter(asked.model_name, account, ()) is None:
                raise DeviceMemoryError(f"There is no room for {asked.model_name[:200]!r}: {models.room.report()}")
            model = models.add((asked.model_name,), asked.url, account)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body needs model_name and url, both text: {error}.") from error
    except (DeviceMemoryError, HostMemoryError) as error:
        raise StorageFull(str(error), "url", "insufficient_memory") from error
    except StartError as error:
        raise InvalidRequest(f"The model cannot be loaded: {error}", "url") from error
    try:
        await models.until_loaded(model)
    except Unavailable:
        await models.remove(model)
        raise
    return model
