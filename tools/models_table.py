"""The table of public models in docs/reference/models.md."""

from __future__ import annotations

from neuronserve.server.models.families import FAMILIES
from neuronserve.server.models.layer import NetworkSpec
from neuronserve.server.models.public import PublicModel, models
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import num_params

HEAD = "| model, and others of the same dimensions | parameters | layers | heads, KV | feed-forward | positions | |\n"


def table() -> str:
    """All rows, in the order of the table."""
    return HEAD + "|---|---|---|---|---|---|---|\n" + "".join(_row(model) for model in models())


def _row(model: PublicModel) -> str:
    spec = model.spec
    cells = (
        ", ".join(f"`{hub_id}`" for hub_id in (model.hub_id, *model.also)),
        _size(num_params(spec)),
        str(spec.num_layers),
        f"{spec.num_heads}, {spec.num_kv_heads}",
        _feed_forward(spec),
        f"{spec.max_position:,}",
        _use(spec),
    )
    return f"| {' | '.join(cells)} |\n"


def _size(number: int) -> str:
    return f"{number / 1e9:.4g}B" if number >= 1e9 else f"{number / 1e6:.4g}M"


def _feed_forward(spec: ModelSpec) -> str:
    experts = spec.experts
    dense = [layer.feed_forward for layer in spec.layers if isinstance(layer.feed_forward, NetworkSpec)]
    if experts is None:
        return str(dense[0].size)
    parts = [f"{experts.per_token} of {experts.count} x {experts.expert.size}"]
    if experts.shared is not None:
        parts.append(f"shared {experts.shared.size}")
    if dense:
        parts.append(f"{len(dense)} layers {dense[0].size}")
    return ", ".join(parts)


def _use(spec: ModelSpec) -> str:
    if spec.is_encoder:
        return "encoder"
    return "served" if spec.architecture in FAMILIES else "planned"
