"""SageMaker's contract of containers for multi-model endpoints: load, list, describe, unload and invoke models.

SageMaker decides what is loaded: after a 507 it unloads another model, and asks again.
Source: docs.aws.amazon.com/sagemaker/latest/dg/mms-container-apis.html.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from urllib.parse import quote

import msgspec
from starlette.responses import JSONResponse, Response

from ..errors import (
    DeviceMemoryError,
    HostMemoryError,
    InvalidRequest,
    ModelNotFound,
    RequestError,
    StartError,
    StorageFull,
)
from ..placement.shared_cores import Account
from .asked import Asked
from .models import Model, Models

PATH = re.compile(r"/models(?:/(?P<name>[^/]+)(?P<invoke>/invoke)?)?")
Describe = Callable[[str, str], Account]  # of a name's path; raises StartError, takes seconds


class AlreadyLoaded(RequestError):
    """A model of this name is loaded."""

    status = 409
    code = "already_loaded"


class _Load(msgspec.Struct):
    model_name: str
    url: str


class MultiModelEndpoint:
    """Changes `Models` as SageMaker asks."""

    def __init__(self, models: Models, describe: Describe) -> None:
        self._models, self._describe = models, describe

    async def answer(self, request: Asked) -> Response | None:
        """Answer a command; None for other requests. One to invoke a model becomes one for /invocations."""
        found = PATH.fullmatch(request.path)
        if found is None:
            return None
        name, models = found["name"], self._models
        if name is not None and name not in models.by_name:
            raise ModelNotFound(f"The model {name[:200]!r} is not loaded.", "model_name")
        match request.method, name, found["invoke"]:
            case "POST", str(), str():
                request.path, request.target = "/invocations", f"/invocations?model={quote(name)}".encode()
                return None
            case "POST", None, _:
                return JSONResponse(_row(await self._load(request.body)))
            case "GET", None, _:
                return JSONResponse({"models": [_row(each) for each in models.by_name.values()]})
            case "GET", str(), None:
                return JSONResponse(_row(models.by_name[name]))
            case "DELETE", str(), None:
                await models.remove(model := models.by_name[name])
                return JSONResponse(_row(model))
        raise InvalidRequest(f"{request.method} is not possible for {request.path[:200]}.")

    async def _load(self, body: bytes) -> Model:
        """Load a model. Raises AlreadyLoaded, InvalidRequest, Unavailable, and StorageFull without room for it."""
        models = self._models
        try:
            asked = msgspec.json.decode(body, type=_Load)
            account = await asyncio.to_thread(self._describe, asked.model_name, asked.url)
            if asked.model_name in models.by_name:
                raise AlreadyLoaded(f"The model {asked.model_name[:200]!r} is loaded already.", "model_name")
            model = models.add((asked.model_name,), asked.url, account)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"The body needs model_name and url, both text: {error}.") from error
        except (DeviceMemoryError, HostMemoryError) as error:
            raise StorageFull(str(error), "url", "insufficient_memory") from error
        except StartError as error:
            raise InvalidRequest(f"The model cannot be loaded: {error}", "url") from error
        try:
            await models.until_loaded(model)
        except RequestError:
            await models.remove(model)
            raise
        return model


def _row(model: Model) -> dict[str, str]:
    return {"modelName": model.name, "modelUrl": model.path}
