"""/v1/responses/compact: a conversation in short, with a summary that the model writes."""

from __future__ import annotations

import time

from ...http.origin import Origin
from ...pipeline.respond import whole_answer
from ...pipeline.start import chat_generation
from ...service import Service
from ...wire.chat import ChatCompletion, ChatRequest
from ...wire.response import Compaction
from ...wire.responses import CompactRequest, InputItem
from ..chat import ChatWriter
from ..sealed import seal
from ..terms import Terms
from .conversation import NAMES, TOOL_NAMES, messages_of
from .history import items_for
from .items import ItemIds, listed, new_id
from .writer import response_usage

MAX_TOKENS = 2048  # in a summary
REQUEST = (
    "Summarize this conversation for a reader who will go on with it and has nothing else: what was asked, what was "
    "found and decided, results of tools that matter, and what is left to do. Write the summary alone."
)


async def compacted(origin: Origin, body: CompactRequest, service: Service) -> Compaction:
    """Return the messages of the user, and an item with the model's summary. Raises RequestError."""
    items = await items_for(body, service, origin.caller.sees)
    messages = messages_of(body, items.before, items.new)
    summary = {"role": "user", "content": REQUEST}
    request = ChatRequest.model_validate(
        {"model": body.model, "messages": [*messages.messages, summary], "max_completion_tokens": MAX_TOKENS}
    )
    compaction_id = new_id("resp")
    with Terms(NAMES, TOOL_NAMES, [*messages.params, "input"]).applied():
        generation = await chat_generation(origin, request, service, clips=True)
    answer = await whole_answer(ChatWriter(generation, request, compaction_id))
    assert isinstance(answer, ChatCompletion), "what the chat endpoint answers"
    text = answer.choices[0].message.content or ""
    kept = [item for item in (*items.before, *items.new) if item.type == "message" and item.role == "user"]
    kept.append(InputItem(type="compaction", encrypted_content=seal(text)))
    return Compaction(
        id=compaction_id,
        created_at=int(time.time()),
        output=listed(kept, ItemIds(compaction_id)),
        usage=response_usage(answer.usage, 0),
    )
