"""The engines' side of several API processes: one session for each worker, over one `EngineGroups`.

For a worker the hub is the engines: it submits and aborts, forwards events, and ends the sequences of a dead worker. It
also carries questions from one worker to the others, and to the process that has the engines (`offer`). It knows
nothing of HTTP or of how workers start.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial

import msgspec

from ...errors import EngineDead, QueueFull, RequestError
from ...scheduler.admission import check_queue
from ...types import Charge, Request, TokenEvent
from ..groups import EngineGroups
from ..messages import Abort, Failed, ReleaseMemory, ResetPrefixCache, Tokens, TraceCommand
from ..stream import TokenStream
from . import messages as m
from .questions import Calls, Offer, Offers, answer
from .wire import TO_HUB, Wire

STATE_PERIOD_S = 0.1  # between two looks at engine states that workers should know
MAX_UNSENT_BYTES = 64 * 2**20  # pending for one worker; beyond that it counts as stopped
# Answer to a caller: from the call's name, the bodies by worker (the caller's own included), and the caller's number.
Conclude = Callable[[str, Mapping[int, bytes], int], list[bytes]]
# Admits a worker's requests, for one engine or any, with their entry. Raises RequestError.
Admit = Callable[[int, Sequence[Request], int | None, bytes], None]
_ENCODER = msgspec.msgpack.Encoder()
_TRACE_COMMAND: msgspec.msgpack.Decoder[TraceCommand] = msgspec.msgpack.Decoder(TraceCommand)


def _admit_all(number: int, requests: Sequence[Request], rank: int | None, entry: bytes) -> None:
    """Admit every request."""


class Session:
    """Connection of one life of a worker. `number` is never used again."""

    def __init__(self, number: int, hub: Hub, on_hang: Callable[[], None]) -> None:
        """`on_hang` is called when the worker does not read any more."""
        self.number = number
        self.wire = Wire(TO_HUB, partial(hub.take, self), partial(hub.ended, self))
        self.on_hang = on_hang
        self.open: dict[str, _Relay] = {}  # its sequences
        self.serving, self.ended = asyncio.Event(), asyncio.Event()
        self.failure: Failed | None = None
        self.shown: m.State | None = None  # sent last

    def send(self, message: m.ToWorker) -> None:
        """Send a message, unless too many are pending."""
        if self.wire.num_unsent_bytes > MAX_UNSENT_BYTES:
            self.on_hang()
        else:
            self.wire.send(message)


class _Relay(TokenStream):
    """Stream of requests that came together. Turns carry the events, so only the final error passes here."""

    def __init__(self, request_ids: list[str], abort: Callable[[str], None], fail: Callable[[RequestError], None]):
        super().__init__(request_ids, abort)
        self._fail = fail

    def put(self, event: TokenEvent, charge: Charge) -> None:
        """Do nothing: the turn has been forwarded."""

    def fail(self, error: RequestError) -> None:
        self._fail(error)


class Hub:
    """The sessions of all workers. Used on one event loop."""

    def __init__(self, engines: EngineGroups, conclude: Conclude) -> None:
        self._engines = engines
        self._conclude = conclude
        self.admit: Admit = _admit_all
        self._offers = Offers()
        self.offer(m.TRACE, self._trace)
        self._at_end: list[Callable[[int], None]] = []
        self._sessions: dict[int, Session] = {}
        self._owners: dict[str, Session] = {}  # of each open sequence
        self._max_open = 0
        self._is_open = self._is_restarting = False
        self._calls = Calls()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> Sequence[int]:
        """Numbers of the connected workers."""
        return tuple(self._sessions)

    def offer(self, name: str, offer: Offer) -> None:
        """Answer questions of that name from workers."""
        self._offers.add(name, offer)

    def at_end(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the number of each worker that ends."""
        self._at_end.append(callback)

    async def connect(self, number: int, end: socket.socket, on_hang: Callable[[], None]) -> Session:
        """Connect a new worker, which has the other end."""
        session = Session(number, self, on_hang)
        await session.wire.open(end)
        if not session.ended.is_set():
            self._sessions[number] = session  # from now on it receives messages to all; the engines first
            if self._is_open:
                self._show_engines(session)
        return session

    def open(self, max_open: int) -> None:
        """Announce to the workers that the engines are ready. At most `max_open` sequences are open at once."""
        self._max_open, self._is_open = max_open, True
        for rank, client in enumerate(self._engines.clients):
            client.observe(partial(self._pass_on, rank))
        for session in self._sessions.values():
            self._show_engines(session)

    async def follow_states(self) -> None:
        """Report changes of engine states and of open sequences to the workers; never return."""
        while True:
            for session in list(self._sessions.values()):
                if self._is_open:
                    self._show_state(session)
            await asyncio.sleep(STATE_PERIOD_S)

    async def ask(self, name: str, body: bytes = b"") -> dict[int, bytes]:
        """Return the workers' answers to a call, by worker, without those that do not answer in time."""
        return await self._calls.ask(self._sessions.values(), name, body)

    def restart(self) -> None:
        """Begin to restart each engine, unless a restart is under way."""
        if not self._is_restarting:
            self._is_restarting = True
            self._spawn(self._restart())

    def close(self) -> None:
        """Close all connections."""
        self._offers.close()
        for task in self._tasks:
            task.cancel()
        for session in self._sessions.values():
            session.wire.close()

    def take(self, session: Session, message: m.ToHub) -> None:
        """Handle a worker's message."""
        match message:
            case m.Submit():
                self._submit(session, message)
            case Abort(request_id=request_id):
                self._abort(session, request_id)
            case m.Ask():
                self._offers.take(session.number, message, session.send)
            case m.Call():
                self._spawn(self._call(session, message))
            case m.Reply():
                self._calls.take(session.number, message)
            case m.Serving():
                session.serving.set()
            case Failed():
                session.failure = message
            case m.Restart() | ResetPrefixCache() | ReleaseMemory():
                self._command(message)

    def ended(self, session: Session) -> None:
        """End the sequences of a worker whose process has ended."""
        self._sessions.pop(session.number, None)
        session.wire.close()
        session.ended.set()
        for request_id in list(session.open):
            self._abort(session, request_id)
        self._calls.ended(session.number)
        for callback in self._at_end:
            callback(session.number)

    def _show_engines(self, session: Session) -> None:
        session.send(m.Opened(list(self._engines.infos)))
        self._show_state(session)

    def _show_state(self, session: Session) -> None:
        engines = [m.EngineShown(each.state, each.loss, each.num_open) for each in self._engines.clients]
        state = m.State(engines, len(self._owners) - len(session.open))
        if state != session.shown:
            session.shown = state
            session.send(state)

    def _submit(self, session: Session, message: m.Submit) -> None:
        ids = [request.request_id for request in message.requests]
        relay = _Relay(ids, self._engines.abort, partial(self._refuse, session, ids))
        for request_id in ids:
            session.open[request_id], self._owners[request_id] = relay, session
        try:
            check_queue(len(self._owners) - len(ids), len(ids), self._max_open)
            if message.entry is not None:
                self.admit(session.number, message.requests, message.rank, message.entry)
        except QueueFull as error:
            self._turn_away(session, message, error)
            return
        answer(session.send, message.number)
        try:
            self._engines.submit(message.requests, message.rank, relay)
        except EngineDead as error:
            relay.fail(error)

    def _turn_away(self, session: Session, message: m.Submit, error: QueueFull) -> None:
        ids = [request.request_id for request in message.requests]
        if message.number is None:
            self._refuse(session, ids, error)
        else:
            for request_id in ids:
                self._abort(session, request_id)
            answer(session.send, message.number, error)

    def _refuse(self, session: Session, ids: list[str], error: RequestError) -> None:
        """End requests that came together with one error."""
        if any([self._abort(session, request_id) for request_id in ids]):
            session.send(m.Refused(ids[0], m.Raised.of(error)))

    def _abort(self, session: Session, request_id: str) -> bool:
        """End a worker's sequence; return whether it was open."""
        if session.open.pop(request_id, None) is None:
            return False
        del self._owners[request_id]
        with contextlib.suppress(EngineDead):
            self._engines.abort(request_id)
        return True

    def _pass_on(self, rank: int, turn: Tokens) -> None:
        """Send the turn to each worker, with the worker's own events."""
        shares: defaultdict[int, list[tuple[TokenEvent, Charge]]] = defaultdict(list)
        for event, charge in turn.charged():
            owner = self._owners.get(event.request_id)
            if owner is not None:
                shares[owner.number].append((event, charge))
                if event.finish_reason is not None:
                    del owner.open[event.request_id], self._owners[event.request_id]
        for session in list(self._sessions.values()):
            share = shares[session.number]
            events, charges = [event for event, _ in share], [charge for _, charge in share]
            session.send(m.Turn(rank, Tokens(events, turn.report, charges)))

    def _command(self, message: m.Restart | ResetPrefixCache | ReleaseMemory) -> None:
        with contextlib.suppress(EngineDead):  # the state informs the workers
            match message:
                case m.Restart():
                    self.restart()
                case ResetPrefixCache():
                    self._engines.reset_prefix_cache()
                case ReleaseMemory():
                    self._engines.release_memory()

    async def _restart(self) -> None:
        try:
            with contextlib.suppress(EngineDead):
                await self._engines.restart()
        finally:
            self._is_restarting = False

    async def _trace(self, number: int, body: bytes) -> bytes:
        del number
        return _ENCODER.encode(await self._engines.trace(_TRACE_COMMAND.decode(body)))

    async def _call(self, session: Session, call: m.Call) -> None:
        others = [each for each in self._sessions.values() if each is not session]
        answers = await self._calls.ask(others, call.name, call.body, call.is_for_one)
        bodies = self._conclude(call.name, {session.number: call.body, **answers}, session.number)
        session.send(m.Answers(call.number, bodies))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
