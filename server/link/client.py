"""The API's client of one engine through all its lives: it submits, delivers, notices a death and starts a successor.

It knows nothing of HTTP and runs on one event loop. A slow or absent reader costs memory for its own tokens only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence

from ..errors import EngineDead, PoisonRequest, RequestError
from ..kv_cache.events import Event
from ..types import Request
from .connection import Connection, Reply
from .engines import Engine
from .handle import Death, EngineHandle
from .journal import Journal, OpenSequence
from .messages import (
    Abort,
    AdapterCommand,
    AdapterReply,
    Add,
    BlockMap,
    Cached,
    EngineInfo,
    Failed,
    Input,
    LoadAdapter,
    Output,
    Progress,
    Ready,
    ReleaseMemory,
    ResetPrefixCache,
    Shutdown,
    Tokens,
    TraceReply,
    UnloadAdapter,
)
from .restarts import NO_HEALING, Healing, RestartBreaker
from .stream import TokenStream
from .succession import Succession
from .watchdog import Watchdog, watch

log = logging.getLogger("neuronserve.engine")


class EngineClient(Engine):
    """Client of one engine and, as far as `healing` allows, of its successors: open sequences wait for a successor.

    `info` is set once `start` has returned. `on_death` is called when the engine ends unasked.
    """

    journal: Journal

    def __init__(
        self, engine: EngineHandle, healing: Healing = NO_HEALING, on_death: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.engine, self._connection = engine, Connection(engine)
        self._healing, self.breaker, self.journal = healing, RestartBreaker(healing), Journal()
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._report_progress: Callable[[str], None] = lambda _: None
        self._end_reason = ""
        self.succession = Succession()
        self._on_death = on_death
        self.divides: Callable[[Request], bool] = lambda _: False  # whether another engine goes on after a first token
        self.hand_over: Callable[[OpenSequence], None] = lambda _: None  # called with each such sequence then
        self.publish: Callable[[list[Event]], None] = lambda _: None  # events of the prefix cache
        self._is_stopping = False
        self._is_restarting = False  # on request, not after a death
        self._has_ended = False  # this life of the engine
        self._tasks: set[asyncio.Task[None]] = set()
        self._loaded: list[tuple[str, str]] = []  # digests and paths of adapters loaded since the start
        self.info: EngineInfo | None = None

    @property
    def num_open(self) -> int:
        """Number of sequences that were submitted and have not ended."""
        return len(self.journal)

    async def start(self, report: Callable[[str], None]) -> EngineInfo:
        """Wait until the engine is ready; `report` gets its progress lines. Raises StartError with its message."""
        self._report_progress = report
        self._ready = asyncio.get_running_loop().create_future()
        self._connection.open(self._read, self._on_exit)
        info = await self._ready
        if self._healing.hang_timeout_s is not None and self.engine.process is not None:
            self._spawn(watch(self, self._healing.hang_timeout_s))
        if self._healing.keeps_spare and self.engine.process is not None:
            self._spawn(self.succession.keep(self))
        return info

    def submit(self, requests: Sequence[Request], stream: TokenStream | None = None) -> TokenStream:
        """Submit requests, whose ids must be new. Their events go to `stream`, or to a new one.

        Raises EngineDead.
        """
        self._require_alive()
        stream = stream or TokenStream([request.request_id for request in requests], self.abort)
        self.adopt([OpenSequence(request, stream) for request in requests])
        return stream

    def adopt(self, sequences: Iterable[OpenSequence]) -> None:
        """Compute sequences, new ones or those of another engine, as soon as the engine serves."""
        for sequence in sequences:
            sequence.hands_over = not sequence.token_ids and self.divides(sequence.request)
            self.journal.add(sequence)
        self._send_ready()

    def abort(self, request_id: str) -> None:
        """End a request in whatever state it is; unknown and ended ids are ignored."""
        sequence = self.journal.pop(request_id)
        if sequence is not None and sequence.is_sent and self._has_engine:
            self._send(Abort(request_id))
            self._send_ready()

    async def restart(self) -> None:
        """Replace the engine by a successor that reads the model's files anew; return once it serves or cannot.

        The successor loads beside this engine where memory allows, and otherwise after it. Raises EngineDead.
        """
        self._require_alive()
        if self.info is not None and self.engine.process is not None:
            await self.succession.renew(self.engine, self.info)
        self._is_restarting = True
        if self._has_engine:
            self.engine.end()
        while self._is_restarting and self.is_alive:
            await asyncio.sleep(Watchdog.PERIOD_S)

    def forget(self, command: ResetPrefixCache | ReleaseMemory) -> None:
        """Empty the prefix cache, or free more memory, before any later request. Raises EngineDead."""
        self._require_alive()
        if self._has_engine:  # a successor starts with an empty cache
            self._send(command)

    async def change_adapters(self, command: AdapterCommand) -> AdapterReply:
        """Load or unload an adapter, here and in successors. Raises EngineDead."""
        reply = await self.ask(command, AdapterReply)
        if isinstance(command, LoadAdapter) and reply.error is None:
            self._loaded.append((reply.digest, command.path))
        elif isinstance(command, UnloadAdapter):
            self._loaded = [each for each in self._loaded if each[0] != command.digest]
        return reply

    async def ask(self, command: Input, kind: type[Reply]) -> Reply:
        """Send a command and return the engine's reply, which has the given type. Raises EngineDead."""
        self._require_alive()
        if not self._has_engine:
            raise EngineDead("the engine is being restarted")
        reply = self._connection.expect(kind)
        self._send(command)
        return await reply

    def abort_all(self, error: RequestError, request_ids: Container[str] | None = None) -> None:
        """End every open request, or those of `request_ids`, with `error`."""
        for sequence in self.journal:
            if request_ids is None or sequence.request.request_id in request_ids:
                self.abort(sequence.request.request_id)
                sequence.stream.fail(error)

    async def stop(self, timeout_s: float) -> None:
        """Shut the engine down, and kill it after `timeout_s`; one that still loads is killed at once."""
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._has_engine and self.engine.is_alive:
            with contextlib.suppress(EngineDead):  # it has ended at this moment, and nobody noticed
                self._send(Shutdown())
                await asyncio.to_thread(self.engine.join, timeout_s)
        stopped = Death("the engine has been stopped", is_fault=False)
        self._connection.close(stopped.message)
        self._end(stopped)
        await asyncio.gather(asyncio.to_thread(self.engine.close), self.succession.close())

    @property
    def _has_engine(self) -> bool:
        return self.state in {"serving", "stalled"}

    def _send(self, command: Input) -> None:
        if not self._connection.send(command):
            silent = Death(f"{self.engine.name} does not answer", is_fault=True)
            self._end(self.engine.death() if self.engine.join() else silent)
            self._require_alive()

    def _send_ready(self) -> None:
        if self._has_engine:
            for sequence in self.journal.ready():
                if self._has_engine:  # sending may find it dead
                    self._send(Add(sequence.resumed))

    def _read(self) -> None:
        for output in self._connection.read():
            self._take(output)

    def _take(self, output: Output) -> None:
        match output:
            case Tokens():
                self._take_turn(output)
            case Cached(events=events):
                self.publish(events)
            case Progress(text=text):
                self._report_progress(text)
            case Ready(info=info):
                self.state, self._is_restarting = "serving", False
                if self.info is None:
                    self.info = info
                    if self._ready is not None and not self._ready.done():
                        self._ready.set_result(info)
                else:
                    for _, path in self._loaded:  # before any request that names one
                        self._connection.ignore(AdapterReply)
                        self._send(LoadAdapter(path))
                    log.warning("%s serves again; %d open sequences continue", self.engine.name, self.num_open)
                self._send_ready()
            case TraceReply() | AdapterReply() | BlockMap():
                self._connection.resolve(output)
            case Failed(message=message, exit_code=exit_code):
                self._end(Death(message, is_fault=True, exit_code=exit_code))

    def _take_turn(self, turn: Tokens) -> None:
        self.report = turn.report
        taken = self.journal.take_turn(turn)
        if self.journal.has_moved:
            turn = Tokens([event for _, event, _ in taken], turn.report, [charge for *_, charge in taken])
        for observer in self._observers:
            observer(turn)
        for each in self.journal.take_handed():  # before their readers have the token, and may abort them
            self.hand_over(each)
        for sequence, event, charge in taken:
            if sequence is not None:
                sequence.stream.put(event, charge)
        if self.journal.is_trying:
            self._send_ready()

    def _on_exit(self) -> None:
        """Read the last messages of the ended process, then handle its sequences."""
        self._read()
        self.engine.join()
        self._end(self.engine.death())

    def _end(self, death: Death) -> None:
        """Handle the end of the engine, once for each of its lives."""
        if self._has_ended:
            return
        self._has_ended = True
        self._connection.close(death.message)
        if self._is_stopping:
            self._give_up(death)
        elif self.info is not None:
            self._bury(death, self.info)
        else:
            self._give_up(death)
            if self._ready is not None and not self._ready.done():
                self._ready.set_exception(death.as_start_error())

    def _bury(self, death: Death, info: EngineInfo) -> None:
        """Plan a successor of an engine that served and has ended, or give up."""
        now, has_served = asyncio.get_running_loop().time(), self.report is not None
        for poisonous in self.journal.crashed(death.is_fault):
            poisonous.stream.fail(PoisonRequest(f"This request brought the engine down twice: {death.message}."))
        delay_s = 0.0 if self._is_restarting else self.breaker.delay_s(now, death.is_fault, has_served)
        self.state, self.report = "dead" if delay_s is None else "recovering", None
        self._on_death()  # other engines may take its sequences
        if delay_s is None:
            self.loss = death.message
            log.error("%s; %d open sequences end with an error", death.message, self.num_open)
            self._give_up(death)
        else:
            log.error("%s; restarting it, %d open sequences wait", death.message, self.num_open)
            self._spawn(self._succeed(delay_s, info, self.journal.trusts_cache and not death.is_oom))

    def _give_up(self, death: Death) -> None:
        self.state, self._end_reason = "dead", death.message
        for sequence in self.journal.clear():
            sequence.stream.fail(EngineDead(death.message))

    async def _succeed(self, delay_s: float, info: EngineInfo, inherits: bool) -> None:
        """Start the successor after a pause."""
        await asyncio.sleep(delay_s)
        self.engine = await self.succession.after(self.engine, info, inherits)
        self._connection, self._has_ended, self.report = Connection(self.engine), False, None
        self._connection.open(self._read, self._on_exit)

    def _require_alive(self) -> None:
        if self.state == "dead":
            raise EngineDead(self._end_reason)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
