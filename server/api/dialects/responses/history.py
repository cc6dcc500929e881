"""Items of a request: its own, those of an earlier response or conversation, and those that it refers to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ....errors import InvalidRequest, NotFound
from ...service import Service
from ...store.store import Store
from ...wire.responses import REFERENCE, InputItem, ResponsesRequest
from .conversation import ItemsBody
from .items import items_of, own_items, owner_of
from .records import require_room

MAX_REFERRED = 1000  # responses that one request may refer to


@dataclass(frozen=True, slots=True)
class RequestItems:
    """Items of a request: those `before` it, and the `new` ones that it brings."""

    before: Sequence[InputItem]
    new: Sequence[InputItem]


async def items_for(body: ItemsBody, service: Service, sees: str | None) -> RequestItems:
    """Return the items of a request, with references replaced. Raises InvalidRequest, NotFound."""
    before: Sequence[InputItem] = ()
    conversation_id = body.conversation_id if isinstance(body, ResponsesRequest) else None
    if body.previous_response_id is not None:
        if conversation_id is not None:
            raise InvalidRequest("previous_response_id and conversation exclude each other.", "conversation")
        before = await _before(body.previous_response_id, service, sees)
    elif conversation_id is not None:
        stored = await service.store.conversations.get(conversation_id, sees, "conversation")
        require_room(stored, len(own_items(body)), "conversation")
        before = _read(json.loads(stored.items))
    return RequestItems(before, await _resolved(own_items(body), before, service.store, sees))


async def _before(response_id: str, service: Service, sees: str | None) -> list[InputItem]:
    chain = await service.store.responses.chain(response_id, sees, "previous_response_id")
    if chain[-1].status not in {"completed", "incomplete"}:
        raise InvalidRequest(
            f"The response {chain[-1].id!r} is {chain[-1].status}: nothing can follow it.", "previous_response_id"
        )
    return items_of(chain)


async def _resolved(
    items: Sequence[InputItem], before: Sequence[InputItem], store: Store, sees: str | None
) -> list[InputItem]:
    """Replace references by the items that they name."""
    known = _by_id(before)
    owners: set[str] = set()
    found = []
    for index, item in enumerate(items):
        if item.type != REFERENCE:
            found.append(item)
            continue
        param = f"input[{index}].id"
        if item.id is None:
            raise InvalidRequest(f"{param} is required.", param)
        owner = owner_of(item.id)
        if item.id not in known and owner is not None and owner not in owners:
            if len(owners) == MAX_REFERRED:
                raise InvalidRequest(f"input refers to items of more than {MAX_REFERRED} responses.", "input")
            owners.add(owner)
            known |= _by_id(await _items_of(owner, store, sees))
        if item.id not in known:
            raise NotFound(
                f"There is no item {item.id[:80]!r}. Items of responses with store false are not kept.", param
            )
        found.append(known[item.id])
    return found


async def _items_of(owner: str, store: Store, sees: str | None) -> list[InputItem]:
    """Return all items of the response or the conversation with this id; none if it does not exist."""
    try:
        return items_of([await store.responses.require(f"resp_{owner}", sees)])
    except NotFound:
        pass
    try:
        return _read(json.loads((await store.conversations.get(f"conv_{owner}", sees)).items))
    except NotFound:
        return []


def _read(items: Sequence[object]) -> list[InputItem]:
    return [InputItem.model_validate(item) for item in items]


def _by_id(items: Sequence[InputItem]) -> dict[str, InputItem]:
    return {item.id: item for item in items if item.id is not None}
