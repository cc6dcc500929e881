"""FastAPI without the validators of its models of an OpenAPI document, which are a sixth of the API's imports.

And without pydantic's first version, which FastAPI imports to see that no model here is one of its: a twenty-fifth.
"""

from __future__ import annotations

import importlib
import sys

from pydantic import BaseModel

V1_CHECK = "is_pydantic_v1_model_class"


def import_fastapi() -> None:
    """Import FastAPI so that its models are built when they are first used: when somebody asks for the page.

    To be called before anything imports it; without that a start only takes longer.
    """
    BaseModel.model_config["defer_build"] = True  # inherited by what is declared meanwhile
    try:
        importlib.import_module("fastapi")
    finally:
        del BaseModel.model_config["defer_build"]
    if hasattr(checks := sys.modules.get("fastapi._compat.shared"), V1_CHECK):
        setattr(checks, V1_CHECK, _is_none_of_v1)


def _is_none_of_v1(kind: object) -> bool:
    """Whether a class is a model of pydantic's first version: none is."""
    del kind
    return False
