"""FastAPI without the validators of its models of an OpenAPI document, which are a sixth of the API's imports."""

from __future__ import annotations

import importlib

from pydantic import BaseModel


def import_fastapi() -> None:
    """Import FastAPI so that its models are built when they are first used: when somebody asks for the page.

    To be called before anything imports it; without that a start only takes longer.
    """
    BaseModel.model_config["defer_build"] = True  # inherited by what is declared meanwhile
    try:
        importlib.import_module("fastapi")
    finally:
        del BaseModel.model_config["defer_build"]
