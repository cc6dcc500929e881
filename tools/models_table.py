"""The table of docs/reference/models.md of public models."""

from __future__ import annotations

from neuronserve.server.models.families import FAMILIES
from neuronserve.server.models.public import PublicModel, models
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import num_params

HEAD = "| model, and others of the same dimensions | parameters | positions | |\n|---|---|---|---|\n"


def table() -> str:
    """All rows, in the order of the table."""
    return HEAD + "".join(_row(model) for model in models())


def _row(model: PublicModel) -> str:
    names = ", ".join(f"`{hub_id}`" for hub_id in (model.hub_id, *model.also))
    return f"| {names} | {_size(num_params(model.spec))} | {model.spec.max_position:,} | {_use(model.spec)} |\n"


def _size(number: int) -> str:
    return f"{number / 1e9:.4g}B" if number >= 1e9 else f"{number / 1e6:.4g}M"


def _use(spec: ModelSpec) -> str:
    if spec.is_encoder:
        return "encoder"
    return "served" if spec.architecture in FAMILIES else "planned"
