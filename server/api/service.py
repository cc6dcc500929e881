"""State that all handlers share: the served model, the engines' clients, and the phase of the server's life.

loading -> ready -> draining. While no engine answers, a server is "stalled", or "recovering" if successors start;
requests are accepted and wait. An engine that died too often is not restarted: with other engines left the server is
"degraded", they serve, and the liveness probe fails so that the server is restarted. Without engines it is "dead".
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from ..clock import Clock, MonotonicClock
from ..config import CacheConfig
from ..cost.charge_rate import ChargeRate
from ..device.catalog import instance
from ..errors import EngineDead, ModelNotFound, Unavailable
from ..host.memory import return_freed_memory
from ..link.groups import EngineGroups
from ..link.messages import EngineInfo
from ..media.reader import PictureReader
from ..media.speech import SpeechReader
from ..text.fair_threads import FairThreads
from ..text.generation_config import GenerationDefaults
from ..text.grammar_process import GrammarProcess
from ..text.schema_check import SchemaChecks
from ..text.template_process import RequestTemplates, TemplateProcess
from ..text.tokenizer import Tokenizer
from .admission import Admission
from .config import ApiConfig
from .fingerprint import HASH_DIGITS, fingerprint
from .gate import Gate
from .host_memory import HostMemory
from .http.body import parsing_thread
from .keys.ring import KeyRing
from .keys.use import Accounts
from .kv_events import KvEventPublisher
from .lora import Adapters
from .phase import Phase, phase_of
from .sentences import Sentences
from .store.store import Store
from .telemetry.request_observer import RequestObserver
from .telemetry.telemetry import Telemetry
from .text_files import TextFiles, load_text_files, require_embeddings

RETURN_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One ready model: its text files, and the facts that its engine reported."""

    tokenizer: Tokenizer
    template: TemplateProcess | None
    templates: RequestTemplates | None
    defaults: GenerationDefaults
    grammars: GrammarProcess
    checks: SchemaChecks
    threads: FairThreads  # for long work on texts
    info: EngineInfo
    requests: RequestObserver  # for metrics and traces
    rate: ChargeRate  # of modelled device time
    sentences: Sentences
    created: int  # Unix seconds
    fingerprint: str  # of what answers: `system_fingerprint`
    gate: Gate  # admits requests
    pictures: PictureReader | None = None  # None: the model reads no pictures
    speech: SpeechReader | None = None  # None: it transcribes no sound

    @property
    def cache(self) -> CacheConfig:
        return self.info.cache

    @property
    def vocab_size(self) -> int:
        """Number of token ids that a prompt may use: the tokenizer's, each of which has an embedding."""
        return self.tokenizer.vocab_size


class Service:
    """Owned by the server, shared by all handlers, used on one event loop."""

    def __init__(self, config: ApiConfig, engine: EngineGroups, clock: Clock | None = None) -> None:
        self.config = config
        self.engine = engine
        self.memory = HostMemory(config.host_memory_bytes, self._release_memory)
        self.clock = clock or MonotonicClock()
        self.telemetry = Telemetry(config, self.clock)
        self.accounts, self.adapters = Accounts(self.clock), Adapters(engine)
        if config.kv_events is not None:
            for rank, client in enumerate(engine.clients):
                client.publish = KvEventPublisher(config.kv_events, rank, self.adapters.name_of).publish
        self.keys = KeyRing(config.keys, self.accounts)
        self.parsing = parsing_thread()
        self.store = Store(config.store)
        self._files: TextFiles | None = None
        self._model: ServedModel | None = None
        self._is_draining = False
        self._restarting: asyncio.Task[None] | None = None
        self._returning: asyncio.TimerHandle | None = None

    @property
    def is_draining(self) -> bool:
        """True once `drain` was called."""
        return self._is_draining

    @property
    def phase(self) -> Phase:
        return phase_of(self.engine, self._model is not None, self._is_draining)

    @property
    def model(self) -> ServedModel:
        """The model, while requests are accepted. Raises EngineDead or Unavailable otherwise."""
        phase = self.phase
        if phase == "dead":
            why = f" ({self.engine.loss})" if self.engine.loss else ""
            raise EngineDead(f"The engine process has ended{why}; this server cannot answer any more.")
        if phase == "draining":
            raise Unavailable("The server is shutting down and takes no new requests.")
        if self._model is None:
            raise Unavailable("The model is still being loaded.", code="loading")
        return self._model

    @property
    def served(self) -> ServedModel:
        """The model, also while the server drains: for requests accepted before."""
        assert self._model is not None, "no request is accepted before the model is there"
        return self._model

    async def load(self, report: Callable[[str], None]) -> None:
        """Read the text files while the engine loads. Raises StartError from either as soon as it fails."""
        starting = asyncio.ensure_future(self.engine.start(report))
        try:
            info, text = await asyncio.gather(starting, asyncio.to_thread(load_text_files, self.config))
            await self.store.recover()
        finally:
            starting.cancel()
        self._files = text
        require_embeddings(text.tokenizer, info)
        rate = charge_rate(self.config, info, len(self.engine.infos))
        requests = self.telemetry.attach(self.engine, rate)
        self.accounts.device_ns = requests.keys.device_ns
        admission = Admission(self.config, self.engine)
        self.telemetry.show_limits(admission, self.memory)
        self.telemetry.show_keys(self.accounts)
        self.accounts.since = int(time.time())
        await self.adapters.begin(info.adapters)
        self._model = ServedModel(
            text.tokenizer,
            text.template,
            text.templates,
            text.defaults,
            text.grammars,
            text.checks,
            text.threads,
            info,
            requests,
            rate,
            Sentences(self.config.model_path, text.tokenizer, info),
            int(time.time()),
            fingerprint(info, text.template.source if text.template else ""),
            Gate(admission, self.engine),
            *await asyncio.to_thread(text.start_media, info),
        )

    def fingerprint_of(self, name: str) -> str:
        """Return the `system_fingerprint` of answers under a served name."""
        adapter = self.adapters.get(name)
        return self.model.fingerprint + (f"-{adapter.digest[:HASH_DIGITS]}" if adapter is not None else "")

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache. Raises EngineDead or Unavailable when no requests are accepted."""
        _ = self.model  # raises
        self.engine.reset_prefix_cache()

    def restart_engines(self) -> None:
        """Begin to restart each engine, unless a restart is under way. Raises EngineDead or Unavailable."""
        _ = self.model  # raises
        if self._restarting is None or self._restarting.done():
            self._restarting = asyncio.get_running_loop().create_task(self.engine.restart())

    def _release_memory(self) -> None:
        """Free host memory that engines and the API keep only to save work."""
        if self._model is not None:
            self._model.grammars.forget()
            with contextlib.suppress(EngineDead):
                self.engine.release_memory()

    def return_memory(self) -> None:
        """Return freed memory of this process to the host, a little later: requests that end now still hold some."""
        if self._returning is None:
            self._returning = asyncio.get_running_loop().call_later(RETURN_AFTER_S, self._return_memory)

    def _return_memory(self) -> None:
        self._returning = None
        self.parsing.submit(return_freed_memory)

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._is_draining = True

    def abort_all(self) -> None:
        """End all running requests with an error."""
        self.engine.abort_all(Unavailable("The server is shutting down and has ended this request."))

    async def close(self, timeout_s: float) -> None:
        """End the engines and the text processes, and send the last spans."""
        if self._restarting is not None:
            self._restarting.cancel()
        await self.engine.stop(timeout_s)
        if self._returning is not None:
            self._returning.cancel()
        self.parsing.close()
        if self._files is not None:
            await asyncio.to_thread(self._files.close)
        await self.telemetry.close()
        await self.store.close()

    def require_name(self, name: str | None) -> str:
        """Return the model name for the answer. Raises ModelNotFound when `name` is given and not served."""
        if name is not None and name not in (names := (*self.config.model_names, *self.adapters.names)):
            known = ", ".join(names)
            raise ModelNotFound(f"The model {name[:200]!r} does not exist here; this server has {known}.", "model")
        return name or self.config.model_names[0]


def charge_rate(config: ApiConfig, info: EngineInfo, num_engines: int) -> ChargeRate:
    """Return the price of modelled device time."""
    price = config.price_basis, config.usd_per_hour
    return ChargeRate.of(instance(info.device), info.num_cores, *price, count=(num_engines, info.num_instances))


async def the_service(request: Request) -> Service:
    """FastAPI dependency: the service of this application. Async, because FastAPI calls other functions in a thread."""
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(the_service)]
