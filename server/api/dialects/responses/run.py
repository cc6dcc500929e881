"""One response from its first token to its end: generated, written and stored."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Sequence

from ....errors import NotFound, StorageFull
from ...pipeline.generation import Generation
from ...pipeline.logprobs import TokenNames
from ...store.records import StoredResponse
from ...wire.response import Response
from ...wire.responses import InputItem, ResponsesRequest
from .conversation import ENCRYPTED, LOGPROBS
from .items import ItemIds, listed
from .records import add_items
from .tools import ChatTools
from .writer import ResponseWriter, Writing

log = logging.getLogger("neuronserve.api")


class ResponseRun:
    """Generation of one response; `frames` runs it once, and `response` grows meanwhile."""

    def __init__(
        self,
        generation: Generation,
        body: ResponsesRequest,
        response: Response,
        items: Sequence[InputItem],
        tools: ChatTools,
    ) -> None:
        """`items` are those of the request itself, without those before it."""
        ids = ItemIds(response.id)
        self.response = response
        self._service = service = generation.request.service
        caller = generation.request.origin.caller
        self._owner, self._sees = caller.name, caller.sees
        self._generation, self.journal = generation, generation.journal
        self._listed = listed(items, ids)
        self._items = json.dumps(self._listed, ensure_ascii=False).encode()
        include = body.include or ()
        names = TokenNames(service.model.tokenizer, False) if LOGPROBS in include else None
        has_reasoning = (body.model_extra or {}).get("include_reasoning") is not False
        reader = generation.request.plan.reader(generation.prompts[0].text, has_reasoning)
        writing = Writing(ids, tools.names, seals_reasoning=ENCRYPTED in include)
        self._writer = ResponseWriter(response, reader, names, writing)
        self._is_begun = False  # events have been sent

    def require_welcome(self) -> None:
        """Raise Overloaded or RateLimited if the response would end with that at once."""
        self._generation.require_welcome()

    async def finished(self) -> Response:
        """Return the whole response. Raises RequestError when it fails."""
        async with contextlib.aclosing(self._frames()) as frames:
            async for _ in frames:
                pass
        return self.response

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield events; a failure before the first output is raised, a later one is an event."""
        try:
            async with contextlib.aclosing(self._frames()) as frames:
                async for frame in frames:
                    yield frame
        except Exception as error:
            if not self._is_begun:
                raise
            self._writer.fail(error)
            await self.store()
            yield self._writer.last()

    def begin(self) -> list[bytes]:
        """Return the events before any output. From then on a failure is an event."""
        self._is_begun = True
        return list(self._writer.begin())

    async def store(self, is_required: bool = False) -> None:
        """Store the response as it is. A full disk leaves it unstored, or raises StorageFull if `is_required`."""
        if not self.response.store:
            return
        try:
            await self._service.store.responses.put(self._stored())
        except StorageFull as error:
            if is_required:
                raise
            log.warning("%s is not stored: %s", self.response.id, error)
            self.response.store = False

    async def cancel(self) -> None:
        """Store the output so far, when `frames` has been closed."""
        self._writer.cancel()
        await self.store()

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self._generation.deltas()) as batches:
            async for batch in batches:
                for entry in self.journal.take():
                    yield entry
                if not self._writer.is_started:
                    for frame in (*(() if self._is_begun else self.begin()), *self._writer.start()):
                        yield frame
                for delta in batch:
                    for frame in self._writer.write(delta):
                        yield frame
        for frame in self._writer.finish(self._generation.usage()):
            yield frame
        await self._add_to_conversation()
        await self.store()  # before the client knows the end, because it may refer to this response then
        yield self._writer.last()

    async def _add_to_conversation(self) -> None:
        """Add the items of the request and the output to the conversation, unless it has been deleted."""
        if self.response.conversation is None:
            return
        items = [*self._listed, *self.response.model_dump(mode="json")["output"]]
        try:
            await add_items(self._service.store.conversations, self.response.conversation.id, self._sees, items)
        except (NotFound, StorageFull) as error:
            log.warning("%s is not in its conversation: %s", self.response.id, error)

    def _stored(self) -> StoredResponse:
        response, body = self.response, self.response.model_dump_json().encode()
        return StoredResponse(
            id=response.id,
            created_at=float(response.created_at),
            used_at=time.time(),
            previous_id=response.previous_response_id,
            status=response.status,
            num_bytes=len(body) + len(self._items),
            body=body,
            input_items=self._items,
            owner=self._owner,
        )
