"""The adapters that an engine has loaded, and the commands of the API that load and unload them.

An adapter is known by the digest of its files. One that was loaded twice leaves its slot when it was unloaded twice.
Requests are no concern here: the API unloads an adapter when none of its requests is open (api/lora.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from neuronserve.server.checkpoint.lora_adapter import LoraAdapter
from neuronserve.server.config import LoraConfig
from neuronserve.server.engine.load.adapter_slots import AdapterSlots
from neuronserve.server.errors import AdapterSlotsFull, NeuronserveError
from neuronserve.server.link.messages import (
    Abort,
    AdapterCommand,
    AdapterReply,
    Add,
    Instruction,
    LoadAdapter,
    LoadedAdapter,
    Order,
    UnloadAdapter,
)

POLL_S = 0.002  # between two looks at whether an adapter is loaded, when there is nothing else to do


class Adapters(Protocol):
    """What carries out commands."""

    def load(self, path: str) -> tuple[str, int]:
        """Load the adapter in a directory; its digest and rank. Raises NeuronserveError."""

    def unload(self, digest: str) -> None:
        """Forget it, once for each time that it was loaded."""

    def has(self, digest: str) -> bool:
        """Whether it is loaded."""


class AdapterBank:
    """Implements `Adapters` with the slots on the cores. One thread at a time may load and unload, beside steps."""

    def __init__(self, memory: AdapterSlots, max_rank: int) -> None:
        self.memory, self._max_rank = memory, max_rank
        self.slots: dict[str, int] = {}  # by digest
        self._loads: dict[str, int] = {}  # how often each was loaded

    def load(self, path: str) -> tuple[str, int]:
        """Raises CheckpointError, and AdapterSlotsFull when no slot is free."""
        adapter = LoraAdapter(Path(path), self.memory.linears, self._max_rank)
        digest = adapter.digest
        if digest not in self.slots:
            free = set(range(self.memory.num_slots)) - set(self.slots.values())
            if not free:
                raise AdapterSlotsFull(f"all {self.memory.num_slots} adapters of max_loras are loaded or still in use")
            self.memory.fill(slot := min(free), adapter)
            self.slots[digest] = slot
        self._loads[digest] = self._loads.get(digest, 0) + 1
        return digest, adapter.rank

    def load_all(self, lora: LoraConfig, on_progress: Callable[[str], None]) -> tuple[LoadedAdapter, ...]:
        """Load those that are there from the start. Raises CheckpointError or AdapterSlotsFull."""
        loaded = []
        for module in lora.modules:
            digest, rank = self.load(module.path)
            loaded.append(LoadedAdapter(module.name, module.path, digest, rank))
            on_progress(f"adapter {module.name}: rank {rank}")
        return tuple(loaded)

    def has(self, digest: str) -> bool:
        return digest in self.slots

    def unload(self, digest: str) -> None:
        self._loads[digest] -= 1
        if not self._loads[digest]:
            del self._loads[digest]
            self.memory.clear(self.slots.pop(digest))


class Inputs(Protocol):
    """Where all that the API sends comes from."""

    def drain(self, timeout_s: float) -> list[Order]:
        """All that has come, oldest first; waits up to `timeout_s` seconds for the first."""


class AdapterInputs:
    """Inputs without the commands about adapters, which a thread carries out in their order while steps go on.

    A request whose adapter is still being loaded waits for it.
    """

    def __init__(self, inputs: Inputs, adapters: Adapters | None, reply: Callable[[AdapterReply], None]) -> None:
        """`adapters` None: commands are refused."""
        self._inputs, self._adapters, self._reply = inputs, adapters, reply
        self._pending: deque[Future[AdapterReply]] = deque()
        self._thread = ThreadPoolExecutor(1, "adapters")
        self._held: list[Instruction] = []  # requests that wait, and their ends

    def drain(self, timeout_s: float) -> list[Instruction]:
        """As of `inputs`; may return nothing before `timeout_s` has passed."""
        others: list[Instruction] = []
        for command in self._inputs.drain(min(timeout_s, POLL_S) if self._pending else timeout_s):
            if isinstance(command, AdapterCommand):
                self._pending.append(self._thread.submit(self._carry_out, command))
            else:
                (self._held if self._waits(command) else others).append(command)
        while self._pending and self._pending[0].done():
            self._reply(self._pending.popleft().result())
        if not self._pending:
            others, self._held = self._held + others, []
        return others

    def _waits(self, command: Instruction) -> bool:
        """Whether it is a request whose adapter may be on its way, or the end of one that waits."""
        match command:
            case Add(request):
                is_known = not request.lora or self._adapters is None or self._adapters.has(request.lora)
                return bool(self._pending) and not is_known
            case Abort(request_id):
                return any(isinstance(held, Add) and held.request.request_id == request_id for held in self._held)
            case _:
                return False

    def _carry_out(self, command: AdapterCommand) -> AdapterReply:
        if self._adapters is None:
            return AdapterReply(error="this engine has no room for adapters: start the server with --enable-lora")
        try:
            match command:
                case LoadAdapter(path=path):
                    return AdapterReply(*self._adapters.load(path))
                case UnloadAdapter(digest=digest):
                    self._adapters.unload(digest)
                    return AdapterReply(digest)
        except NeuronserveError as error:
            return AdapterReply(error=str(error))
