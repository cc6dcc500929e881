"""The API's client of one engine: submits requests, delivers their events, notices the engine's end. No HTTP here.

Everything here runs on one asyncio event loop. A reader that is slow or away costs memory only for the tokens that
its own request may generate; the engine and the other requests never wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

import msgspec
import zmq

from server.errors import EngineDead, NeuronserveError, RequestError, StartError
from server.link.handle import EngineHandle
from server.link.messages import (
    Abort,
    Add,
    EngineInfo,
    Failed,
    Input,
    Output,
    Progress,
    Ready,
    ResetPrefixCache,
    Shutdown,
    Tokens,
    TraceCommand,
    TraceReply,
)
from server.types import Charge, Request, StepReport, TokenEvent

Observer = Callable[[Tokens], None]
log = logging.getLogger("neuronserve.engine")


class Stream:
    """Events of sequences that were submitted together. Leaving its `with` block aborts those that have not ended."""

    def __init__(self, request_ids: Iterable[str], abort: Callable[[str], None]) -> None:
        self._open = set(request_ids)
        self._abort = abort
        self._events: list[tuple[TokenEvent, Charge]] = []
        self._error: RequestError | None = None
        self._wake = asyncio.Event()
        self.engines: Mapping[str, int] = {}  # where each sequence is, when there are several engines

    @property
    def is_open(self) -> bool:
        """True while events are still to come or to be read."""
        return bool(self._open or self._events or self._error)

    async def next(self) -> list[tuple[TokenEvent, Charge]]:
        """All events since the last call, at least one, each with what its request had taken by then.

        Raises the error that ended the stream, if one did.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            await self._wake.wait()
            self._wake.clear()
        events, self._events = self._events, []
        return events

    def abort(self, request_id: str) -> None:
        """Abort one sequence; it has no events after this."""
        if request_id in self._open:
            self._open.discard(request_id)
            self._abort(request_id)

    def put(self, event: TokenEvent, charge: Charge) -> None:
        """Add an event and its charge (called by the client); ignored after an error."""
        if self._error is not None:
            return
        self._events.append((event, charge))
        if event.finish_reason is not None:
            self._open.discard(event.request_id)
        self._wake.set()

    def fail(self, error: RequestError) -> None:
        """End the stream with `error` after the events it already has (called by the client).

        Sequences that other engines still compute stay open until its `with` block is left, and are aborted then.
        """
        self._error = self._error or error
        self._wake.set()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for request_id in tuple(self._open):
            self.abort(request_id)


class EngineClient:
    """Client of one engine. `info` is set once `start` has returned."""

    def __init__(self, engine: EngineHandle, on_loss: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._streams: dict[str, Stream] = {}
        self._decoder = msgspec.msgpack.Decoder(Output)
        self._encoder = msgspec.msgpack.Encoder()
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._report_progress: Callable[[str], None] = lambda _: None
        self._end_reason: str | None = None
        self.loss: str | None = None  # why an engine that served has ended, unless it was stopped
        self._on_loss = on_loss
        self._is_stopping = False
        self._observers: list[Observer] = []
        self._pending_replies: deque[asyncio.Future[TraceReply]] = deque()  # in the order of the commands
        self.info: EngineInfo | None = None
        self.report: StepReport | None = None

    @property
    def is_alive(self) -> bool:
        """True while the engine can take requests, now or once it has loaded."""
        return self._end_reason is None

    @property
    def num_open(self) -> int:
        """Number of sequences that were submitted and have not ended here."""
        return len(self._streams)

    def observe(self, observer: Observer) -> None:
        """Call `observer` with every turn of the engine from now on, before the streams get it. It must be quick."""
        self._observers.append(observer)

    async def start(self, report: Callable[[str], None]) -> EngineInfo:
        """Wait until the engine is ready; `report` gets its progress lines. Raises StartError with its message."""
        loop = asyncio.get_running_loop()
        self._report_progress = report
        self._ready = loop.create_future()
        loop.add_reader(self._engine.outputs.fileno(), self._read)
        if self._engine.process is not None:
            loop.add_reader(self._engine.process.sentinel, self._on_exit)
        self._read()  # the socket signals changes only, and may have filled before
        self.info = await self._ready
        return self.info

    def submit(self, requests: Sequence[Request], stream: Stream | None = None) -> Stream:
        """Submit requests, whose ids must be new. Their events go to `stream`, or to a new one.

        Raises EngineDead.
        """
        self._require_alive()
        stream = stream or Stream([request.request_id for request in requests], self.abort)
        for request in requests:
            self._streams[request.request_id] = stream
        for request in requests:
            self._send(Add(request))
        return stream

    def abort(self, request_id: str) -> None:
        """End a request wherever it is; unknown and ended ids are ignored."""
        if self._streams.pop(request_id, None) is not None and self.is_alive:
            self._send(Abort(request_id))

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix before any request that is submitted from now on. Raises EngineDead."""
        self._require_alive()
        self._send(ResetPrefixCache())

    async def trace(self, command: TraceCommand) -> TraceReply:
        """Start or stop recording; the engine must have a trace directory. Raises EngineDead."""
        self._require_alive()
        reply: asyncio.Future[TraceReply] = asyncio.get_running_loop().create_future()
        self._pending_replies.append(reply)
        self._send(command)
        return await reply

    def abort_all(self, error: RequestError) -> None:
        """End every open request with `error`."""
        for request_id, stream in list(self._streams.items()):
            self.abort(request_id)
            stream.fail(error)

    async def stop(self, timeout_s: float) -> None:
        """Shut the engine down, and kill it after `timeout_s`; one that still loads is killed at once."""
        self._is_stopping = True
        if self.info is not None and self._engine.is_alive and self.is_alive:
            self._send(Shutdown())
            await asyncio.to_thread(self._engine.join, timeout_s)
        self._close_readers()
        self._end("the engine has been stopped")
        await asyncio.to_thread(self._engine.close)

    def _send(self, command: Input) -> None:
        try:
            self._engine.commands.send(self._encoder.encode(command), zmq.NOBLOCK)
        except zmq.Again:  # nobody is connected
            is_alive = self._engine.is_alive
            self._end(f"{self._engine.name} does not answer" if is_alive else self._engine.death())
            self._require_alive()

    def _read(self) -> None:
        while True:
            try:
                data = self._engine.outputs.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(self._decoder.decode(data))

    def _take(self, output: Output) -> None:
        match output:
            case Tokens(report=report):
                self.report = report
                for observer in self._observers:
                    observer(output)
                for event, charge in output.charged():
                    self._deliver(event, charge)
            case Progress(text=text):
                self._report_progress(text)
            case Ready(info=info):
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(info)
            case TraceReply():
                reply = self._pending_replies.popleft()
                if not reply.done():  # the caller may have been cancelled
                    reply.set_result(output)
            case Failed(message=message, exit_code=exit_code):
                self._end(message, exit_code)

    def _deliver(self, event: TokenEvent, charge: Charge) -> None:
        stream = self._streams.get(event.request_id)
        if stream is None:
            return  # aborted here while the event was on its way
        if event.finish_reason is not None:
            del self._streams[event.request_id]
        stream.put(event, charge)

    def _on_exit(self) -> None:
        """Read what the ended process still sent, then end every stream."""
        self._read()
        self._engine.join(1.0)  # its pipe closes an instant before its exit code is there
        self._close_readers()
        self._end(self._engine.death())

    def _end(self, message: str, exit_code: int = 1) -> None:
        if self._end_reason is not None:
            return
        self._end_reason = message
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(_start_error(message, exit_code))
        elif self.info is not None and not self._is_stopping:
            self.loss = message
            log.error("%s; %d open sequences end with an error", message, len(self._streams))
            self._on_loss()
        for reply in self._pending_replies:
            if not reply.done():
                reply.set_exception(EngineDead(message))
        streams, self._streams = set(self._streams.values()), {}
        for stream in streams:
            stream.fail(EngineDead(message))

    def _require_alive(self) -> None:
        if self._end_reason is not None:
            raise EngineDead(self._end_reason)

    def _close_readers(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._engine.outputs.closed:
            loop.remove_reader(self._engine.outputs.fileno())
        if self._engine.process is not None:
            loop.remove_reader(self._engine.process.sentinel)


def _start_error(message: str, exit_code: int) -> NeuronserveError:
    error = StartError(message)
    error.exit_code = exit_code
    return error
