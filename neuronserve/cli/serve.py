"""One server of `neuronserve serve`, with settings and additions of packages beside it, which may be missing."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.serve import ServeSettings

if TYPE_CHECKING:
    import socket

    from neuronserve.server.api.addition import Addition
    from neuronserve.server.link.handle import EngineMain


def is_installed(*packages: str) -> bool:
    """Return whether the folders of all `packages`, such as `planner`, are there."""
    return all(find_spec(f"neuronserve.{package}") for package in packages)


def serve_settings() -> type[ServeSettings]:
    """Return the settings of `serve`: with flags for fault injection where the test kit is installed."""
    if not is_installed("testkit"):
        return ServeSettings
    from neuronserve.testkit.settings.faults import FaultyServeSettings

    return FaultyServeSettings


def require_files(settings: ServeSettings) -> None:
    """Raise SettingsError for a chat template or an adapter that is not there, before a model is loaded."""
    adapters = settings.lora_config.modules if settings.lora_config else ()
    files = [("--lora-modules", Path(module.path) / "adapter_config.json") for module in adapters]
    if settings.chat_template is not None and "{" not in settings.chat_template:
        files.append(("--chat-template", Path(settings.chat_template)))
    for flag, path in files:
        try:
            path.stat()
        except OSError as error:
            raise SettingsError(f"{flag}: cannot read {str(path)!r}: {error.strerror}") from error


def additions_of(settings: ServeSettings) -> tuple[Addition, ...]:
    """Return the console and fault injection, if they are wanted and installed. They import FastAPI.

    The console shows one server, so several replicas have none; it has the planner's page.
    """
    found: list[Addition] = []
    if settings.console and settings.replicas == 1 and is_installed("console", "planner"):
        from neuronserve.console.addition import ConsolePages
        from neuronserve.console.question import InForce

        found.append(ConsolePages(InForce(settings.catalog_config, settings.calibration_file)))
    faults = getattr(settings, "fault_config", None)
    if faults is not None:
        from neuronserve.testkit.faults.injector import FaultInjection

        found.append(FaultInjection(faults))
    return tuple(found)


def serve_alone(
    settings: ServeSettings, model_path: Path, engine: EngineMain, listener: socket.socket | None = None
) -> None:
    """Run one server, on `listener` or where the settings say."""
    from neuronserve.server.link.handle import start_engines

    engines = start_engines(settings.engine_configs(model_path), engine, settings.engine_mode)
    try:
        from neuronserve.server.api.http.deferred import import_fastapi

        import_fastapi()
        from neuronserve.server.api import server
        from neuronserve.server.api.listener import bind

        config = replace(settings.api_config(model_path), additions=additions_of(settings))
        server.serve(config, engines, listener or bind(settings.host, settings.port))
    finally:
        for process in engines:
            process.close()
