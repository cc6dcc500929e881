"""Input of a request as items to list: with ids, parts and a status, in OpenAI's shape."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ....errors import InvalidRequest
from ...http.chance import hex_digits
from ...store.records import StoredResponse
from ...wire.response import ItemList
from ...wire.responses import IMAGE, CompactRequest, InputItem, ItemPart, ResponsesRequest

PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
}
MAX_LISTED = 100
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{4,}")


def new_id(prefix: str) -> str:
    """Return a new id of a response or a conversation."""
    return f"{prefix}_{hex_digits()}"


class ItemIds:
    """Ids of the items of one response or conversation. Each contains the id of its owner, so that it can be found."""

    def __init__(self, owner_id: str, num_made: int = 0) -> None:
        self._owner = owner_id.partition("_")[2]
        self.num_made = num_made

    def new(self, kind: str) -> str:
        """Return the id of the next item of a type."""
        self.num_made += 1
        return f"{PREFIXES[kind]}_{self._owner}{self.num_made:04x}"


def owner_of(item_id: str) -> str | None:
    """Return the id of the item's response or conversation, without its prefix; None for an id that a client made."""
    found = _ITEM_ID.fullmatch(item_id)
    return None if found is None else found[1]


def own_items(body: ResponsesRequest | CompactRequest) -> list[InputItem]:
    """Return the items of one request."""
    if body.input is None:
        return []
    return [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input


def items_of(chain: Sequence[StoredResponse]) -> list[InputItem]:
    """Return inputs and outputs of stored responses, in their order."""
    found: list[Any] = []
    for each in chain:
        found += json.loads(each.input_items) + json.loads(each.body)["output"]
    return [InputItem.model_validate(item) for item in found]


def listed(items: Sequence[InputItem], ids: ItemIds) -> list[dict[str, Any]]:
    """Return items as they are stored and listed."""
    return [_listed(item, item.id or ids.new(item.type)) for item in items]


def page(items: Sequence[dict[str, Any]], after: str | None, limit: int, order: str) -> ItemList:
    """Return a part of a list of items. Raises InvalidRequest when `after` is not in the list."""
    items = items[::-1] if order == "desc" else items
    if after is not None:
        at = next((index for index, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            raise InvalidRequest(f"after is {after[:80]!r}, which is no item of the list.", "after")
        items = items[at + 1 :]
    return item_list(items[:limit], has_more=len(items) > limit)


def item_list(data: Sequence[dict[str, Any]], has_more: bool = False) -> ItemList:
    """Return items as an answer lists them."""
    ids = [item["id"] for item in data] or [""]
    return ItemList(data=list(data), first_id=ids[0], last_id=ids[-1], has_more=has_more)


def _listed(item: InputItem, item_id: str) -> dict[str, Any]:
    common: dict[str, Any] = {"type": item.type, "id": item_id}
    if item.type == "compaction":
        return common | {"encrypted_content": item.encrypted_content}
    common["status"] = "completed"
    if item.type == "message":
        return common | {"role": item.role, "content": _parts(item)}
    if item.type in ("function_call", "custom_tool_call"):
        named = {"call_id": item.call_id, "name": item.name} | ({"namespace": item.namespace} if item.namespace else {})
        return common | named | ({"input": item.input} if item.input is not None else {"arguments": item.arguments})
    if item.type in ("function_call_output", "custom_tool_call_output"):
        output = item.output
        parts = output if isinstance(output, str) else [_input_part(part) for part in output or ()]
        return common | {"call_id": item.call_id, "output": parts}
    content = item.content if isinstance(item.content, list) else []
    summary = [{"type": "summary_text", "text": part.text or ""} for part in item.summary or ()]
    texts = [{"type": "reasoning_text", "text": part.text or ""} for part in content]
    sealed = {"encrypted_content": item.encrypted_content} if item.encrypted_content else {}
    return common | {"summary": summary, "content": texts} | sealed


def _input_part(part: ItemPart) -> dict[str, Any]:
    """Return a part of an input; a picture is kept whole, so that later requests have it."""
    if part.type == IMAGE:
        detail = (part.model_extra or {}).get("detail") or "auto"
        return {"type": IMAGE, "image_url": part.image_url, "detail": detail}
    return {"type": "input_text", "text": part.text}


def _parts(item: InputItem) -> list[dict[str, Any]]:
    given = item.content or ""
    parts = [ItemPart(type="input_text", text=given)] if isinstance(given, str) else given
    if item.role != "assistant":
        return [_input_part(part) for part in parts]
    return [
        {"type": "refusal", "refusal": part.refusal}
        if part.type == "refusal"
        else {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
        for part in parts
    ]
