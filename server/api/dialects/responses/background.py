"""Responses that run without a client: followed, cancelled, and awaited when the server ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from fastapi import Request

from ....errors import InvalidRequest
from .run import ResponseRun

MAX_REMEMBERED = 16  # streams that have ended and can still be followed


class _Running:
    """One running response, with its events so far if it is a stream."""

    def __init__(self, run: ResponseRun, is_stream: bool) -> None:
        self.run = run
        self.is_stream = is_stream
        self.frames = run.begin()
        self.is_done = False
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    async def generate(self) -> None:
        try:
            async with contextlib.aclosing(self.run.frames()) as frames:
                async for frame in frames:
                    if self.is_stream:
                        self.frames.append(frame)
                        self._wake()
        finally:
            self.is_done = True
            self._wake()

    async def follow(self, first: int) -> AsyncGenerator[bytes, None]:
        """Yield events from number `first` on, until the last."""
        while True:
            while first < len(self.frames):
                yield self.frames[first]
                first += 1
            if self.is_done:
                return
            await self._news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Background:
    """All responses that run in the background of one server, by id. Used on one event loop."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._ended: dict[str, _Running] = {}  # streams, oldest first

    async def start(self, run: ResponseRun, is_stream: bool) -> None:
        """Store the response as queued, and generate it from now on.

        Raises StorageFull, Overloaded and RateLimited: a client tries again after 429, but not after `failed`.
        """
        run.require_welcome()
        await run.store(is_required=True)
        running = _Running(run, is_stream)
        self._running[run.response.id] = running
        running.task = asyncio.create_task(running.generate())
        running.task.add_done_callback(lambda _: self._end(running))

    def get(self, response_id: str) -> ResponseRun | None:
        """Return a response that has not ended."""
        running = self._running.get(response_id)
        return None if running is None else running.run

    def follow(self, response_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """Yield events behind number `after`. Raises InvalidRequest if the stream is not kept."""
        running = self._stream(response_id)
        if running is None:
            raise not_streamed(response_id)
        return running.follow(after + 1)

    async def cancel(self, response_id: str) -> None:
        """Cancel a response if it runs."""
        running = self._running.get(response_id)
        if running is None or running.task is None:
            return
        running.task.cancel()
        await asyncio.wait({running.task})
        if running.task.cancelled():
            await running.run.cancel()

    async def close(self) -> None:
        """Wait until all responses have ended. They end when the engine stops answering."""
        tasks = [running.task for running in self._running.values() if running.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stream(self, response_id: str) -> _Running | None:
        running = self._running.get(response_id) or self._ended.get(response_id)
        return running if running is not None and running.is_stream else None

    def _end(self, running: _Running) -> None:
        response_id = running.run.response.id
        self._running.pop(response_id, None)
        if running.is_stream:
            self._ended[response_id] = running
            if len(self._ended) > MAX_REMEMBERED:
                del self._ended[next(iter(self._ended))]


def not_streamed(response_id: str) -> InvalidRequest:
    """Return the refusal of a response that has no stream."""
    return InvalidRequest(
        f"{response_id!r} cannot be streamed: it is no response in the background that was created with "
        f"stream, or none of the last {MAX_REMEMBERED} of them.",
        "stream",
    )


async def the_background(request: Request) -> Background:
    """Return the background of this application: a dependency of FastAPI."""
    background: Background = request.app.state.background
    return background
