"""Settings of several models behind one address."""

import json
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import CliToggleFlag, NoDecode

from .base import Settings, split_commas

APART = {"replicas", "data_parallel_size", "distributed", "pipeline_parallel_size", "pipeline_stages"}
FORM = "must be NAME=PATH, or JSON with name, path and settings of the model"


def _record(item: Any) -> str:
    if isinstance(item, str) and not item.lstrip().startswith("{"):
        item = dict(zip(("name", "path"), item.split("=", 1), strict=False))
    found = json.loads(item) if isinstance(item, str) else item
    if not (
        isinstance(found, dict) and all(isinstance(found.get(key), str) and found[key] for key in ("name", "path"))
    ):
        raise ValueError(FORM)
    return json.dumps(found)


def _records(value: Any) -> Any:
    """Return each model as JSON; NAME=PATH, and records of a YAML file, are accepted."""
    if isinstance(value, str):
        value = json.loads(value) if value.lstrip()[:1] in ("[", "{") else split_commas(value)
    return tuple(_record(item) for item in (value if isinstance(value, list | tuple) else (value,)))


class SeveralSettings(Settings):
    """Models beside the first, or those of a multi-model endpoint."""

    models: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_records)] = Field(
        (),
        json_schema_extra={"nargs": "+"},
        description='further models, as NAME=PATH or {"name": ..., "path": ..., and settings}; each is loaded when '
        "a request names it, in place of those used least recently if memory lacks",
    )
    max_model_wait: float = Field(
        60, gt=0, le=3600, description="seconds that a request waits for its model to be loaded, before a 503"
    )
    multi_model_endpoint: CliToggleFlag[bool] = Field(
        False, description="start without a model, and load and unload models as SageMaker's multi-model endpoints ask"
    )

    @model_validator(mode="after")
    def _models_have_one_engine_each(self) -> Self:
        if not (self.models or self.multi_model_endpoint):
            return self
        fields = type(self).model_fields
        if apart := [name for name in sorted(APART & fields.keys()) if getattr(self, name) != fields[name].default]:
            raise ValueError(f"{apart[0]} is {getattr(self, apart[0])}: with several models each has one engine")
        if self.multi_model_endpoint and {"model", "models"} & self.model_fields_set:
            raise ValueError("multi_model_endpoint starts without a model: SageMaker names them")
        return self
