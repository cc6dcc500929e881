"""The API's end of the engine: submits requests, hands out their events, notices death. Knows nothing of HTTP.

Everything here runs on one asyncio event loop. A reader that is slow or away costs memory only for the tokens that
its own request may generate; the engine and the other requests never wait for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

import msgspec
import zmq

from server.errors import EngineDead, NeuronserveError, RequestError, StartError
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
from server.link.process import EngineProcess
from server.types import Charge, Request, StepReport, TokenEvent

Observer = Callable[[Tokens], None]


class Stream:
    """The events of the sequences submitted together. Leaving its `with` block aborts those that have not ended."""

    def __init__(self, request_ids: Iterable[str], abort: Callable[[str], None]) -> None:
        self._open = set(request_ids)
        self._abort = abort
        self._events: list[tuple[TokenEvent, Charge]] = []
        self._error: RequestError | None = None
        self._wake = asyncio.Event()
        self.engines: Mapping[str, int] = {}  # where each sequence is, when there are several engines

    @property
    def is_open(self) -> bool:
        """Whether events are still to come or to be read."""
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
        """End one sequence; no more events of it will come."""
        if request_id in self._open:
            self._open.discard(request_id)
            self._abort(request_id)

    def put(self, event: TokenEvent, charge: Charge) -> None:
        """For the client: one more event; after an error there is none."""
        if self._error is not None:
            return
        self._events.append((event, charge))
        if event.finish_reason is not None:
            self._open.discard(event.request_id)
        self._wake.set()

    def fail(self, error: RequestError) -> None:
        """For the client: the stream ends with `error` after the events it already has.

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
    """Speaks with one engine. `info` is there once `start` has returned."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._streams: dict[str, Stream] = {}
        self._decoder = msgspec.msgpack.Decoder(Output)
        self._encoder = msgspec.msgpack.Encoder()
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._say: Callable[[str], None] = lambda _: None
        self._dead: str | None = None
        self._observers: list[Observer] = []
        self._asked: deque[asyncio.Future[TraceReply]] = deque()  # answers come in the order of the questions
        self.info: EngineInfo | None = None
        self.report: StepReport | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the engine is there to take requests, now or once it has loaded."""
        return self._dead is None

    @property
    def num_open(self) -> int:
        """Sequences waiting or running, as the API sees it."""
        return len(self._streams)

    def observe(self, observer: Observer) -> None:
        """Let `observer` see every turn of the engine from now on, before the streams do. It must be quick."""
        self._observers.append(observer)

    async def start(self, say: Callable[[str], None]) -> EngineInfo:
        """Wait until the engine is ready; `say` gets its progress lines. Raises StartError with the engine's words."""
        loop = asyncio.get_running_loop()
        self._say = say
        self._ready = loop.create_future()
        loop.add_reader(self._engine.outputs.fileno(), self._read)
        if self._engine.process is not None:
            loop.add_reader(self._engine.process.sentinel, self._on_exit)
        self._read()  # the socket signals changes only, and may have filled before
        self.info = await self._ready
        return self.info

    def submit(self, requests: Sequence[Request], stream: Stream | None = None) -> Stream:
        """Give the engine these requests; their ids must be new. `stream` takes their events, or a new one.

        Raises EngineDead.
        """
        self._require_life()
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
        self._require_life()
        self._send(ResetPrefixCache())

    async def trace(self, command: TraceCommand) -> TraceReply:
        """Start or stop recording, and what came of it. The engine must have a trace directory. Raises EngineDead."""
        self._require_life()
        answer: asyncio.Future[TraceReply] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self._send(command)
        return await answer

    def abort_all(self, error: RequestError) -> None:
        """End every open request with `error`."""
        for request_id, stream in list(self._streams.items()):
            self.abort(request_id)
            stream.fail(error)

    async def stop(self, timeout_s: float) -> None:
        """Ask the engine to end, wait up to `timeout_s`, then end it; one that still loads is ended at once."""
        if self.info is not None and self._engine.is_alive and self.is_alive:
            self._send(Shutdown())
            await asyncio.to_thread(self._engine.join, timeout_s)
        self._forget_sockets()
        self._die("the engine has been stopped")
        await asyncio.to_thread(self._engine.close)

    def _send(self, command: Input) -> None:
        try:
            self._engine.commands.send(self._encoder.encode(command), zmq.NOBLOCK)
        except zmq.Again:  # nobody is connected
            self._die("the engine process does not answer")
            self._require_life()

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
                    self._hand_out(event, charge)
            case Progress(text=text):
                self._say(text)
            case Ready(info=info):
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(info)
            case TraceReply():
                answer = self._asked.popleft()
                if not answer.done():  # whoever asked may have left
                    answer.set_result(output)
            case Failed(message=message, exit_code=exit_code):
                self._die(message, exit_code)

    def _hand_out(self, event: TokenEvent, charge: Charge) -> None:
        stream = self._streams.get(event.request_id)
        if stream is None:
            return  # aborted here while the event was on its way
        if event.finish_reason is not None:
            del self._streams[event.request_id]
        stream.put(event, charge)

    def _on_exit(self) -> None:
        """The process has ended: its last words first, then the end of every stream."""
        self._read()
        self._engine.join(1.0)  # its pipe closes an instant before its exit code is there
        code = self._engine.process.exitcode if self._engine.process is not None else None
        self._forget_sockets()
        self._die(f"the engine process has ended with exit code {code}")

    def _die(self, message: str, exit_code: int = 1) -> None:
        if self._dead is not None:
            return
        self._dead = message
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(_start_error(message, exit_code))
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(EngineDead(message))
        streams, self._streams = set(self._streams.values()), {}
        for stream in streams:
            stream.fail(EngineDead(message))

    def _require_life(self) -> None:
        if self._dead is not None:
            raise EngineDead(self._dead)

    def _forget_sockets(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._engine.outputs.closed:
            loop.remove_reader(self._engine.outputs.fileno())
        if self._engine.process is not None:
            loop.remove_reader(self._engine.process.sentinel)


def _start_error(message: str, exit_code: int) -> NeuronserveError:
    error = StartError(message)
    error.exit_code = exit_code
    return error
