"""Packages that are imported when one of their names is first used, not when a server starts."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LateModule:
    """A module that stands for another until a name of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)
