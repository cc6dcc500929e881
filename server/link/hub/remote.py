"""The engines as one of several API processes sees them: behind the hub, which restarts them.

The class has the methods of `EngineGroups`. An engine's death is only a pause here, because the hub resumes sequences.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Any

import msgspec

from ...errors import EngineDead, RequestError
from ...types import Request
from ..engines import Engine, Engines
from ..groups import EngineGroups, merged
from ..journal import OpenSequence
from ..messages import (
    Abort,
    EngineInfo,
    Failed,
    ReleaseMemory,
    ResetPrefixCache,
    Tokens,
    TraceCommand,
    TraceReply,
)
from ..stream import TokenStream
from . import messages as m
from .wire import TO_WORKER, Wire

Handler = Callable[[bytes], Awaitable[bytes]]
TRACE_REPLIES = msgspec.msgpack.Decoder(list[TraceReply])


class RemoteEngine(Engine):
    """State of one engine as the hub last reported it."""

    journal: Sequence[OpenSequence] = ()  # the hub has it

    def __init__(self) -> None:
        super().__init__()
        self.num_open = 0  # sequences of all workers

    def show(self, shown: m.EngineShown) -> None:
        """Apply a report of the hub."""
        self.state, self.loss, self.num_open = shown.state, shown.loss, shown.num_open

    def take(self, turn: Tokens) -> None:
        """Record a turn of the engine, with this worker's events."""
        self.report = turn.report
        for observer in self._observers:
            observer(turn)


class RemoteEngines(Engines):
    """All engines of the server, and the other API processes, over one connection to the hub."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._wire = Wire(TO_WORKER, self._take, self._end)
        self.clients: tuple[RemoteEngine, ...] = (RemoteEngine(),)
        self._opened: asyncio.Future[Sequence[EngineInfo]] | None = None
        self._streams: dict[str, TokenStream] = {}  # of each open sequence
        self._num_elsewhere = 0
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # by number: futures of an Answered or Answers
        self._handlers: dict[str, Handler] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_open(self) -> int:
        """Number of sequences open at the engines; those of other workers with a delay."""
        return len(self._streams) + self._num_elsewhere

    async def connect(self) -> None:
        """Connect to the hub. Called once, before `start`."""
        self._opened = asyncio.get_running_loop().create_future()
        await self._wire.open(self._socket)

    async def start(self, report: Callable[[str], None]) -> EngineInfo:
        """Wait until all engines are ready. The hub's process reports their progress."""
        del report
        assert self._opened is not None
        self.infos = await self._opened
        return merged(self.infos)

    def serving(self) -> None:
        """Report that this process answers requests."""
        self._wire.send(m.Serving())

    def failed(self, message: str, exit_code: int) -> None:
        """Report why this process cannot start."""
        self._wire.send(Failed(message, exit_code))

    def submit(self, requests: Sequence[Request], rank: int | None = None, entry: bytes | None = None) -> TokenStream:
        """Submit requests, whose ids must be new. Raises EngineDead; refusals of the hub arrive by the stream.

        `entry` tells the hub's owner on what to decide whether to admit them.
        """
        stream = self._stream_of(requests)
        self._wire.send(m.Submit(list(requests), rank, entry))
        return stream

    async def enter(self, requests: Sequence[Request], rank: int | None, entry: bytes) -> TokenStream:
        """Submit requests and wait until they are admitted. Raises the hub's refusal."""
        number = next(self._numbers)
        with contextlib.ExitStack() as undo:
            stream = undo.enter_context(self._stream_of(requests))
            await self._reply_to(number, m.Submit(list(requests), rank, entry, number))
            undo.pop_all()
        return stream

    def abort(self, request_id: str) -> None:
        """End a request in any engine; unknown and ended ids are ignored."""
        if self._streams.pop(request_id, None) is not None:
            self._wire.send(Abort(request_id))

    def abort_all(self, error: RequestError, request_ids: Container[str] | None = None) -> None:
        """End every open request of this worker, or those of `request_ids`, with `error`."""
        for request_id, stream in list(self._streams.items()):
            if request_ids is None or request_id in request_ids:
                self.abort(request_id)
                stream.fail(error)

    def reset_prefix_cache(self) -> None:
        """Empty the prefix caches before any later request. Raises EngineDead when no engine lives."""
        self._command(ResetPrefixCache())

    def release_memory(self) -> None:
        """Free host memory that engines keep only to save work. Raises EngineDead when no engine lives."""
        self._command(ReleaseMemory())

    async def restart(self) -> None:
        """Begin to replace each engine by a successor; return before the hub has done it."""
        self._command(m.Restart())

    async def trace(self, command: TraceCommand) -> list[TraceReply]:
        """Start or stop recording in every living engine; return one reply for each. Raises EngineDead."""
        return TRACE_REPLIES.decode(await self.ask(m.TRACE, msgspec.msgpack.encode(command)))

    async def ask(self, name: str, body: bytes = b"") -> bytes:
        """Return the answer of the process that has the engines. Raises its RequestError."""
        number = next(self._numbers)
        answer: bytes = await self._reply_to(number, m.Ask(name, body, number))
        return answer

    def tell(self, name: str, body: bytes) -> None:
        """Send a message to the process that has the engines, without an answer."""
        self._wire.send(m.Ask(name, body))

    def handle(self, name: str, handler: Handler) -> None:
        """Answer calls of that name from other workers."""
        self._handlers[name] = handler

    async def call(self, name: str, body: bytes = b"", is_for_one: bool = False) -> list[bytes]:
        """Return the answers of the other processes to a call, without those that do not answer in time.

        A call that `is_for_one` ends with the first answer that is not empty.
        """
        number = next(self._numbers)
        bodies: list[bytes] = await self._reply_to(number, m.Call(number, name, body, is_for_one))
        return bodies

    async def stop(self, timeout_s: float) -> None:
        """Close the connection to the hub; the engines stay."""
        del timeout_s
        for task in self._tasks:
            task.cancel()
        self._wire.close()

    def _stream_of(self, requests: Sequence[Request]) -> TokenStream:
        if not self.is_alive:
            raise EngineDead(self.loss or "the engines have ended")
        stream = TokenStream([request.request_id for request in requests], self.abort)
        self._streams |= {request.request_id: stream for request in requests}
        return stream

    async def _reply_to(self, number: int, message: m.Submit | m.Ask | m.Call) -> Any:
        self._waiting[number] = reply = asyncio.get_running_loop().create_future()
        try:
            self._wire.send(message)
            return await reply
        finally:
            del self._waiting[number]

    def _command(self, message: ResetPrefixCache | ReleaseMemory | m.Restart) -> None:
        if not self.is_alive:
            raise EngineDead(self.loss or "the engines have ended")
        self._wire.send(message)

    def _take(self, message: m.ToWorker) -> None:
        match message:
            case m.Turn(rank=rank, tokens=tokens):
                self._take_turn(self.clients[rank], rank, tokens)
            case m.State(engines=engines, num_elsewhere=num_elsewhere):
                self._num_elsewhere = num_elsewhere
                for client, shown in zip(self.clients, engines, strict=True):
                    client.show(shown)
            case m.Refused(request_id=request_id):
                if (stream := self._streams.get(request_id)) is not None:
                    self._forget(stream)
                    stream.fail(message.raised.error)
            case m.Answered(number=number, body=body, raised=raised):
                self._resolve(number, body, raised)
            case m.Answers(number=number, bodies=bodies):
                self._resolve(number, bodies)
            case m.Called():
                self._spawn(self._answer(message))
            case m.Opened(infos=infos):
                self.clients = tuple(RemoteEngine() for _ in infos)
                assert self._opened is not None
                self._opened.set_result(infos)

    def _take_turn(self, client: RemoteEngine, rank: int, turn: Tokens) -> None:
        for event in turn.events:
            if (stream := self._streams.get(event.request_id)) is not None:
                stream.engines[event.request_id] = rank
        client.take(turn)
        for event, charge in turn.charged():
            stream = self._streams.get(event.request_id)
            if stream is not None:
                if event.finish_reason is not None:
                    del self._streams[event.request_id]
                stream.put(event, charge)

    def _forget(self, stream: TokenStream) -> None:
        """Forget the sequences of a stream, which the hub has ended."""
        self._streams = {name: each for name, each in self._streams.items() if each is not stream}

    def _resolve(self, number: int, result: object, raised: m.Raised | None = None) -> None:
        future = self._waiting.get(number)
        if future is None or future.done():
            return
        if raised is None:
            future.set_result(result)
        else:
            future.set_exception(raised.error)

    async def _answer(self, called: m.Called) -> None:
        handler = self._handlers.get(called.name)
        self._wire.send(m.Reply(called.number, b"" if handler is None else await handler(called.body)))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        """Exit, because the process with the engines has ended, and the server with it."""
        os._exit(1)


AnyEngines = EngineGroups | RemoteEngines
