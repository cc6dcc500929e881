"""/v1/conversations: items that are stored from one response to the next."""

import json
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from ....errors import NotFound
from ...http.body import BodyOf
from ...http.openapi import OF_BODIES, documented, errors_of
from ...http.origin import CallerOf
from ...service import ServiceOf
from ...store.records import StoredConversation
from ...wire.response import ConversationObject, DeletedConversation, ItemList
from ...wire.responses import ConversationRequest, ItemsRequest, MetadataRequest
from .items import MAX_LISTED, item_list, page
from .records import add_new_items, encoded, new_conversation

router = APIRouter()
STORED = errors_of(400, 401, 404, 507)
CHANGED = errors_of(401, 404, 507, *OF_BODIES)


@router.post(
    "/v1/conversations", responses=errors_of(401, 507, *OF_BODIES), openapi_extra=documented(ConversationRequest)
)
async def create_conversation(
    body: BodyOf[ConversationRequest], service: ServiceOf, caller: CallerOf
) -> ConversationObject:
    """Create a conversation, with or without items."""
    made = new_conversation(body.metadata, body.items or (), caller.name)
    await service.store.conversations.create(made)
    return _object(made)


@router.get("/v1/conversations/{conversation_id}", responses=STORED)
async def get_conversation(conversation_id: str, service: ServiceOf, caller: CallerOf) -> ConversationObject:
    """Return a conversation without its items."""
    return _object(await service.store.conversations.get(conversation_id, caller.sees))


@router.post("/v1/conversations/{conversation_id}", responses=CHANGED, openapi_extra=documented(MetadataRequest))
async def update_conversation(
    conversation_id: str, body: BodyOf[MetadataRequest], service: ServiceOf, caller: CallerOf
) -> ConversationObject:
    """Replace the metadata."""
    metadata = encoded(body.metadata or {})
    store = service.store.conversations
    return _object(await store.update(conversation_id, caller.sees, lambda stored: replace(stored, metadata=metadata)))


@router.delete("/v1/conversations/{conversation_id}", responses=STORED)
async def delete_conversation(conversation_id: str, service: ServiceOf, caller: CallerOf) -> DeletedConversation:
    """Delete a conversation; responses that were made in it stay."""
    await service.store.conversations.delete(conversation_id, caller.sees)
    return DeletedConversation(id=conversation_id)


@router.post("/v1/conversations/{conversation_id}/items", responses=CHANGED, openapi_extra=documented(ItemsRequest))
async def create_items(
    conversation_id: str, body: BodyOf[ItemsRequest], service: ServiceOf, caller: CallerOf
) -> ItemList:
    """Add items at the end."""
    return item_list(await add_new_items(service.store.conversations, conversation_id, caller.sees, body.items))


@router.get("/v1/conversations/{conversation_id}/items", responses=STORED)
async def list_items(
    conversation_id: str,
    service: ServiceOf,
    caller: CallerOf,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> ItemList:
    """List the items of a conversation."""
    stored = await service.store.conversations.get(conversation_id, caller.sees)
    return page(json.loads(stored.items), after, limit, order)


@router.get("/v1/conversations/{conversation_id}/items/{item_id}", responses=STORED)
async def get_item(conversation_id: str, item_id: str, service: ServiceOf, caller: CallerOf) -> dict[str, Any]:
    """Return one item."""
    stored = await service.store.conversations.get(conversation_id, caller.sees)
    return _item(json.loads(stored.items), item_id)


@router.delete("/v1/conversations/{conversation_id}/items/{item_id}", responses=STORED)
async def delete_item(conversation_id: str, item_id: str, service: ServiceOf, caller: CallerOf) -> ConversationObject:
    """Delete one item."""

    def without(stored: StoredConversation) -> StoredConversation:
        items: list[dict[str, Any]] = json.loads(stored.items)
        items.remove(_item(items, item_id))
        return replace(stored, items=encoded(items))

    return _object(await service.store.conversations.update(conversation_id, caller.sees, without))


def _item(items: list[dict[str, Any]], item_id: str) -> dict[str, Any]:
    found = next((item for item in items if item["id"] == item_id), None)
    if found is None:
        raise NotFound(f"There is no item {item_id[:80]!r} in this conversation.", "item_id")
    return found


def _object(stored: StoredConversation) -> ConversationObject:
    return ConversationObject(id=stored.id, created_at=int(stored.created_at), metadata=json.loads(stored.metadata))
