"""The front of several models: each request goes to the model that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.responses import JSONResponse
from starlette.types import Scope, Send

from ..api.errors import ANTHROPIC_HEADER
from ..api.keys.guard import given_key, require
from ..api.keys.ring import KeyRing
from ..api.keys.use import Accounts
from ..clock import MonotonicClock
from . import sagemaker
from .asked import SAFE, Asked
from .exchange import Exchange
from .models import Models
from .proxy import nothing
from .server import HttpFront

CARDS, LOADED, ANTHROPIC, LOADING = "/v1/models/", "/api/ps", "anthropic", "/admin/models"
LISTS = ("/v1/models", "/models", CARDS, "/api/tags", LOADED)
OF_ONE = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")  # each loaded model gets operators' other commands
FOUND_BY_ID = re.compile(r"/v1/(responses/(?!compact$|input_tokens$)|conversations/).+")
INVOKED = re.compile(r"/models/([^/]+)/invoke")
_FORM_FIELD = re.compile(
    rb'\r\ncontent-disposition: *form-data; *name="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]*)', re.IGNORECASE
)


class ModelFront(HttpFront):
    """Front that chooses by model."""

    def __init__(self, models: Models, *args: Any) -> None:
        super().__init__(*args)
        self._models = models
        self._ring = KeyRing(models.keys, Accounts(MonotonicClock()))

    async def _answer(self, request: Asked, scope: Scope, send: Send) -> None:
        models, describe, path = self._models, self._models.describe, request.path
        name = _name_in(request)
        if describe is not None and (invoked := INVOKED.fullmatch(path)):
            name, request.path, request.target = invoked[1], "/invocations", b"/invocations"
        elif describe is not None and path.startswith("/models"):
            self._require_key(scope, LOADING)
            await JSONResponse(await sagemaker.answer(models, describe, request))(scope, nothing, send)
            return
        elif request.method == "GET" and (path in LISTS or path.startswith(CARDS)):
            self._require_key(scope, path)
            if (listed := await self._listed(request, name)) is not None:
                await JSONResponse(listed)(scope, nothing, send)
                return
        is_for_all = path == "/metrics" or (request.is_for_all and path not in OF_ONE)
        if is_for_all or (not name and FOUND_BY_ID.fullmatch(path)):  # in turn
            await super()._answer(request, scope, send)
            return
        is_fact = not name and request.method in SAFE and not request.is_stored
        model = models.loaded[0] if is_fact and models.loaded else models.named(name)
        if not model.is_loaded:
            self._require_key(scope, path)
        async with models.using(model):
            request.only = model.address.name
            await Exchange(self.fleet, self._metrics, request, scope, send).run()

    async def _listed(self, request: Asked, name: str) -> Mapping[str, Any] | None:
        """Return the rows of all models, or the one with a name: their own, and what is known of those not loaded."""
        anthropics = any(header == ANTHROPIC_HEADER.encode() for header, _ in request.headers)
        key, path = ("models", request.path) if request.path.startswith("/api/") else ("data", "/v1/models")
        rows = list[Mapping[str, Any]]()
        answers = await self._ask_all(replace(request, target=path.encode())) if self.fleet.up else []
        own = {each.replica: msgspec.json.decode(each.body)[key] for each in answers if each.status == 200}
        for model in self._models.by_name.values():
            rows += own.get(model.address.name, [])
            if model.address.name not in own and path != LOADED:
                rows += model.account.rows[ANTHROPIC if anthropics else path]
        if name:
            return next((row for row in rows if row["id"] == name), None)
        ends = {"has_more": False, "first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows and anthropics else {}
        return {"object": "list", key: rows, **ends}

    def _require_key(self, scope: Scope, path: str) -> None:
        """Raise Unauthorized or Forbidden for a caller that may not use a path: its model is not there to say so."""
        ring = self._ring
        if ring.has_keys and (ring.asks_clients or path == LOADING) and path not in self._models.keys.public_paths:
            require(ring.find(given_key(scope)), path)


def _name_in(request: Asked) -> str:
    """Return the model that a request names: in its path, its query or its body; "" for none."""
    if request.path.startswith(CARDS):
        return request.path.removeprefix(CARDS)
    if name := parse_qs(request.target.partition(b"?")[2].decode("latin-1")).get("model", [""])[-1]:
        return name
    field = None if request.body.startswith(b"{") else _FORM_FIELD.search(request.body)
    return request.prompt.model if field is None else field[1].decode("utf-8", "replace")
