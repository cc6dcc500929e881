"""Import of FastAPI without building the validators of its OpenAPI models, a sixth of the API's import time.

It also skips pydantic's first version, which FastAPI imports to check that no model belongs to it: a twenty-fifth.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

V1_CHECK = "is_pydantic_v1_model_class"


def import_fastapi() -> None:
    """Import FastAPI so that its models are built at their first use, when a client asks for the page.

    Called before any other import of FastAPI; otherwise the start only takes longer.
    """
    BaseModel.model_config["defer_build"] = True  # inherited by models declared meanwhile
    rebuild = BaseModel.__dict__["model_rebuild"]
    BaseModel.model_rebuild = classmethod(_when_used(rebuild.__func__))  # type: ignore[assignment, method-assign]
    try:
        importlib.import_module("fastapi")
    finally:
        BaseModel.model_rebuild = rebuild  # type: ignore[method-assign]
        del BaseModel.model_config["defer_build"]
    if hasattr(checks := sys.modules.get("fastapi._compat.shared"), V1_CHECK):
        setattr(checks, V1_CHECK, _is_none_of_v1)


def _when_used(rebuild: Callable[..., bool | None]) -> Callable[..., bool | None]:
    """Return pydantic's `model_rebuild` without the calls at the end of modules whose models name each other.

    Those calls have no arguments; the call at a model's first use, which builds the model, has some.
    """

    def rebuild_when_used(kind: type[BaseModel], **how: Any) -> bool | None:
        return rebuild(kind, **how) if how else None

    return rebuild_when_used


def _is_none_of_v1(kind: object) -> bool:
    """Return whether a class is a model of pydantic's first version: none is."""
    del kind
    return False
