"""The LoRA adapters of an engine, and the commands that load and unload them while steps go on.

An adapter is named by the digest of its files. One that was loaded twice leaves its slot when it was unloaded twice.
The API unloads an adapter only when none of its requests is open (api/lora.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Protocol

from ..checkpoint.lora_adapter import LoraAdapter
from ..config import LoraConfig
from ..errors import AdapterSlotsFull, NeuronserveError
from ..link.messages import AdapterCommand, AdapterReply, LoadAdapter, LoadedAdapter, UnloadAdapter
from ..types import Request
from .inbox import POLL_S, Handlers
from .load.adapter_slots import AdapterSlots


class Adapters(Protocol):
    """Adapters that commands load and unload."""

    def load(self, path: str) -> tuple[str, int]:
        """Load the adapter in a directory; return its digest and rank. Raises NeuronserveError."""

    def unload(self, digest: str) -> None:
        """Undo one load; the adapter leaves with the last."""

    def has(self, digest: str) -> bool:
        """Return whether the adapter is loaded."""


class AdapterBank:
    """Implements `Adapters` with the slots on the cores. One thread at a time may load and unload, beside steps."""

    def __init__(self, memory: AdapterSlots, max_rank: int) -> None:
        self.memory, self._max_rank = memory, max_rank
        self.slots: dict[str, int] = {}  # by digest
        self._loads: dict[str, int] = {}  # how often each was loaded

    def load(self, path: str) -> tuple[str, int]:
        """Load an adapter. Raises CheckpointError, and AdapterSlotsFull when no slot is free."""
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
        """Load the adapters that the settings name. Raises CheckpointError or AdapterSlotsFull."""
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


class AdapterCommands:
    """Handler of adapter commands: one thread carries them out in their order, and each gets one reply."""

    def __init__(self, adapters: Adapters | None, reply: Callable[[AdapterReply], None]) -> None:
        """Refuse every command when `adapters` is None."""
        self._adapters, self._reply = adapters, reply
        self._pending: deque[Future[AdapterReply]] = deque()
        self._thread = ThreadPoolExecutor(1, "adapters")

    @property
    def handlers(self) -> Handlers:
        return {LoadAdapter: self._begin, UnloadAdapter: self._begin}

    def poll(self) -> float:
        """Send the replies that are ready."""
        while self._pending and self._pending[0].done():
            self._reply(self._pending.popleft().result())
        return POLL_S if self._pending else inf

    def hold(self, request: Request) -> float:
        """Hold a request whose adapter may be the one that is being loaded."""
        is_known = not request.lora or self._adapters is None or self._adapters.has(request.lora)
        return POLL_S if self._pending and not is_known else 0.0

    def _begin(self, command: AdapterCommand) -> None:
        self._pending.append(self._thread.submit(self._carry_out, command))

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
