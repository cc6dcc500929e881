"""The table of public models in docs/reference/models.md."""

from __future__ import annotations

from neuronserve.server.models.families import FAMILIES
from neuronserve.server.models.public import PublicModel, models
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import num_params

HEAD = "| organisation | | models (parameters) |\n|---|---|---|\n"


def table() -> str:
    """A row for each organisation and use, in the order of the catalogue."""
    rows: dict[tuple[str, str], list[str]] = {}
    for model in models():
        organisation = model.hub_id.partition("/")[0]
        rows.setdefault((organisation, _use(model.spec)), []).append(_entry(model))
    return HEAD + "".join(
        f"| `{organisation}` | {use} | {', '.join(entries)} |\n" for (organisation, use), entries in rows.items()
    )


def _entry(model: PublicModel) -> str:
    """Name and parameters of a model, and other models of the same dimensions."""
    others = "".join(f"; `{hub_id}`" for hub_id in model.also)
    return f"`{model.hub_id.partition('/')[2]}` ({_size(num_params(model.spec))}{others})"


def _size(number: int) -> str:
    return f"{number / 1e9:.4g}B" if number >= 1e9 else f"{number / 1e6:.4g}M"


def _use(spec: ModelSpec) -> str:
    if spec.is_encoder:
        return "encoder"
    return "served" if spec.architecture in FAMILIES else "planned"
