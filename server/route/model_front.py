"""The front of several models: each request goes to the model that it names. The models' servers answer lists."""

from __future__ import annotations

import contextlib
import re
import socket
from typing import NamedTuple
from urllib.parse import parse_qs

import msgspec
from starlette.types import Scope, Send

from ..api.dialects.ollama.request import TAG
from ..api.endpoints.models import SIBLINGS_HEADER, Sibling
from ..api.http.tls import Tls
from ..api.keys.guard import given_key, require
from ..api.keys.ring import KeyRing
from .asked import SAFE, Asked
from .config import RouteConfig
from .exchange import Exchange
from .fleet import Fleet
from .models import Model, Models
from .proxy import nothing
from .sagemaker import MultiModelEndpoint
from .server import HttpFront

CARDS = "/v1/models/"
LISTS = ("/v1/models", "/models", "/api/tags", "/api/ps")
# Commands of operators for one model; each loaded model gets the others.
OF_ONE = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
FOUND_BY_ID = re.compile(r"/v1/(responses/(?!compact$|input_tokens$)|conversations/).+")
_FORM_FIELD = re.compile(
    rb'\r\ncontent-disposition: *form-data; *name="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)', re.IGNORECASE
)


class Behind(NamedTuple):
    """What a front of models has behind it."""

    models: Models
    keys: KeyRing  # without which nothing is loaded
    endpoint: MultiModelEndpoint | None  # takes SageMaker's commands, where they are enabled


class _Body(msgspec.Struct):
    model: str = ""
    name: str = ""  # the model, in /api/show of older clients


class ModelFront(HttpFront):
    """Front that chooses by model."""

    def __init__(
        self, behind: Behind, config: RouteConfig, fleet: Fleet, listener: socket.socket, tls: Tls | None
    ) -> None:
        super().__init__(config, fleet, listener, tls)
        self._models, self._keys, self._endpoint = behind

    async def _answer(self, request: Asked, scope: Scope, send: Send) -> None:
        if self._endpoint is not None and request.path.startswith("/models"):
            if request.method != "GET" and not request.path.endswith("/invoke"):
                self._require_key(scope, "/admin/models")
            if (answer := await self._endpoint.answer(request)) is not None:
                await answer(scope, nothing, send)
                return
        name, path = _name_in(request), request.path
        is_of_any = FOUND_BY_ID.fullmatch(path) is not None and not name  # asked in turn
        if path == "/metrics" or is_of_any or (request.is_for_all and path not in OF_ONE):
            await super()._answer(request, scope, send)
            return
        model = self._chosen(name, request)
        if request.method == "GET" and path.startswith(LISTS):
            others = [each for each in self._models.by_name.values() if each is not model]
            siblings = [_sibling(each, alias) for each in others for alias in each.names]
            request.headers.insert(0, (SIBLINGS_HEADER.encode(), msgspec.json.encode(siblings)))
        if not model.is_loaded:
            self._require_key(scope, path)
        async with self._models.using(model):
            request.only = model.address.name
            await Exchange(self.fleet, self._metrics, request, scope, send).run()

    def _chosen(self, name: str, request: Asked) -> Model:
        """Return the model that a request is for; any that is loaded tells facts. Raises ModelNotFound."""
        models = self._models
        if request.path.startswith("/api/") and not any(name in each.names for each in models.by_name.values()):
            name = name.removesuffix(TAG)
        is_of_any = request.method in SAFE and not request.is_stored and (not name or request.path.startswith(CARDS))
        if not (is_of_any and models.loaded):
            return models.named(name)
        return model if name and (model := models.named(name)).is_loaded else models.loaded[0]

    def _require_key(self, scope: Scope, path: str) -> None:
        """Raise Unauthorized or Forbidden for a caller that may not use a path: its model is not there to say so."""
        if self._keys.asks_clients:
            require(self._keys.find(given_key(scope)), path)


def _name_in(request: Asked) -> str:
    """Return the model that a request names: in its path, its query or its body; "" for none."""
    if request.path.startswith(CARDS):
        return request.path.removeprefix(CARDS)
    if name := parse_qs(request.target.partition(b"?")[2].decode("latin-1")).get("model", [""])[-1]:
        return name
    kind = next((value for name, value in request.headers if name == b"content-type"), b"")
    if kind.startswith(b"multipart/"):
        field = _FORM_FIELD.search(request.body)
        return "" if field is None else field[1].decode("utf-8", "replace")
    body = _Body()
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # its model refuses it
        body = msgspec.json.decode(request.body, type=_Body)
    return body.model or (body.name if request.path == "/api/show" else "")


def _sibling(model: Model, name: str) -> Sibling:
    account = model.account
    size = sum(uses.get("weights", 0) for uses in account.cores)
    return Sibling(name, model.created, account.max_model_len, account.task, size, model.is_loaded)
