"""Additions of `neuronserve serve` from the packages beside the server. Each of these packages may be missing."""

from __future__ import annotations

from importlib.util import find_spec

from neuronserve.server.api.addition import Addition
from neuronserve.server.settings.serve import ServeSettings


def is_installed(*packages: str) -> bool:
    """Return whether the folders of all `packages`, such as `planner`, are there."""
    return all(find_spec(f"neuronserve.{package}") for package in packages)


def serve_settings() -> type[ServeSettings]:
    """Return the settings of `serve`: with flags for fault injection where the test kit is installed."""
    if not is_installed("testkit"):
        return ServeSettings
    from neuronserve.testkit.settings.faults import FaultyServeSettings

    return FaultyServeSettings


def console_additions(settings: ServeSettings) -> tuple[Addition, ...]:
    """Return the console, if it is wanted and installed. It shows one API process, and has the planner's page."""
    if not settings.console or settings.api_workers > 1 or not is_installed("console", "planner"):
        return ()
    from neuronserve.console.mount import Console
    from neuronserve.console.question import InForce

    return (Console(InForce(settings.catalog_config, settings.calibration_file)),)
