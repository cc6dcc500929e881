"""Settings of several servers: replicas on a Ray cluster, and models in servers of their own."""

import os
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import CliToggleFlag

from .adapters import Modules
from .base import Settings


class SeveralSettings(Settings):
    """Place and number of replicas, and further models."""

    distributed: Literal["none", "ray"] = Field(
        "none", description="run replicas on the Ray cluster of RAY_ADDRESS, or on a new one of this host"
    )
    num_replicas: Annotated[int, Field(ge=1, le=10_000)] | Literal["auto"] = Field(
        1, description="replicas on the Ray cluster; auto follows their load"
    )

    models: Modules = Field(
        (),
        json_schema_extra={"nargs": "+"},
        description="further models, as NAME=PATH or NAME=FILE.yaml with settings, each loaded when a request names it",
    )
    max_model_wait: float = Field(60, gt=0, le=3600, description="seconds that a request waits for its model")
    multi_model_endpoint: CliToggleFlag[bool] = Field(
        False, description="load models as SageMaker's multi-model endpoints ask, and none at the start"
    )

    @model_validator(mode="after")
    def _ray_has_replicas_of_its_own(self) -> Self:
        if self.distributed == "none" and self.num_replicas != 1:
            raise ValueError(f"num_replicas is {self.num_replicas}, which needs distributed ray")
        alone = {"replicas", "data_dir", "kv_events_config", "pipeline_stages"} & self.model_fields_set
        if self.distributed == "ray" and alone:
            raise ValueError(f"distributed ray cannot have {min(alone)}, which is of servers of one host")
        return self


def require_token() -> None:
    """Have Ray authenticate by a token, which it makes for a new cluster, unless RAY_AUTH_MODE says otherwise."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
