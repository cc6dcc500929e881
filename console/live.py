"""One stream of records for all open pages: one turn a second, while a page is open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec

from ..server.api.http.event_stream import frame
from ..server.errors import EngineDead
from ..server.link.client import EngineClient
from ..server.link.messages import BlockMap, ReadBlocks
from .history import BIN_S, NUM_BINS
from .snapshot import NOT_SERVING, Recorder, blocks_record

PERIOD_S = 1.0
PATIENCE_S = 0.5  # for an engine in a long step
MAX_PENDING = 16  # pending records of a slow page after which its stream ends; the page then reconnects
Page = asyncio.Queue[bytes | None]  # None: the stream ends


class LiveStream:
    """Sends records to the open pages. Used on one event loop."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pages: set[Page] = set()
        self._turning: asyncio.Task[None] | None = None
        self._from_bin = self._num_ended = 0
        self._steps: list[int | None] = []  # the last step of each engine when its blocks were read
        self._last_blocks: bytes | None = None

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the frames of one page: the server and the last minute at once, then the news of each second."""
        recorder, page = self._recorder, Page()
        yield _frame(recorder.server())
        first_bin = int(recorder.service.clock.now() / BIN_S) - NUM_BINS
        yield _frame(recorder.live(first_bin, 0))
        if self._last_blocks is not None and self._pages:
            yield self._last_blocks
        self._pages.add(page)
        if self._turning is None or self._turning.done():
            self._turning = asyncio.create_task(self._turn_until_closed())
        try:
            while (data := await page.get()) is not None:
                yield data
        finally:
            self._pages.discard(page)
            if not self._pages and self._turning is not None:
                self._turning.cancel()
                self._turning = None

    async def _turn_until_closed(self) -> None:
        self._from_bin, self._num_ended = self._bin_now(), self._recorder.requests.num_ended
        self._steps, phase = [], self._recorder.service.phase
        while self._pages:
            await self._send_blocks()
            await asyncio.sleep(PERIOD_S)
            if phase != (phase := self._recorder.service.phase):
                self._send(_frame(self._recorder.server()))
            record = self._recorder.live(self._from_bin, self._num_ended)
            self._from_bin, self._num_ended = self._bin_now(), record["num_ended"]
            self._send(_frame(record))
            if phase == "draining":
                for page in self._pages:
                    page.put_nowait(None)
                return

    async def _send_blocks(self) -> None:
        """Send the map of blocks when steps were made since the last one."""
        service = self._recorder.service
        steps = [None if client.report is None else client.report.step_id for client in service.engine.clients]
        if steps == self._steps or service.phase in NOT_SERVING:
            return
        asking = (_read_blocks(client) for client in service.engine.clients)
        with contextlib.suppress(EngineDead, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                maps = await asyncio.gather(*asking)
            self._steps, self._last_blocks = steps, _frame(blocks_record(maps))
            self._send(self._last_blocks)

    def _bin_now(self) -> int:
        return int(self._recorder.service.clock.now() / BIN_S)

    def _send(self, data: bytes) -> None:
        for page in self._pages:
            if page.qsize() >= MAX_PENDING:
                _end(page)
            else:
                page.put_nowait(data)


async def _read_blocks(client: EngineClient) -> BlockMap:
    if not client.is_up:
        return BlockMap()
    return await client.ask(ReadBlocks(), BlockMap)


def _end(page: Page) -> None:
    while not page.empty():
        page.get_nowait()
    page.put_nowait(None)


def _frame(record: object) -> bytes:
    return frame(msgspec.json.encode(record))
