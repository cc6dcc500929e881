"""The input of a request as items that can be listed: with ids, parts and a status, as OpenAI lists them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from server.api.store.records import StoredResponse
from server.api.wire.response import ItemList
from server.api.wire.responses import InputItem, Part, ResponsesRequest
from server.errors import InvalidRequest

PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
MAX_LISTED = 100


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def own_items(body: ResponsesRequest) -> list[InputItem]:
    """The items of one request."""
    if body.input is None:
        return []
    return [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input


def items_of(chain: Sequence[StoredResponse]) -> list[InputItem]:
    """Inputs and outputs of stored responses, in the order in which they came."""
    found: list[Any] = []
    for each in chain:
        found += json.loads(each.input_items) + json.loads(each.body)["output"]
    return [InputItem.model_validate(item) for item in found]


def listed(items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """Items as they are stored and listed."""
    return [_listed(item) for item in items]


def page(stored: StoredResponse, after: str | None, limit: int, order: str) -> ItemList:
    """A part of the items of a response's input. Raises InvalidRequest when `after` is none of them."""
    items: list[dict[str, Any]] = json.loads(stored.input_items)
    if order == "desc":
        items.reverse()
    if after is not None:
        at = next((index for index, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            raise InvalidRequest(f"after is {after[:80]!r}, which is no item of this response.", "after")
        items = items[at + 1 :]
    data = items[:limit]
    ids = [item["id"] for item in data] or [""]
    return ItemList(data=data, first_id=ids[0], last_id=ids[-1], has_more=len(items) > limit)


def _listed(item: InputItem) -> dict[str, Any]:
    common: dict[str, Any] = {
        "type": item.type,
        "id": item.id or new_id(PREFIXES[item.type]),
        "status": "completed",
    }
    if item.type == "message":
        return common | {"role": item.role, "content": _parts(item)}
    if item.type == "function_call":
        return common | {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
    if item.type == "function_call_output":
        output = item.output
        parts = output if isinstance(output, str) else [{"type": "input_text", "text": p.text} for p in output or ()]
        return common | {"call_id": item.call_id, "output": parts}
    content = item.content if isinstance(item.content, list) else []
    summary = [{"type": "summary_text", "text": part.text or ""} for part in item.summary or ()]
    texts = [{"type": "reasoning_text", "text": part.text or ""} for part in content]
    return common | {"summary": summary, "content": texts}


def _parts(item: InputItem) -> list[dict[str, Any]]:
    given = item.content or ""
    parts = [Part(type="input_text", text=given)] if isinstance(given, str) else given
    if item.role != "assistant":
        return [{"type": "input_text", "text": part.text} for part in parts]
    return [
        {"type": "refusal", "refusal": part.refusal}
        if part.type == "refusal"
        else {"type": "output_text", "text": part.text, "annotations": []}
        for part in parts
    ]
