"""FastAPI without the validators of its models of an OpenAPI document, which are a sixth of the API's imports.

And without pydantic's first version, which FastAPI imports to see that no model here is one of its: a twenty-fifth.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

V1_CHECK = "is_pydantic_v1_model_class"


def import_fastapi() -> None:
    """Import FastAPI so that its models are built when they are first used: when somebody asks for the page.

    To be called before anything imports it; without that a start only takes longer.
    """
    BaseModel.model_config["defer_build"] = True  # inherited by what is declared meanwhile
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
    """Pydantic's `model_rebuild`, without what a module asks for at its end because its models name each other.

    That has no arguments; a model's first use, which builds it then, has some.
    """

    def rebuild_when_used(kind: type[BaseModel], **how: Any) -> bool | None:
        return rebuild(kind, **how) if how else None

    return rebuild_when_used


def _is_none_of_v1(kind: object) -> bool:
    """Whether a class is a model of pydantic's first version: none is."""
    del kind
    return False
