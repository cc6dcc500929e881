"""The engine's process (or thread, for tests): its sockets, its start, its death. Decides nothing about requests.

Commands and outputs are msgpack over two ZeroMQ sockets in a private directory; nothing here listens on TCP.
The engine ignores SIGINT and SIGTERM, because the parent decides when it ends, and ends when its parent does.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from typing import Literal, Protocol

import msgspec
import zmq

from server.clock import MonotonicClock
from server.config import CacheConfig, EngineConfig, SchedulerConfig
from server.device.step_pricer import StepPricer
from server.engine.gate import Gate, Grammars
from server.engine.loop import EngineLoop, Runner
from server.engine.messages import Command, EngineInfo, Failed, Output, Progress, Ready, Tokens
from server.engine.metered_runner import MeteredRunner
from server.engine.trace_files import Seams, require_directory, traced
from server.errors import StartError
from server.kv_cache.manager import KVCacheManager
from server.scheduler.scheduler import Scheduler

EngineMode = Literal["process", "thread"]
log = logging.getLogger("neuronserve.engine")
MAX_SOCKET_PATH = 90  # the kernel allows 107 bytes for a Unix socket's path


class LoadedEngine(Protocol):
    """What a loader gives back: the model on its device, and the limits that follow from it."""

    @property
    def runner(self) -> Runner: ...
    @property
    def cache(self) -> CacheConfig: ...
    @property
    def scheduler(self) -> SchedulerConfig: ...
    @property
    def info(self) -> EngineInfo: ...
    @property
    def grammars(self) -> Grammars | None: ...
    @property
    def pricer(self) -> StepPricer: ...


# Runs in the engine process, so it must be a module-level function. Raises StartError.
Loader = Callable[[EngineConfig, Callable[[str], None]], LoadedEngine]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the two processes meet: a directory only this user can enter, and the two sockets in it."""

    directory: str

    @property
    def commands(self) -> str:
        return f"ipc://{self.directory}/commands"

    @property
    def outputs(self) -> str:
        return f"ipc://{self.directory}/outputs"


class EngineProcess:
    """The parent's handle: started at once, so that the model loads while the parent imports the rest."""

    def __init__(self, config: EngineConfig, loader: Loader, mode: EngineMode = "process") -> None:
        self.addresses = Addresses(_private_directory())
        self._context = zmq.Context()
        self.commands = _bound(self._context, zmq.PUSH, self.addresses.commands)
        self.outputs = _bound(self._context, zmq.PULL, self.addresses.outputs)
        args = (config, loader, self.addresses)
        self._thread: threading.Thread | None = None
        self.process: SpawnProcess | None = None
        if mode == "thread":
            self._thread = threading.Thread(target=run_engine, args=args, name="engine", daemon=True)
            self._thread.start()
        else:
            context = multiprocessing.get_context("spawn")
            self.process = context.Process(target=_process_main, args=args, name="engine", daemon=True)
            self.process.start()

    @property
    def pid(self) -> int | None:
        """The engine's process id, None in thread mode."""
        return self.process.pid if self.process is not None else None

    @property
    def is_alive(self) -> bool:
        runner = self.process or self._thread
        return runner is not None and runner.is_alive()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came. Blocking."""
        runner = self.process or self._thread
        if runner is not None:
            runner.join(timeout_s)
        return not self.is_alive

    def close(self) -> None:
        """End the engine if it still runs, and remove sockets and directory. May be called twice."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
        for socket in (self.commands, self.outputs):
            socket.close(linger=0)
        self._context.term()
        shutil.rmtree(self.addresses.directory, ignore_errors=True)


class _SocketInbox:
    """Commands from the socket, for the engine loop."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._decoder = msgspec.msgpack.Decoder(Command)

    def drain(self, timeout_s: float) -> list[Command]:
        commands: list[Command] = []
        if self._socket.poll(int(timeout_s * 1000)):
            with contextlib.suppress(zmq.Again):
                while True:
                    commands.append(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
        return commands


class _SocketOutbox:
    """Outputs to the socket; the reader merges what it cannot keep up with, so nothing piles up here."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._encoder = msgspec.msgpack.Encoder()

    def put(self, tokens: Tokens) -> None:
        self.send(tokens)

    def send(self, output: Output) -> None:
        self._socket.send(self._encoder.encode(output))


def run_engine(config: EngineConfig, loader: Loader, addresses: Addresses) -> int:
    """Load, say Ready, serve until Shutdown. Returns the exit code; every failure is also sent as `Failed`."""
    context = zmq.Context()
    inbox = _connected(context, zmq.PULL, addresses.commands)
    outbox = _connected(context, zmq.PUSH, addresses.outputs)
    outputs = _SocketOutbox(outbox)
    try:
        require_directory(config.trace)
        loaded = loader(config, lambda text: outputs.send(Progress(text)))
        scheduler = Scheduler(loaded.scheduler, KVCacheManager(loaded.cache))
        seams = Seams(_SocketInbox(inbox), loaded.runner, outputs)
        with traced(config.trace, loaded.info, loaded.runner, seams, outputs.send) as seen:
            outputs.send(Ready(loaded.info))
            clock, gate = MonotonicClock(), Gate(loaded.grammars)
            runner = MeteredRunner(seen.runner, loaded.pricer, clock, is_paced=config.pace == "device")
            EngineLoop(scheduler, runner, clock, seen.inbox, seen.outbox, gate).run()
    except StartError as error:
        outputs.send(Failed(str(error), error.exit_code))
        return error.exit_code
    except Exception as error:
        log.exception("the engine failed")
        outputs.send(Failed(f"the engine failed: {type(error).__name__}", 1))
        return 1
    finally:
        inbox.close(linger=0)
        outbox.close(linger=2000)
        context.term()
    return 0


def _process_main(config: EngineConfig, loader: Loader, addresses: Addresses) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(addresses,), daemon=True).start()
    raise SystemExit(run_engine(config, loader, addresses))


def _end_with_parent(addresses: Addresses) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(addresses.directory, ignore_errors=True)
    os._exit(1)


def _private_directory() -> str:
    """A new directory of mode 0700, whose path leaves room for a socket's name."""
    is_long = len(tempfile.gettempdir()) > MAX_SOCKET_PATH - len("/neuronserve-12345678/commands")
    return tempfile.mkdtemp(prefix="neuronserve-", dir="/tmp" if is_long else None)


def _bound(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.bind(address)
    return socket


def _connected(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set_hwm(0)
    socket.connect(address)
    return socket
