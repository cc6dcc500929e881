"""`neuronserve serve --models`: a server for each model, started on demand, and their front in this process."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from neuronserve.cli.replicas import run_replica
from neuronserve.server.device.catalog import instance
from neuronserve.server.device.visible_cores import visible_cores
from neuronserve.server.errors import DeviceMemoryError, HostMemoryError, SettingsError, StartError
from neuronserve.server.host.fork_server import engine_context, start_process
from neuronserve.server.host.memory import GIB, SPARE_BYTES, available_bytes
from neuronserve.server.placement.fit import budget_bytes
from neuronserve.server.placement.shared_cores import Account, SharedCores
from neuronserve.server.settings.replicas import alone, given, router_config
from neuronserve.server.settings.sources import runtime_cores

if TYPE_CHECKING:
    import socket
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from neuronserve.cli.call import Call, MakeAccount
    from neuronserve.server.config import EngineConfig
    from neuronserve.server.settings.serve import ServeSettings

# Settings of the default model alone, which the others do not share.
OF_DEFAULT: dict[str, Any] = {"lora_modules": (), "enable_lora": False, "allow_runtime_lora_updating": False}
OF_DEFAULT |= dict.fromkeys(("revision", "mmproj", "tokenizer", "chat_template", "speculative_config"))
MEMORY_ERRORS = (DeviceMemoryError, HostMemoryError)
Resolve = Callable[["ServeSettings"], "Path"]


class OwnServers:
    """Settings, account and process of each model, by name."""

    def __init__(self, settings: ServeSettings, call: Call, resolve: Resolve) -> None:
        self._settings, self._call, self._resolve = settings, call, resolve
        self._own: dict[str, tuple[ServeSettings, Path]] = {}

    def describe(self, name: str, path: str, more: Mapping[str, Any]) -> Account:
        """Return the account of a further model, with settings of its own. Raises StartError."""
        base = self._settings
        if more:
            values = given(base) | dict(more)
            try:
                base = type(base)(**values)
            except ValidationError as error:
                first = error.errors()[0]
                raise SettingsError(f"--models {name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        reset = {key: value for key, value in OF_DEFAULT.items() if key not in more}
        return self.enter(name, base.model_copy(update=reset | {"model": path, "served_model_name": (name,)}))

    def enter(self, name: str, settings: ServeSettings) -> Account:
        """Return the account of a model by its own settings. Raises StartError."""
        model_path = self._resolve(settings)
        account = account_apart(self._call.account, settings.engine_config(model_path))
        own = {"num_gpu_blocks_override": account.num_blocks or None, "host_memory_gib": account.host_bytes / GIB}
        folder = f"{re.sub(r'[^A-Za-z0-9]', '-', name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        self._own[name] = settings.model_copy(update=alone(settings, folder) | own), model_path
        return account

    def start(self, name: str, cores: str, listener: socket.socket) -> BaseProcess:
        """Return the process of a model's server, on some NeuronCores."""
        args = (cores, *self._own[name], self._call.engine, listener)
        return multiprocessing.get_context("spawn").Process(target=_run_model, args=args, name=f"model-{name}")


def serve_models(settings: ServeSettings, call: Call, resolve: Resolve) -> None:
    """Run the front and the servers of models until SIGTERM."""
    from neuronserve.server.api.http.deferred import import_fastapi

    import_fastapi()
    from neuronserve.server.api.keys.ring import KeyRing
    from neuronserve.server.api.keys.use import Accounts
    from neuronserve.server.api.listener import bind
    from neuronserve.server.clock import MonotonicClock
    from neuronserve.server.route.model_front import Behind, ModelFront
    from neuronserve.server.route.models import Models
    from neuronserve.server.route.sagemaker import MultiModelEndpoint
    from neuronserve.server.route.server import route

    part, own = instance(settings.device), OwnServers(settings, call, resolve)
    host_bytes = min(available_bytes(), settings.memory_bytes or sys.maxsize) - SPARE_BYTES
    core_bytes = budget_bytes(part, settings.device_memory_utilization)
    room = SharedCores(visible_cores(runtime_cores(), part), core_bytes, host_bytes)
    models = Models(room, own.start, settings.healing, settings.max_model_wait, settings.shutdown_timeout)
    listener = bind(settings.host, settings.port)
    if settings.multi_model_endpoint:
        models.num_needed = 0
        endpoint = MultiModelEndpoint(models, lambda name, path: own.describe(name, path, {}))
    else:
        endpoint = None
        if "model" in settings.model_fields_set:
            default = models.add(settings.model_names, settings.model, own.enter(settings.model_names[0], settings))
            default.has_adapters = settings.has_adapters
    for record in map(json.loads, settings.models):
        name, path = record.pop("name"), record.pop("path")
        if any(name in model.names for model in models.by_name.values()):
            raise SettingsError(f"--models: {name[:80]!r} is the name of two models")
        models.add((name,), path, own.describe(name, path, record))
    ring = KeyRing(settings.keys_config, Accounts(MonotonicClock()))
    route(router_config(settings, ()), listener, models, partial(ModelFront, Behind(models, ring, endpoint)))


def account_apart(make: MakeAccount, config: EngineConfig) -> Account:
    """Return the account of a model, made in a process of its own: this one imports no compiler. Raises StartError."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = engine_context().Process(target=_send_account, args=(sender, make, config), daemon=True)
    start_process(process)
    sender.close()
    try:
        found = receiver.recv()
    except EOFError as error:
        raise StartError(f"{config.model_path}: its account failed with exit code {process.exitcode}") from error
    finally:
        process.join()
    if isinstance(found, Account):
        return found
    kind, text = found
    raise next((each for each in MEMORY_ERRORS if each.__name__ == kind), StartError)(text)


def _send_account(sender: Connection, make: MakeAccount, config: EngineConfig) -> None:
    try:
        sender.send(make(config))
    except StartError as error:
        sender.send((type(error).__name__, str(error)))


def _run_model(cores: str, settings: ServeSettings, model_path: Path, engine: Any, listener: socket.socket) -> None:
    os.environ["NEURON_RT_VISIBLE_CORES"] = cores
    run_replica(settings, model_path, engine, listener)
