"""Requests to the server before a run: its model, version and inventory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from .errors import EndpointError
from .http_client import ConnectFailed, Disconnected, HttpClient, MalformedHttp
from .inventory import Inventory, read_inventory
from .openai_api import PATHS, error_text
from .specs import EndpointSpec

HELLO_TIMEOUT_S = 10.0


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    owned_by: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that has responded, with its model, version and, for neuronserve, its inventory."""

    http: HttpClient
    path: str
    model: str
    max_model_len: int | None
    server_version: str | None
    owned_by: str | None
    inventory: Inventory | None


async def meet(spec: EndpointSpec, api_key: str | None) -> Endpoint:
    """Request the server's model, version and inventory. Raises EndpointError if it is away or names no model."""
    headers = {
        "Accept": "text/event-stream, application/json",
        "User-Agent": "neuronserve-loadtests",
        "X-Neuronserve-Usage": "true",  # a server that implements it adds modelled device seconds to usage
    }
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    http = HttpClient(spec.base_url, headers)
    try:
        status, body = await _fetch(http, spec, "/v1/models")
        model = _find_model(spec, status, body)
        version_status, version_body = await _fetch(http, spec, "/version")
        inventory_status, inventory_body = await _fetch(http, spec, "/inventory")
    except BaseException:
        await http.close()
        raise
    return Endpoint(
        http=http,
        path=spec.endpoint or PATHS[spec.backend],
        model=model.id,
        max_model_len=model.max_model_len,
        server_version=_version(version_body) if version_status == 200 else None,
        owned_by=model.owned_by,
        inventory=read_inventory(inventory_body) if inventory_status == 200 else None,
    )


async def _fetch(http: HttpClient, spec: EndpointSpec, path: str) -> tuple[int, bytes]:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            return await http.fetch("GET", path)
    except TimeoutError as error:
        raise EndpointError(f"{spec.base_url} did not answer GET {path} in {HELLO_TIMEOUT_S:g} s") from error
    except ConnectFailed as error:
        raise EndpointError(f"{spec.base_url} cannot be reached: {error}") from error
    except (Disconnected, MalformedHttp, OSError) as error:
        raise EndpointError(f"{spec.base_url} answers GET {path} with no HTTP: {error}") from error


def _find_model(spec: EndpointSpec, status: int, body: bytes) -> _Model:
    models: list[_Model] = []
    if status == 200:
        try:
            models = msgspec.json.decode(body, type=_Models).data
        except msgspec.MsgspecError as error:
            raise EndpointError(f"{spec.base_url}/v1/models is no model list: {error}") from error
    if spec.model is not None:
        return next((model for model in models if model.id == spec.model), _Model(spec.model))
    if not models:
        found = f"answered {status}: {error_text(body)}" if status != 200 else "is empty"
        raise EndpointError(f"{spec.base_url}/v1/models {found}; say which model with --model")
    return models[0]


def _version(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=_Version).version
    except msgspec.MsgspecError:
        return None
