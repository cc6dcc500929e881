"""`neuronserve serve --models`: a server for each model, started on demand, and their front in this process."""

from __future__ import annotations

import hashlib
import multiprocessing
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
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
from neuronserve.server.settings.neuron import ARTIFACTS
from neuronserve.server.settings.replicas import given, of_replica, router_config
from neuronserve.server.settings.sources import config_file, runtime_cores, take_cores

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
OF_DEFAULT |= {"require_artifact_digest": None}
OF_ALL = ("device", "device_memory_utilization", "host_memory_gib")  # settings of all models together
APART = (
    "replicas",
    "data_parallel_size",
    "distributed",
    "pipeline_parallel_size",
    "pipeline_stages",
    "kv_events_config",
)
MEMORY_ERRORS = (DeviceMemoryError, HostMemoryError)
Resolve = Callable[["ServeSettings"], "Path"]


def rows_of(length: int, task: str, num_bytes: int) -> dict[str, list[dict[str, Any]]]:
    """Return a model's row of each list before it is loaded, by their paths; None stands for its name.

    `num_bytes` of its weights on the accelerator.
    """
    now = datetime.now(UTC)
    stamp = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    card = {"id": None, "object": "model", "created": int(now.timestamp()), "owned_by": "neuronserve"}
    texts = dict.fromkeys(("parent_model", "format", "family", "parameter_size", "quantization_level"), "")
    listed = {"name": None, "model": None, "modified_at": stamp, "size": num_bytes, "digest": ""}
    other = {"id": None, "type": "model", "display_name": None, "created_at": stamp, "lifecycle": "active"}
    return {
        "/v1/models": [card | {"max_model_len": length, "root": None, "tasks": [task]}],
        "/api/tags": [listed | {"details": texts | {"families": []}}],
        "anthropic": [other | {"max_input_tokens": length, "max_tokens": length}],
    }


class OwnServers:
    """Settings, account and process of each model, by name."""

    def __init__(self, settings: ServeSettings, call: Call, resolve: Resolve) -> None:
        self._settings, self._call, self._resolve = settings, call, resolve
        self._own: dict[str, tuple[ServeSettings, Path]] = {}
        self.host_bytes = min(available_bytes(), settings.memory_bytes or sys.maxsize) - SPARE_BYTES

    def describe(self, name: str, path: str) -> Account:
        """Return the account of a further model, with the settings in its file if it has one. Raises StartError."""
        base, more = self._settings, {"model": path}
        if path.endswith((".yaml", ".yml")):
            more = config_file(path)
            try:
                base = type(base)(**given(base, base.model) | more)
            except ValidationError as error:
                first = error.errors()[0]
                raise SettingsError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        own = {key: value for key, value in OF_DEFAULT.items() if key not in more}
        own |= {each: getattr(self._settings, each) for each in OF_ALL}
        own |= {"model": more.get("model", base.model), "served_model_name": (name,)}
        return self.enter(name, base.model_copy(update=own))

    def enter(self, name: str, settings: ServeSettings) -> Account:
        """Return the account of a model by its own settings. Raises StartError."""
        model_path = self._resolve(settings)
        account = account_apart(self._call.account, settings.engine_config(model_path))
        if account.host_bytes > self.host_bytes:
            raise HostMemoryError(
                f"{name} needs {account.host_bytes / GIB:.2f} GiB of the host's memory with its processes, and all "
                f"models together have {self.host_bytes / GIB:.2f} GiB"
            )
        replica = of_replica(settings, 0)
        own: dict[str, Any] = {
            "num_gpu_blocks_override": account.num_blocks or None,
            "host_memory_gib": account.host_bytes / GIB,
        }
        own["cpu_threads"] = settings.cpu_threads
        if replica.data_dir is not None:
            folder = f"{re.sub(r'[^A-Za-z0-9]', '-', name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
            own["data_dir"] = replica.data_dir.with_name(folder)
        self._own[name] = replica.model_copy(update=own), model_path
        rows = {
            path: [
                {key: each if value is None else value for key, value in row.items()}
                for each in settings.model_names
                for row in listed
            ]
            for path, listed in account.rows.items()
        }
        return replace(account, rows=rows)

    def start(self, name: str, cores: str, listener: socket.socket) -> BaseProcess:
        """Return the process of a model's server, on some NeuronCores."""
        args = (cores, *self._own[name], self._call.engine, listener)
        return multiprocessing.get_context("spawn").Process(target=_run_model, args=args, name=f"model-{name}")


def serve_models(settings: ServeSettings, call: Call, resolve: Resolve) -> None:
    """Run the front and the servers of models until SIGTERM."""
    _check(settings)
    from neuronserve.server.api.http.deferred import import_fastapi

    import_fastapi()
    from neuronserve.server.api.listener import bind
    from neuronserve.server.route.model_front import ModelFront
    from neuronserve.server.route.models import Models
    from neuronserve.server.route.server import route

    part, own = instance(settings.device), OwnServers(settings, call, resolve)
    core_bytes = budget_bytes(part, settings.device_memory_utilization)
    room = SharedCores(visible_cores(runtime_cores(), part), core_bytes, own.host_bytes)
    models = Models(room, own.start, settings.healing, settings.max_model_wait, settings.shutdown_timeout)
    models.keys = settings.keys_config
    listener = bind(settings.host, settings.port)
    if settings.multi_model_endpoint:
        models.num_needed, models.describe = 0, own.describe
    elif "model" in settings.model_fields_set:
        default = models.add(settings.model_names, settings.model, own.enter(settings.model_names[0], settings))
        default.has_adapters = settings.has_adapters
    for name, _, path in (pair.partition("=") for pair in settings.models):
        if any(name in model.names for model in models.by_name.values()):
            raise SettingsError(f"--models: {name!r} is the name of two models")
        models.add((name,), path, own.describe(name, path))
    route(router_config(settings, ()), listener, models, partial(ModelFront, models))


def _check(settings: ServeSettings) -> None:
    """Raise SettingsError for settings that several models cannot have."""
    for name in APART:
        if (value := getattr(settings, name)) != type(settings).model_fields[name].default:
            raise SettingsError(f"{name} is {value}: of several models each has one engine in one server")
    if settings.compiled_model is not None:
        raise SettingsError(f"{settings.compiled_model} replaces every model: unset {ARTIFACTS} for several models")
    if settings.multi_model_endpoint and {"model", "models"} & settings.model_fields_set:
        raise SettingsError("multi_model_endpoint starts without a model, and SageMaker names them: leave out MODEL")


def account_apart(make: MakeAccount, config: EngineConfig) -> Account:
    """Return the account of a model, made in a process of its own: this one imports no compiler. Raises StartError."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = engine_context().Process(target=_send_account, args=(sender, make, config), daemon=True)
    start_process(process)
    sender.close()
    try:
        found = receiver.recv()
    except EOFError as error:
        process.join()
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
    take_cores(cores)
    run_replica(settings, model_path, engine, listener)
